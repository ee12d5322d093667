// Package subsetevictor is the descheduling filter SubsetEvictor: it keeps pods that must not or cannot be evicted now from strategies of others,
// with the same rules and the same budgets as Berth's own strategies. See README.md.
package subsetevictor

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"sigs.k8s.io/descheduler/pkg/framework/pluginregistry"
	frameworktypes "sigs.k8s.io/descheduler/pkg/framework/types"

	"github.com/berth-project/berth/pkg/descheduler/cycle"
)

// Name of the filter in descheduler policies.
const Name = "SubsetEvictor"

// Plugin is the filter.
type Plugin struct {
	world            *cycle.World
	include, exclude sets.Set[string]
	ignoreBudgets    bool
}

var _ frameworktypes.EvictorPlugin = &Plugin{}

// Register makes the filter known, on the world that it is to share with strategies.
func Register(world *cycle.World, registry pluginregistry.Registry) {
	build := func(_ context.Context, args runtime.Object, _ frameworktypes.Handle) (frameworktypes.Plugin, error) {
		return New(world, args)
	}
	pluginregistry.Register(Name, build, &Plugin{}, &Args{}, Validate, SetDefaults, registry)
}

// New makes the filter from Args that were defaulted.
func New(world *cycle.World, obj runtime.Object) (*Plugin, error) {
	args, ok := obj.(*Args)
	if !ok {
		return nil, fmt.Errorf("%s: want %T, got %T", Name, args, obj)
	}
	p := &Plugin{world: world, ignoreBudgets: args.IgnoreBudgets}
	if args.Namespaces != nil {
		p.include, p.exclude = sets.New(args.Namespaces.Include...), sets.New(args.Namespaces.Exclude...)
	}
	return p, nil
}

// Name of the plugin.
func (p *Plugin) Name() string { return Name }

// Filter is false for pods that must not be evicted, or whose budgets have no room now. It takes nothing: it is asked about many pods of which few are
// evicted.
func (p *Plugin) Filter(pod *corev1.Pod) bool {
	return !p.looksAt(pod) || cycle.Evictable(pod) && p.within(pod, (*cycle.Cycle).Spares)
}

// PreEvictionFilter is called by some strategies right before a pod is evicted. It is false if a budget has no room for it, and otherwise takes that
// room for the rest of the cycle.
func (p *Plugin) PreEvictionFilter(pod *corev1.Pod) bool {
	return !p.looksAt(pod) || p.within(pod, (*cycle.Cycle).Spare)
}

// within asks the cycle about the budgets of a pod.
func (p *Plugin) within(pod *corev1.Pod, ask func(*cycle.Cycle, *corev1.Pod) bool) bool {
	if p.ignoreBudgets {
		return true
	}
	c, err := p.world.Cycle()
	if err != nil {
		klog.Background().Error(err, "Keeping a pod, because budgets are not known", "pod", klog.KObj(pod))
		return false
	}
	return ask(c, pod)
}

func (p *Plugin) looksAt(pod *corev1.Pod) bool {
	return (p.include.Len() == 0 || p.include.Has(pod.Namespace)) && !p.exclude.Has(pod.Namespace)
}
