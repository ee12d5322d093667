package descheduling

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	"sigs.k8s.io/descheduler/pkg/framework/pluginregistry"
	frameworktypes "sigs.k8s.io/descheduler/pkg/framework/types"

	"github.com/berth-project/berth/pkg/descheduler/cycle"
)

// SubsetEvictorArgs configure the filter. Every field is optional.
//
// +kubebuilder:object:root=true
type SubsetEvictorArgs struct {
	metav1.TypeMeta `json:",inline"`
	Scope           `json:",inline"`

	// IgnoreBudgets leaves budgets to the API server, which is then asked about every pod.
	IgnoreBudgets bool `json:"ignoreBudgets,omitempty"`
	// IgnoreReturn lets pods go although their replacements come back to the same node, because it is the only one of
	// their subset. Strategies that renew pods want that, for instance PodLifeTime.
	IgnoreReturn bool `json:"ignoreReturn,omitempty"`
}

// evictor is the filter SubsetEvictor: it keeps strategies of others from evicting pods that must not, or cannot, be
// evicted now, by the same rules and budgets as Berth's own strategies.
type evictor struct {
	args *SubsetEvictorArgs
	// look returns what the current cycle knows.
	look func() (look, error)
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

var _ frameworktypes.EvictorPlugin = &evictor{}

// addEvictor registers the filter. It shares the world with strategies.
func addEvictor(world *cycle.World, registry pluginregistry.Registry) {
	build := func(ctx context.Context, obj runtime.Object, handle frameworktypes.Handle) (frameworktypes.Plugin, error) {
		if err := world.Join(ctx, handle); err != nil {
			return nil, fmt.Errorf("%s: %w", subsetEvictor, err)
		}
		return &evictor{obj.(*SubsetEvictorArgs), func() (look, error) { return world.Look() }}, nil
	}
	pluginregistry.Register(subsetEvictor, build, &evictor{}, &SubsetEvictorArgs{}, validator(subsetEvictor), func(runtime.Object) {}, registry) // the zero values are the defaults
}

// Name of the plugin.
func (p *evictor) Name() string { return subsetEvictor }

// Filter is false for pods that must not be evicted, whose spread is paused, whose budgets have no room now, or whose
// replacements come back to the same node. Failed pods may be removed.
func (p *evictor) Filter(pod *corev1.Pod) bool {
	return !p.args.Has(pod.Namespace) || (cycle.Evictable(pod) || cycle.Removable(pod)) && p.passes(pod)
}

// PreEvictionFilter is false if the pod's spread is paused, a budget has no room for the pod, or its replacement comes
// back to the same node. It takes no room: strategies of the framework call it for all pods of a node, and evict few of
// them.
func (p *evictor) PreEvictionFilter(pod *corev1.Pod) bool {
	return !p.args.Has(pod.Namespace) || p.passes(pod)
}

// passes checks the spread of a pod, its budgets and its subset.
func (p *evictor) passes(pod *corev1.Pod) bool {
	current, err := p.look()
	if err != nil {
		klog.Background().Error(err, "Keeping a pod, because spreads and budgets are not known", "pod", klog.KObj(pod))
		return false
	}
	return !current.IsPaused(pod) && (p.args.IgnoreBudgets || current.Spares(pod)) && (p.args.IgnoreReturn || cycle.Removable(pod) || !current.ComesBack(pod))
}
