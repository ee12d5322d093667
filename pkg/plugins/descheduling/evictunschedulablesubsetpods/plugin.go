// Package evictunschedulablesubsetpods is the descheduling strategy EvictUnschedulableSubsetPods:
// pods that carry the patch of a subset, and that no node of it takes for too long, make way for pods of another subset.
//
// It gathers with pkg/descheduler/cycle, has pkg/moves decide, and acts through the cycle again. See README.md.
package evictunschedulablesubsetpods

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/descheduler/pkg/framework/pluginregistry"
	frameworktypes "sigs.k8s.io/descheduler/pkg/framework/types"

	"github.com/berth-project/berth/pkg/descheduler/cycle"
	"github.com/berth-project/berth/pkg/moves"
)

// Name of the strategy in descheduler policies.
const Name = "EvictUnschedulableSubsetPods"

// Plugin is the strategy.
type Plugin struct {
	world    *cycle.World
	strategy cycle.Strategy
}

var _ frameworktypes.DeschedulePlugin = &Plugin{}

// Register makes the strategy known, on the world that it is to share with others.
func Register(world *cycle.World, registry pluginregistry.Registry) {
	build := func(ctx context.Context, args runtime.Object, handle frameworktypes.Handle) (frameworktypes.Plugin, error) {
		return New(ctx, world, args, handle)
	}
	pluginregistry.Register(Name, build, &Plugin{}, &Args{}, Validate, SetDefaults, registry)
}

// New makes the strategy from Args that were defaulted.
func New(ctx context.Context, world *cycle.World, obj runtime.Object, handle frameworktypes.Handle) (*Plugin, error) {
	args, ok := obj.(*Args)
	if !ok {
		return nil, fmt.Errorf("%s: want %T, got %T", Name, args, obj)
	}
	scope, err := args.Compile()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", Name, err)
	}
	if err := world.Join(ctx, handle); err != nil {
		return nil, fmt.Errorf("%s: %w", Name, err)
	}
	limits := moves.LeaveLimits{Tolerance: args.SkewTolerance.Duration, AtMost: *args.MaxPerSubset, Pace: args.Backoff.Pace()}
	return &Plugin{world: world, strategy: cycle.Strategy{
		Name:      Name,
		Direction: moves.Away,
		Decide: func(f *moves.Facts, c moves.Cluster) moves.Decision {
			return moves.Leave(f, limits, c)
		},
		Scope:      scope,
		Evictor:    handle.Evictor(),
		Schedulers: args.SchedulerNames,
	}}, nil
}

// Name of the plugin.
func (p *Plugin) Name() string { return Name }

// Deschedule has the pods of every spread looked at. It looks at all nodes itself, also at those that are not ready.
func (p *Plugin) Deschedule(ctx context.Context, _ []*corev1.Node) *frameworktypes.Status {
	c, err := p.world.Cycle()
	if err == nil {
		err = c.Run(ctx, p.strategy)
	}
	return &frameworktypes.Status{Err: err}
}
