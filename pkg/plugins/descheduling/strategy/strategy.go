// Package strategy makes plugins of the descheduler framework: all of Berth's strategies are read, validated, defaulted, built and run in the same
// way. What a strategy is about, its Args say; see the directories beside this one.
//
// It gathers with pkg/descheduler/cycle, has the strategy decide, and acts through the cycle again. It decides nothing. Begin reading at Args.
package strategy

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/descheduler/pkg/framework/pluginregistry"
	frameworktypes "sigs.k8s.io/descheduler/pkg/framework/types"

	"github.com/berth-project/berth/pkg/descheduler/cycle"
)

// Args of a strategy: what may be given, what holds if it is not, and what follows.
type Args interface {
	runtime.Object
	// Validate returns every error with its path. The framework asks before it defaults, so that everything may be left out.
	Validate() field.ErrorList
	// Default sets what is left out.
	Default()
	// Compile is which spreads the strategy is about.
	Compile() (cycle.Scope, error)
	// Strategy is what they come to once they were defaulted, without its name, scope and evictor.
	Strategy() cycle.Strategy
}

// Deschedule makes a strategy known that runs before those that balance. args is an empty instance of its Args, and the world is shared with
// others.
func Deschedule(name string, args Args, world *cycle.World, registry pluginregistry.Registry) {
	register(name, args, world, registry, func(p plugin) frameworktypes.Plugin { return &descheduling{p} })
}

// Balance makes a strategy known that runs after those that deschedule.
func Balance(name string, args Args, world *cycle.World, registry pluginregistry.Registry) {
	register(name, args, world, registry, func(p plugin) frameworktypes.Plugin { return &balancing{p} })
}

func register(name string, args Args, world *cycle.World, registry pluginregistry.Registry, at func(plugin) frameworktypes.Plugin) {
	read := func(obj runtime.Object) (Args, error) {
		read, ok := obj.(Args)
		if !ok {
			return nil, fmt.Errorf("%s: want %T, got %T", name, args, obj)
		}
		return read, nil
	}
	validate := func(obj runtime.Object) error {
		args, err := read(obj)
		if err != nil {
			return err
		}
		if err := args.Validate().ToAggregate(); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	}
	setDefaults := func(obj runtime.Object) {
		if args, err := read(obj); err == nil { // build returns the error
			args.Default()
		}
	}
	build := func(ctx context.Context, obj runtime.Object, handle frameworktypes.Handle) (frameworktypes.Plugin, error) {
		args, err := read(obj)
		if err != nil {
			return nil, err
		}
		p := plugin{world: world, strategy: args.Strategy()}
		p.strategy.Name, p.strategy.Evictor = name, handle.Evictor()
		if p.strategy.Scope, err = args.Compile(); err == nil {
			err = world.Join(ctx, handle)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		return at(p), nil
	}
	pluginregistry.Register(name, build, at(plugin{}), args, validate, setDefaults, registry)
}

// plugin runs a strategy. The framework tells by the methods of the types below when it is to run.
type plugin struct {
	world    *cycle.World
	strategy cycle.Strategy
}

// Name of the plugin.
func (p *plugin) Name() string { return p.strategy.Name }

// run has the pods of every spread looked at. It looks at all nodes itself, also at those that are not ready.
func (p *plugin) run(ctx context.Context) *frameworktypes.Status {
	c, err := p.world.Cycle()
	if err == nil {
		err = c.Run(ctx, p.strategy)
	}
	return &frameworktypes.Status{Err: err}
}

type descheduling struct{ plugin }

var _ frameworktypes.DeschedulePlugin = &descheduling{}

// Deschedule implements DeschedulePlugin.
func (d *descheduling) Deschedule(ctx context.Context, _ []*corev1.Node) *frameworktypes.Status {
	return d.run(ctx)
}

type balancing struct{ plugin }

var _ frameworktypes.BalancePlugin = &balancing{}

// Balance implements BalancePlugin.
func (b *balancing) Balance(ctx context.Context, _ []*corev1.Node) *frameworktypes.Status {
	return b.run(ctx)
}
