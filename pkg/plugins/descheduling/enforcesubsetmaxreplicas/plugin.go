// Package enforcesubsetmaxreplicas is the descheduling strategy EnforceSubsetMaxReplicas. It evicts running pods that are above the quota of their
// subset, or on nodes that their subset does not select.
//
// Package strategy runs it, and pkg/moves decides. See README.md.
package enforcesubsetmaxreplicas

import (
	"sigs.k8s.io/descheduler/pkg/framework/pluginregistry"

	"github.com/berth-project/berth/pkg/descheduler/cycle"
	"github.com/berth-project/berth/pkg/moves"
	"github.com/berth-project/berth/pkg/plugins/descheduling/strategy"
)

// Name of the strategy in descheduler policies.
const Name = "EnforceSubsetMaxReplicas"

// Register registers the strategy. It shares the world with the others.
func Register(world *cycle.World, registry pluginregistry.Registry) {
	strategy.Deschedule(Name, &Args{}, world, registry)
}

var _ strategy.Args = &Args{}

// Strategy implements strategy.Args.
func (a *Args) Strategy() cycle.Strategy {
	limits := moves.TrimLimits{Settle: a.SettleTime.Duration, MaxUnavailable: *a.MaxUnavailable, DuringRollouts: a.DuringRollouts,
		WithoutRoom: a.WithoutRoom, Pace: a.Backoff.Pace()}
	return cycle.Strategy{
		Direction: moves.Away,
		Decide:    func(f *moves.Facts, c moves.Cluster) moves.Decision { return moves.Trim(f, limits, c) },
	}
}
