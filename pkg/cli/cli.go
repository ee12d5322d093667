// Package cli is "kubectl berth". Each command gathers objects from the cluster or from files, makes a report of them with pure functions, and prints
// it as a table for people or as JSON or YAML for programs. Begin reading at NewCommand.
package cli

import (
	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/cli/whatif"
)

// NewCommand is the whole program. Pass its errors to console.Advise.
func NewCommand(streams genericiooptions.IOStreams, strategies whatif.Strategies) *cobra.Command {
	root, flags := console.NewRoot("kubectl-berth", "Where the pods of a workload run, how many of them run there, and why", streams)
	root.AddCommand(newStatus(flags, streams), newDrift(flags, streams), newConvert(streams), newUI(flags, streams))
	root.AddCommand(whatif.Commands(flags, streams, strategies)...)
	return root
}
