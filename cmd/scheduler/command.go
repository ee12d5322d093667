package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/apiserver/pkg/server"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/cli/globalflag"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/component-base/term"
	"k8s.io/component-base/version/verflag"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"

	"github.com/berth-project/berth/internal/version"
	"github.com/berth-project/berth/pkg/plugins/scheduling/workloadspread"
)

// newCommand is app.NewSchedulerCommand with the plugins installed, the configuration checked and the leader election
// observed. All this needs the configuration between app.Setup and app.Run. app.NewSchedulerCommand does not expose
// that, so its code is repeated here.
func newCommand(berth *workloadspread.Family, registryOptions ...app.Option) *cobra.Command {
	cmd, opts := app.NewSchedulerCommand(), options.NewOptions()
	cmd.PersistentPreRunE = func(*cobra.Command, []string) error { return opts.ComponentGlobalsRegistry.Set() }
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return run(cmd, opts, berth, registryOptions...) }

	// The command's flags so far are those of other options.
	cmd.ResetFlags()
	flags := *opts.Flags
	verflag.AddFlags(flags.FlagSet("global"))
	globalflag.AddGlobalFlags(flags.FlagSet("global"), cmd.Name(), logs.SkipLoggingConfigurationFlags())
	for _, set := range flags.FlagSets {
		cmd.Flags().AddFlagSet(set)
	}
	columns, _, _ := term.TerminalSize(cmd.OutOrStdout()) // 0 if it is no terminal
	cliflag.SetUsageAndHelpFunc(cmd, flags, columns)
	if err := cmd.MarkFlagFilename("config", "yaml", "yml", "json"); err != nil {
		klog.Background().Error(err, "Completion will not offer files for --config")
	}
	return cmd
}

func run(cmd *cobra.Command, opts *options.Options, berth *workloadspread.Family, registryOptions ...app.Option) error {
	if cmd.Flag("version").Value.String() == string(verflag.VersionTrue) {
		fmt.Fprintln(cmd.OutOrStdout(), version.Line("berth-scheduler"))
		return nil
	}
	verflag.PrintAndExitIfRequested() // --version=raw is all that kube-scheduler knows of its build
	gates := opts.ComponentGlobalsRegistry.FeatureGateFor(basecompatibility.DefaultKubeComponent)
	if err := logsapi.ValidateAndApply(opts.Logs, gates); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	cliflag.PrintFlags(cmd.Flags())

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		<-server.SetupSignalHandler()
		cancel()
	}()
	config, scheduler, err := app.Setup(ctx, opts, registryOptions...)
	if err != nil {
		return err
	}
	if err := berth.Check(&config.ComponentConfig, scheduler.Profiles); err != nil {
		return err
	}
	berth.Install(scheduler)
	if config.LeaderElection != nil {
		config.LeaderElection.Lock = berth.Observe(config.LeaderElection.Lock)
		config.LeaderElection.ReleaseOnCancel = true
	}
	gates.(featuregate.MutableFeatureGate).AddMetrics()
	opts.ComponentGlobalsRegistry.AddMetrics()
	return app.Run(ctx, config, scheduler)
}
