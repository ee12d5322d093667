package descheduler

import (
	"context"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/descheduler/pkg/framework/pluginregistry"
	frameworktypes "sigs.k8s.io/descheduler/pkg/framework/types"

	"github.com/berth-project/berth/pkg/descheduler/cycle"
)

// watch records which plugins of a cycle ran and what they returned. The framework does not tell its caller.
type watch struct {
	mu     sync.Mutex
	cancel context.CancelCauseFunc
	ran    map[frameworktypes.Plugin]bool
	errs   []error
}

// begin begins a cycle.
func (w *watch) begin(cancel context.CancelCauseFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cancel, w.ran, w.errs = cancel, map[frameworktypes.Plugin]bool{}, nil
}

// started is true once a plugin has run. Then the framework's informers have synced.
func (w *watch) started() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.ran) > 0
}

// err joins what plugins returned.
func (w *watch) err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return errors.Join(w.errs...)
}

var errAgain = errors.New("the framework started the cycle again, because it could not finish it")

// run runs a plugin once, unless the cycle is over. The framework calls plugins then too, with empty informers.
func (w *watch) run(ctx context.Context, plugin frameworktypes.Plugin, do func() *frameworktypes.Status) *frameworktypes.Status {
	w.mu.Lock()
	err := context.Cause(ctx)
	if w.ran[plugin] && err == nil {
		err = errAgain
		w.cancel(err)
	}
	if err == nil {
		w.ran[plugin] = true
	}
	w.mu.Unlock()
	status := &frameworktypes.Status{Err: err}
	if err == nil {
		status = do()
	}
	if status != nil && status.Err != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.errs = append(w.errs, fmt.Errorf("%s: %w", plugin.Name(), status.Err))
	}
	return status
}

// watched returns the registry with plugins that are built with guarded evictions, and that the watch sees run.
func watched(registry pluginregistry.Registry, guard *cycle.Client, w *watch) pluginregistry.Registry {
	all := pluginregistry.NewRegistry()
	for name, plugin := range registry {
		build := plugin.PluginBuilder
		plugin.PluginBuilder = func(ctx context.Context, args runtime.Object, handle frameworktypes.Handle) (frameworktypes.Plugin, error) {
			built, err := build(ctx, args, guard.Handle(handle))
			if err != nil {
				return nil, err
			}
			switch built.(type) {
			case frameworktypes.DeschedulePlugin, frameworktypes.BalancePlugin:
				return &watchedPlugin{built, w}, nil
			default:
				return built, nil
			}
		}
		all[name] = plugin
	}
	return all
}

// watchedPlugin is one that deschedules or balances. The framework asks for what the type in the registry can do.
type watchedPlugin struct {
	frameworktypes.Plugin
	watch *watch
}

// Deschedule implements DeschedulePlugin.
func (p *watchedPlugin) Deschedule(ctx context.Context, nodes []*corev1.Node) *frameworktypes.Status {
	return p.watch.run(ctx, p, func() *frameworktypes.Status {
		return p.Plugin.(frameworktypes.DeschedulePlugin).Deschedule(ctx, nodes)
	})
}

// Balance implements BalancePlugin.
func (p *watchedPlugin) Balance(ctx context.Context, nodes []*corev1.Node) *frameworktypes.Status {
	return p.watch.run(ctx, p, func() *frameworktypes.Status { return p.Plugin.(frameworktypes.BalancePlugin).Balance(ctx, nodes) })
}
