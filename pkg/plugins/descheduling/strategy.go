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

// strategyArgs are the Args of a strategy: its fields, validation, defaults, and the strategy that they configure.
type strategyArgs interface {
	runtime.Object
	// Validate returns every error with its path. The framework validates before it defaults, so missing fields must be
	// accepted.
	Validate() field.ErrorList
	// Default sets missing fields.
	Default()
	// Has is true for the namespaces of the spreads for which the strategy runs.
	Has(namespace string) bool
	// Strategy is the configured strategy, without name, scope and evictor. The Args must have been defaulted.
	Strategy() cycle.Strategy
}

// addStrategy registers a strategy. args is an empty instance of its Args; the framework decodes what a policy says
// into a copy of it. The world is shared with the other strategies.
func addStrategy(name string, args strategyArgs, world *cycle.World, registry pluginregistry.Registry) {
	build := func(ctx context.Context, obj runtime.Object, handle frameworktypes.Handle) (frameworktypes.Plugin, error) {
		args := obj.(strategyArgs)
		p := &plugin{world: world, strategy: args.Strategy()}
		p.strategy.Name, p.strategy.Evictor, p.strategy.Covers = name, handle.Evictor(), args.Has
		err := world.Join(ctx, handle)
		if err == nil {
			err = world.LookForRoom()
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		return p, nil
	}
	pluginregistry.Register(name, build, &plugin{}, args, validator(name), func(obj runtime.Object) { obj.(strategyArgs).Default() }, registry)
}

// validator returns every error in the Args of a plugin.
func validator(name string) func(runtime.Object) error {
	return func(obj runtime.Object) error {
		if err := obj.(interface{ Validate() field.ErrorList }).Validate().ToAggregate(); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	}
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
