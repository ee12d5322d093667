// Package evictunschedulablesubsetpods is the descheduling strategy EvictUnschedulableSubsetPods. It evicts pods that can use one subset only and
// find no node there for too long, so that their replacements get another one.
//
// Package strategy runs it, and pkg/moves decides. See README.md.
package evictunschedulablesubsetpods

import (
	"sigs.k8s.io/descheduler/pkg/framework/pluginregistry"

	"github.com/berth-project/berth/pkg/descheduler/cycle"
	"github.com/berth-project/berth/pkg/moves"
	"github.com/berth-project/berth/pkg/plugins/descheduling/strategy"
)

// Name of the strategy in descheduler policies.
const Name = "EvictUnschedulableSubsetPods"

// Register registers the strategy. It shares the world with the others.
func Register(world *cycle.World, registry pluginregistry.Registry) {
	strategy.Deschedule(Name, &Args{}, world, registry)
}

var _ strategy.Args = &Args{}

// Strategy implements strategy.Args.
func (a *Args) Strategy() cycle.Strategy {
	limits := moves.LeaveLimits{Tolerance: a.SkewTolerance.Duration, AtMost: *a.MaxPerSubset, Pace: a.Backoff.Pace()}
	return cycle.Strategy{
		Direction:  moves.Away,
		Decide:     func(f *moves.Facts, c moves.Cluster) moves.Decision { return moves.Leave(f, limits, c) },
		Schedulers: a.SchedulerNames,
	}
}
