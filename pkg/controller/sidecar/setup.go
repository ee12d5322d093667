package sidecar

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
	model "github.com/berth-project/berth/pkg/sidecar"
	"github.com/berth-project/berth/pkg/watches"
)

// Setup adds the controller of SidecarSets to the manager. It has a cache of its own for pods, because it needs more of them than others. The ControllerRevisions are in a namespace,
// and watched is the state of the manager's watch of SidecarSets.
func Setup(ctx context.Context, mgr ctrl.Manager, watched *watches.State, revisions string) error {
	pods, err := cache.New(mgr.GetConfig(), cache.Options{
		Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(),
		ByObject: map[client.Object]cache.ByObject{&corev1.Pod{}: {Transform: keepOfPod, UnsafeDisableDeepCopy: ptr.To(true)}},
	})
	if err != nil {
		return fmt.Errorf("making the cache of pods: %w", err)
	}
	if err := mgr.Add(pods); err != nil {
		return fmt.Errorf("adding the cache of pods: %w", err)
	}
	r := &reconciler{
		client: mgr.GetClient(), pods: pods, live: mgr.GetAPIReader(), watched: watched, events: mgr.GetEventRecorder("berth-controller"), clock: clock.RealClock{}, namespace: revisions, measures: newMeasures(),
	}
	c, err := frame.New("sidecarset", mgr, r, r.measures)
	if err != nil {
		return err
	}
	if err := c.Watch(source.Kind(mgr.GetCache(), &v1beta1.SidecarSet{}, &handler.TypedEnqueueRequestForObject[*v1beta1.SidecarSet]{})); err != nil {
		return fmt.Errorf("watching SidecarSets: %w", err)
	}
	if err := c.Watch(source.Kind(pods, &corev1.Pod{}, handler.TypedEnqueueRequestsFromMapFunc(r.concerned))); err != nil {
		return fmt.Errorf("watching pods: %w", err)
	}
	if err := c.Watch(source.Func(r.lookWhileInterrupted)); err != nil {
		return fmt.Errorf("watching the watch of SidecarSets: %w", err)
	}
	if _, err := mgr.GetCache().GetInformer(ctx, &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}}); err != nil {
		return fmt.Errorf("watching namespaces: %w", err)
	}
	return nil
}

// interruptedInterval is how often the API server is asked for sets while their watch is interrupted.
const interruptedInterval = time.Second

// lookWhileInterrupted asks for a round of no set, which calls askFor, again and again while the watch of sets is interrupted.
func (r *reconciler) lookWhileInterrupted(ctx context.Context, queue frame.Queue) error {
	go wait.UntilWithContext(ctx, func(context.Context) {
		if r.watched.Interrupted() {
			queue.Add(reconcile.Request{})
		}
	}, interruptedInterval)
	return nil
}

// concerned are the sets that a pod has, and those that may pick it.
func (r *reconciler) concerned(ctx context.Context, pod *corev1.Pod) (all []reconcile.Request) {
	var list v1beta1.SidecarSetList
	if err := r.client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		klog.FromContext(ctx).Error(err, "Listing SidecarSets from the cache; they see the change of a pod late")
	}
	for i := range list.Items {
		set := &list.Items[i]
		selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
		if _, has := model.VersionOf(pod, set.Name); has || err == nil && selector.Matches(labels.Set(pod.Labels)) {
			all = append(all, reconcile.Request{NamespacedName: types.NamespacedName{Name: set.Name}})
		}
	}
	return all
}

// keepOfPod drops what the model does not read.
func keepOfPod(obj any) (any, error) {
	pod, is := obj.(*corev1.Pod)
	if !is {
		return obj, nil
	}
	kept := &corev1.Pod{ObjectMeta: pod.ObjectMeta}
	kept.ManagedFields, kept.OwnerReferences = nil, nil
	if !strings.Contains(pod.Annotations[v1beta1.HashAnnotation], `"hash"`) {
		kept.Annotations = nil // it has no sidecars
		kept.Status.Phase = pod.Status.Phase
		return kept, nil
	}
	delete(kept.Annotations, corev1.LastAppliedConfigAnnotation)
	kept.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName, InitContainers: keepOfContainers(pod.Spec.InitContainers), Containers: keepOfContainers(pod.Spec.Containers)}
	kept.Status = corev1.PodStatus{
		Phase: pod.Status.Phase, ObservedGeneration: pod.Status.ObservedGeneration, Conditions: pod.Status.Conditions,
		InitContainerStatuses: keepOfStatuses(pod.Status.InitContainerStatuses), ContainerStatuses: keepOfStatuses(pod.Status.ContainerStatuses),
	}
	return kept, nil
}

func keepOfContainers(containers []corev1.Container) (kept []corev1.Container) {
	for i := range containers {
		c := &containers[i]
		kept = append(kept, corev1.Container{Name: c.Name, Image: c.Image, Resources: c.Resources, RestartPolicy: c.RestartPolicy})
	}
	return kept
}

func keepOfStatuses(statuses []corev1.ContainerStatus) (kept []corev1.ContainerStatus) {
	for i := range statuses {
		s := &statuses[i]
		kept = append(kept, corev1.ContainerStatus{Name: s.Name, Image: s.Image, ImageID: s.ImageID, ContainerID: s.ContainerID, Ready: s.Ready, RestartCount: s.RestartCount})
	}
	return kept
}
