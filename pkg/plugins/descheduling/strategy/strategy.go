// Package strategy makes plugins of the descheduler framework. All of Berth's strategies are decoded, validated, defaulted, built and run in the same
// way. Their Args say what each one does; see the directories beside this one.
//
// It gathers with pkg/descheduler/cycle, lets the strategy decide, and acts through the cycle again. It decides nothing. Begin reading at Args.
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
	"github.com/berth-project/berth/pkg/descheduler/guarded"
)

// Args of a strategy: its fields, validation, defaults, and the strategy that they configure.
type Args interface {
	runtime.Object
	// Validate returns every error with its path. The framework validates before it defaults, so missing fields must be accepted.
	Validate() field.ErrorList
	// Default sets missing fields.
	Default()
	// Compile returns for which spreads the strategy runs.
	Compile() (cycle.Scope, error)
	// Strategy is the configured strategy, without name, scope and evictor. The Args must have been defaulted.
	Strategy() cycle.Strategy
}

// Deschedule registers a strategy that runs before the balancing strategies. args is an empty instance of its Args. The world is shared with the
// other strategies.
func Deschedule(name string, args Args, world *cycle.World, registry pluginregistry.Registry) {
	register(name, args, world, registry, func(p plugin) frameworktypes.Plugin { return &descheduling{p} })
}

// Balance registers a strategy that runs after the descheduling strategies.
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
		p.strategy.Name, p.strategy.Evictor = name, guarded.Evictor(handle)
		if p.strategy.Scope, err = args.Compile(); err == nil {
			err = world.Join(ctx, handle)
		}
		if err == nil {
			err = world.LookForRoom()
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		return at(p), nil
	}
	pluginregistry.Register(name, build, at(plugin{}), args, validate, setDefaults, registry)
}

// plugin runs a strategy. The methods of the types below tell the framework when.
type plugin struct {
	world    *cycle.World
	strategy cycle.Strategy
}

// Name of the plugin.
func (p *plugin) Name() string { return p.strategy.Name }

// run checks the pods of every spread. It reads all nodes itself, including nodes that are not ready.
func (p *plugin) run(ctx context.Context) *frameworktypes.Status {
	return &frameworktypes.Status{Err: p.world.Run(ctx, &p.strategy)}
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
