package whatif

import (
	"io"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/klog/v2"

	"github.com/berth-project/berth/pkg/cli/console"
)

// NewCommand is the whole program, for console.Main.
func NewCommand(streams genericiooptions.IOStreams) *cobra.Command {
	root, flags := console.NewRoot("berth-whatif", "Where pods could run and would run, by the scheduler's own filters", streams)
	root.PersistentPreRun = func(*cobra.Command, []string) {
		if !klog.V(1).Enabled() {
			klog.LogToStderr(false) // the scheduler's filters log what they do, and the answer has it already
			klog.SetOutput(io.Discard)
		}
	}
	root.AddCommand(newExplain(flags, streams), newSimulate(flags, streams))
	return root
}
