// Package rebalancetopreferredsubset is the descheduling strategy RebalanceToPreferredSubset. It evicts pods of later subsets when an earlier subset
// has quota and a node for their replacements.
//
// Package strategy runs it, and pkg/moves decides. See README.md.
package rebalancetopreferredsubset

import (
	"sigs.k8s.io/descheduler/pkg/framework/pluginregistry"

	"github.com/berth-project/berth/pkg/descheduler/cycle"
	"github.com/berth-project/berth/pkg/moves"
	"github.com/berth-project/berth/pkg/plugins/descheduling/strategy"
)

// Name of the strategy in descheduler policies.
const Name = "RebalanceToPreferredSubset"

// Register registers the strategy. It shares the world with the others.
func Register(world *cycle.World, registry pluginregistry.Registry) {
	strategy.Balance(Name, &Args{}, world, registry)
}

var _ strategy.Args = &Args{}

// Strategy implements strategy.Args.
func (a *Args) Strategy() cycle.Strategy {
	limits := moves.ReturnLimits{Stable: a.StabilizationWindow.Duration, Residence: a.MinResidence.Duration, Cooldown: a.Cooldown.Duration,
		AtMost: *a.MaxMovesPerSpread, Pace: a.Backoff.Pace()}
	return cycle.Strategy{
		Direction: moves.Home,
		Decide:    func(f *moves.Facts, c moves.Cluster) moves.Decision { return moves.Return(f, limits, c) },
		Stable:    a.StabilizationWindow.Duration,
	}
}
