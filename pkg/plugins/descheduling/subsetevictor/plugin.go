// Package subsetevictor is the descheduling filter SubsetEvictor: it keeps strategies of others from evicting pods that must not, or cannot, be
// evicted now, by the same rules and budgets as Berth's own strategies. See README.md.
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
	// look returns what the current cycle knows.
	look             func() (look, error)
	include, exclude sets.Set[string]
	ignoreBudgets    bool
	ignoreReturn     bool
}

// look is what a cycle knows about pods.
type look interface {
	// IsPaused is true for a pod of a paused spread.
	IsPaused(pod *corev1.Pod) bool
	// Spares is true if the budgets of a pod have room for its eviction.
	Spares(pod *corev1.Pod) bool
	// ComesBack is true if the pod's replacement would go to the same node.
	ComesBack(pod *corev1.Pod) bool
}

var _ frameworktypes.EvictorPlugin = &Plugin{}

// Register registers the filter. It shares the world with strategies.
func Register(world *cycle.World, registry pluginregistry.Registry) {
	build := func(ctx context.Context, args runtime.Object, handle frameworktypes.Handle) (frameworktypes.Plugin, error) {
		if err := world.Join(ctx, handle); err != nil {
			return nil, fmt.Errorf("%s: %w", Name, err)
		}
		return newPlugin(args, func() (look, error) { return world.Look() })
	}
	pluginregistry.Register(Name, build, &Plugin{}, &Args{}, Validate, SetDefaults, registry)
}

// newPlugin makes the filter from defaulted Args.
func newPlugin(obj runtime.Object, current func() (look, error)) (*Plugin, error) {
	args, ok := obj.(*Args)
	if !ok {
		return nil, fmt.Errorf("%s: want %T, got %T", Name, args, obj)
	}
	p := &Plugin{look: current, ignoreBudgets: args.IgnoreBudgets, ignoreReturn: args.IgnoreReturn}
	if args.Namespaces != nil {
		p.include, p.exclude = sets.New(args.Namespaces.Include...), sets.New(args.Namespaces.Exclude...)
	}
	return p, nil
}

// Name of the plugin.
func (p *Plugin) Name() string { return Name }

// Filter is false for pods that must not be evicted, whose spread is paused, whose budgets have no room now, or whose replacements come back to the same node.
// Failed pods may be removed.
func (p *Plugin) Filter(pod *corev1.Pod) bool {
	return !p.looksAt(pod) || (cycle.Evictable(pod) || cycle.Removable(pod)) && p.passes(pod)
}

// PreEvictionFilter is false if the pod's spread is paused, a budget has no room for the pod, or its replacement comes back to the same node. It takes no room:
// strategies of the framework call it for all pods of a node, and evict few of them.
func (p *Plugin) PreEvictionFilter(pod *corev1.Pod) bool {
	return !p.looksAt(pod) || p.passes(pod)
}

// passes checks the spread of a pod, its budgets and its subset.
func (p *Plugin) passes(pod *corev1.Pod) bool {
	current, err := p.look()
	if err != nil {
		klog.Background().Error(err, "Keeping a pod, because spreads and budgets are not known", "pod", klog.KObj(pod))
		return false
	}
	return !current.IsPaused(pod) && (p.ignoreBudgets || current.Spares(pod)) && (p.ignoreReturn || cycle.Removable(pod) || !current.ComesBack(pod))
}

func (p *Plugin) looksAt(pod *corev1.Pod) bool {
	return (p.include.Len() == 0 || p.include.Has(pod.Namespace)) && !p.exclude.Has(pod.Namespace)
}
