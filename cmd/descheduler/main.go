// Command descheduler is the descheduler of kubernetes-sigs with Berth's strategies. It evicts pods of WorkloadSpreads
// so that their replacements are placed in a better subset. It runs one cycle and exits, or repeats it with
// --descheduling-interval. Exit codes: 0 done; 1 a mistake in the configuration, or something could not be read; 2
// every attempted eviction failed.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // metrics of the API client

	"github.com/berth-project/berth/internal/version"
	"github.com/berth-project/berth/pkg/descheduler"
	"github.com/berth-project/berth/pkg/plugins/descheduling"
)

func main() {
	os.Exit(run())
}

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	defer logs.FlushLogs()
	options, err := descheduler.NewOptions(descheduling.Register)
	if err != nil {
		fmt.Fprintln(os.Stderr, "berth-descheduler:", err)
		return 1
	}
	options.Out = os.Stdout
	command, err := newCommand(options)
	if err != nil {
		fmt.Fprintln(os.Stderr, "berth-descheduler:", err)
		return 1
	}
	if err := command.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "berth-descheduler:", err)
		return descheduler.ExitCode(err)
	}
	return 0
}

func newCommand(options *descheduler.Options) (*cobra.Command, error) {
	gates, logging := featuregate.NewFeatureGate(), logsapi.NewLoggingConfiguration()
	command := &cobra.Command{
		Use:           "berth-descheduler",
		Short:         "Evicts pods of WorkloadSpreads so that their controllers create them again in a better subset.",
		Args:          cobra.NoArgs,
		Version:       version.Get(),
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			logs.InitLogs()
			if err := logsapi.ValidateAndApply(logging, gates); err != nil {
				return err
			}
			return descheduler.Run(cmd.Context(), options)
		},
	}
	command.SetVersionTemplate(version.Line("berth-descheduler") + "\n")
	if err := logsapi.AddFeatureGates(gates); err != nil {
		return nil, err
	}
	options.AddFlags(command.Flags())
	logsapi.AddFlags(logging, command.Flags())
	return command, nil
}
