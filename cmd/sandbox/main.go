// Command sandbox runs Berth on one machine: a real control plane, nodes made by KWOK or real ones, and our own
// binaries.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/berth-project/berth/internal/version"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal stops everything in order. The second one ends this process, and with it all its children, at
	// once.
	context.AfterFunc(ctx, cancel)

	if err := newCommand().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "berth-sandbox",
		Short:         "Run Berth on this machine, with a real control plane and nodes made by KWOK",
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version.Get(),
	}
	root.SetVersionTemplate(version.Line("berth-sandbox") + "\n")
	root.SetFlagErrorFunc(func(command *cobra.Command, err error) error {
		return fmt.Errorf("%w: see `%s --help`", err, command.CommandPath())
	})
	root.AddCommand(upCommand(), downCommand(), statusCommand(), playCommand())
	return root
}
