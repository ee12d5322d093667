// Package whatif is the commands of "kubectl berth" that ask the scheduler's filters and the descheduler what they would do. Begin reading at Commands.
package whatif

import (
	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/descheduler/pkg/framework/pluginregistry"

	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/descheduler/cycle"
)

// Strategies registers the descheduler's strategies, as cmd/descheduler does.
type Strategies = func(*cycle.World, pluginregistry.Registry)

// Commands are explain, simulate and rebalance.
func Commands(flags *console.Flags, streams genericiooptions.IOStreams, strategies Strategies) []*cobra.Command {
	return []*cobra.Command{newExplain(flags, streams), newSimulate(flags, streams), newRebalance(flags, streams, strategies)}
}
