package descheduling

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

// Args of a strategy: its fields, validation, defaults, and the strategy that they configure.
type Args interface {
	runtime.Object
	// Validate returns every error with its path. The framework validates before it defaults, so missing fields must be
	// accepted.
	Validate() field.ErrorList
	// Default sets missing fields.
	Default()
	// Compile returns for which spreads the strategy runs.
	Compile() cycle.Scope
	// Strategy is the configured strategy, without name, scope and evictor. The Args must have been defaulted.
	Strategy() cycle.Strategy
}

// addStrategy registers a strategy. args is an empty instance of its Args. The world is shared with the other
// strategies.
func addStrategy(name string, args Args, world *cycle.World, registry pluginregistry.Registry) {
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
		p := &plugin{world: world, strategy: args.Strategy()}
		p.strategy.Name, p.strategy.Evictor = name, handle.Evictor()
		p.strategy.Scope = args.Compile()
		if err = world.Join(ctx, handle); err == nil {
			err = world.LookForRoom()
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		return p, nil
	}
	pluginregistry.Register(name, build, &plugin{}, args, validate, setDefaults, registry)
}

// plugin runs a strategy. The policy says when: before the balancing ones, or among them.
type plugin struct {
	world    *cycle.World
	strategy cycle.Strategy
}

var (
	_ frameworktypes.DeschedulePlugin = &plugin{}
	_ frameworktypes.BalancePlugin    = &plugin{}
)

// Name of the plugin.
func (p *plugin) Name() string { return p.strategy.Name }

// Deschedule implements DeschedulePlugin. It checks the pods of every spread, and reads all nodes itself, including
// nodes that are not ready.
func (p *plugin) Deschedule(ctx context.Context, _ []*corev1.Node) *frameworktypes.Status {
	return &frameworktypes.Status{Err: p.world.Run(ctx, p.strategy)}
}

// Balance implements BalancePlugin.
func (p *plugin) Balance(ctx context.Context, nodes []*corev1.Node) *frameworktypes.Status {
	return p.Deschedule(ctx, nodes)
}
