// Package cli is "kubectl berth". Each command gathers objects from the cluster or from files, makes a report of them
// with pure functions, and prints it as a table for people or as JSON or YAML for programs. What asks the scheduler's
// filters is in package whatif, which another program runs. Begin reading at NewCommand.
package cli

import (
	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/berth-project/berth/pkg/cli/console"
)

// NewCommand is the whole program, for console.Main.
func NewCommand(streams genericiooptions.IOStreams) *cobra.Command {
	root, flags := console.NewRoot("kubectl-berth", "Where the pods of a workload run, how many of them run there, and why", streams)
	root.AddCommand(newStatus(flags, streams), newWait(flags, streams), newEviction(flags, streams),
		newLint(streams), newUI(flags, streams), newDoctor(flags, streams), newMigrate(flags, streams), newVersion(flags, streams),
		delegate(console.Explain, streams), delegate(console.Simulate, streams))
	return root
}
