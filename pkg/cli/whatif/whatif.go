// Package whatif is the commands of "kubectl berth" that ask the scheduler's filters and the descheduler what they would do. They are a program of their
// own, berth-whatif, because they bring most of a scheduler and of a descheduler with them. Begin reading at NewCommand.
package whatif

import (
	"io"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/klog/v2"
	"sigs.k8s.io/descheduler/pkg/framework/pluginregistry"

	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/descheduler/cycle"
)

// Strategies registers the descheduler's strategies, as cmd/descheduler does.
type Strategies = func(*cycle.World, pluginregistry.Registry)

// NewCommand is the whole program, for console.Main.
func NewCommand(streams genericiooptions.IOStreams, strategies Strategies) *cobra.Command {
	root, flags := console.NewRoot("berth-whatif", "Where pods could run and would run, by the scheduler's own filters and the descheduler", streams)
	root.PersistentPreRun = func(*cobra.Command, []string) {
		if !klog.V(1).Enabled() {
			klog.LogToStderr(false) // the scheduler's filters and the descheduler log what they do, and the answer has it already
			klog.SetOutput(io.Discard)
		}
	}
	root.AddCommand(newExplain(flags, streams), newSimulate(flags, streams), newRebalance(flags, streams, strategies))
	return root
}
