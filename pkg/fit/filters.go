package fit

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	schedulermetrics "k8s.io/kubernetes/pkg/scheduler/metrics"

	"github.com/berth-project/berth/pkg/podstate"
)

// Filters are those of kube-scheduler, on a picture of the cluster that is yet to be taken.
type Filters struct {
	framework framework.Framework
	picture   *picture
	claims    *claims
	notices   podstate.Notices
	// undo takes back what plugins reserved for the pods that were put on nodes of the picture, for instance volumes.
	undo []func()
}

// leftOut are plugins that filter by what this package has no part in: devices, whose allocation is made up while a pod
// is scheduled, and preemption. Pods with device claims are Unknown.
var leftOut = map[string]bool{names.DynamicResources: true, names.DefaultPreemption: true, names.GangScheduling: true}

// NewFilters makes the filters. They register their informers with the factory, which the caller starts; they must have
// synced before a pod is placed. The context bounds the life of the filters. They refuse nodes that announce their end
// by one of the notices. Other plugins than those of kube-scheduler are called first by filters, and last elsewhere.
func NewFilters(ctx context.Context, client kubernetes.Interface, factory informers.SharedInformerFactory, notices podstate.Notices, others ...Plugin) (*Filters, error) {
	schedulermetrics.Register() // the framework writes them
	defaults, err := latest.Default()
	if err != nil {
		return nil, fmt.Errorf("reading the scheduler's defaults: %w", err)
	}
	profile := defaults.Profiles[0]
	var enabled []config.Plugin
	for _, plugin := range profile.Plugins.MultiPoint.Enabled {
		if !leftOut[plugin.Name] {
			enabled = append(enabled, plugin)
		}
	}
	registry := plugins.NewInTreeRegistry()
	for _, other := range others {
		registry[other.Name] = other.New
		profile.SchedulerName = other.Profile
		enabled = append(enabled, config.Plugin{Name: other.Name})
		profile.Plugins.Filter.Enabled = append(profile.Plugins.Filter.Enabled, config.Plugin{Name: other.Name}) // it refuses most nodes
		profile.Plugins.Score.Enabled = append(profile.Plugins.Score.Enabled, config.Plugin{Name: other.Name, Weight: other.Weight})
	}
	profile.Plugins.MultiPoint.Enabled = enabled
	p, c := newPicture(), claimsOf(factory)
	f, err := frameworkruntime.NewFramework(ctx, registry, &profile,
		frameworkruntime.WithClientSet(client),
		frameworkruntime.WithInformerFactory(factoryWithClaims{factory, c}),
		frameworkruntime.WithSnapshotSharedLister(p),
		frameworkruntime.WithPodNominator(noNominations{}),
		frameworkruntime.WithLogger(klog.Logger{}), // it reports what is configured here on purpose
		frameworkruntime.WithSharedCSIManager(nodevolumelimits.NewCSIManager(factory.Storage().V1().CSINodes().Lister())),
	)
	if err != nil {
		return nil, fmt.Errorf("making the scheduler's filters: %w", err)
	}
	return &Filters{framework: f, picture: p, claims: c, notices: notices}, nil
}

// noNominations says that no pod is nominated: in the picture such pods are on their nodes.
type noNominations struct{ fwk.PodNominator }

func (noNominations) NominatedPodsForNode(string) []fwk.PodInfo { return nil }

// unknown is why nothing can be said about the pod. Nil if something can.
func (f *Filters) unknown(pod *corev1.Pod) error {
	if len(pod.Spec.ResourceClaims) > 0 {
		return errors.New("only the scheduler can allocate the devices that the pod claims")
	}
	return f.claims.prepare(pod, nil)
}

// put puts a pod on a node of the picture, with what plugins reserve for it. State is that of the filters, which
// accepted the node.
func (f *Filters) put(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node string) error {
	if err := f.reserve(ctx, state, pod, node); err != nil {
		return err
	}
	placed := pod.DeepCopy()
	placed.Spec.NodeName = node
	return f.picture.add(placed)
}

func (f *Filters) reserve(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node string) error {
	undo := func() { f.framework.RunReservePluginsUnreserve(ctx, state, pod, node) }
	if status := f.framework.RunReservePluginsReserve(ctx, state, pod, node); !status.IsSuccess() {
		undo()
		return status.AsError()
	}
	f.undo = append(f.undo, undo)
	return nil
}

// forget takes back what was reserved and made for the pods of the picture.
func (f *Filters) forget() {
	for _, undo := range f.undo {
		undo()
	}
	f.undo = nil
	clear(f.claims.made)
}

// Close gives up what the filters hold.
func (f *Filters) Close() error { return f.framework.Close() }
