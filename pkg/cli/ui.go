package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/ui"
)

// uiCommand is "kubectl berth ui".
type uiCommand struct {
	out, errOut   io.Writer
	address       string
	port          uint16
	allNamespaces bool
}

func newUI(flags *console.Flags, streams genericiooptions.IOStreams) *cobra.Command {
	c := &uiCommand{out: streams.Out, errOut: streams.ErrOut}
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Serve a page that shows nodes, pods and spreads live",
		Example: `  kubectl berth ui
  kubectl berth ui -A --port 8900`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			ctrl.SetLogger(logr.Discard()) // the page shows errors
			return c.run(ctx, flags, &console.WhatIf{Connection: console.ConnectionOf(cmd.InheritedFlags())})
		},
	}
	cmd.Flags().StringVar(&c.address, "address", "127.0.0.1", "Address to listen on. Anyone who can reach it sees the pods, nodes and spreads that you may see, and may ask for explain and simulate.")
	cmd.Flags().Uint16Var(&c.port, "port", 0, "Port to listen on; 0 picks a free one.")
	cmd.Flags().BoolVarP(&c.allNamespaces, "all-namespaces", "A", false, "Pods and spreads of all namespaces.")
	return cmd
}

func (c *uiCommand) run(ctx context.Context, flags *console.Flags, whatIf *console.WhatIf) error {
	config, err := flags.Config().ClientConfig()
	if err != nil {
		return err
	}
	title, err := c.title(flags, config.Host)
	if err != nil {
		return err
	}
	page, err := ui.Open(ctx, config, ui.Options{Title: title, Explain: whatIf.Explain, Simulate: whatIf.Simulate})
	if err != nil {
		if ctx.Err() != nil {
			return nil // interrupted before the page was ready
		}
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(c.address, strconv.Itoa(int(c.port))))
	if err != nil {
		return fmt.Errorf("%w; use another --address or --port", err)
	}
	if warning := ui.Warning(listener); warning != "" {
		fmt.Fprintln(c.errOut, warning)
	}
	what := "namespace " + title.Namespace
	if title.Namespace == "" {
		what = "all namespaces"
	}
	fmt.Fprintf(c.out, "%s of %s at %s\nPress Ctrl-C to end it.\n", what, title.Cluster, ui.URL(listener))
	return page.Serve(ctx, listener, c.address)
}

// title names the cluster by its context, or by its address if there is no context.
func (c *uiCommand) title(flags *console.Flags, host string) (ui.Title, error) {
	context, err := flags.Context()
	title := ui.Title{Cluster: cmp.Or(context, host)}
	if err != nil || c.allNamespaces {
		return title, err
	}
	title.Namespace, _, err = flags.Config().Namespace()
	return title, err
}
