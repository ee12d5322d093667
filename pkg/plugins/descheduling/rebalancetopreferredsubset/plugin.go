// Package rebalancetopreferredsubset is the descheduling strategy RebalanceToPreferredSubset:
// pods of later subsets come home when an earlier one has quota and a node for them.
//
// It gathers with pkg/descheduler/cycle, has pkg/moves decide, and acts through the cycle again. See README.md.
package rebalancetopreferredsubset

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
const Name = "RebalanceToPreferredSubset"

// Plugin is the strategy.
type Plugin struct {
	world    *cycle.World
	strategy cycle.Strategy
}

var _ frameworktypes.BalancePlugin = &Plugin{}

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
	limits := moves.ReturnLimits{Stable: args.StabilizationWindow.Duration, Residence: args.MinResidence.Duration, Cooldown: args.Cooldown.Duration,
		AtMost: *args.MaxMovesPerSpread, Pace: args.Backoff.Pace()}
	return &Plugin{world: world, strategy: cycle.Strategy{
		Name:      Name,
		Direction: moves.Home,
		Decide: func(f *moves.Facts, c moves.Cluster) moves.Decision {
			return moves.Return(f, limits, c)
		},
		Scope:   scope,
		Evictor: handle.Evictor(),
		Stable:  args.StabilizationWindow.Duration,
	}}, nil
}

// Name of the plugin.
func (p *Plugin) Name() string { return Name }

// Balance has the pods of every spread looked at. It looks at all nodes itself, also at those that are not ready.
func (p *Plugin) Balance(ctx context.Context, _ []*corev1.Node) *frameworktypes.Status {
	c, err := p.world.Cycle()
	if err == nil {
		err = c.Run(ctx, p.strategy)
	}
	return &frameworktypes.Status{Err: err}
}
