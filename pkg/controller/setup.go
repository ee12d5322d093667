package controller

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/berth-project/berth/pkg/autoscaler"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	policyv1beta1 "github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/lineage"
	"github.com/berth-project/berth/pkg/turns"
	"github.com/berth-project/berth/pkg/workload"
	"github.com/berth-project/berth/pkg/writers"
)

// Options of the controller.
type Options struct {
	// Clock is the real one if nil.
	Clock clock.PassiveClock
	// NodeAutoscaler knows whether there is a node autoscaler. Nil means that there is none.
	NodeAutoscaler *autoscaler.Detector
}

// Setup adds the status controller of WorkloadSpreads to the manager, whose cache must have been made with CacheOptions. The lineage must be of the
// same manager. The context is used until Setup returns.
func Setup(ctx context.Context, mgr ctrl.Manager, owners *lineage.Lineage, opts Options) error {
	if opts.Clock == nil {
		opts.Clock = clock.RealClock{}
	}
	if err := addIndexes(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	family := &family{owners}
	reconciler := &reconciler{
		client:   mgr.GetClient(),
		live:     mgr.GetAPIReader(),
		family:   family,
		events:   mgr.GetEventRecorder("berth-controller"),
		clock:    opts.Clock,
		pace:     newPace(writeInterval),
		changes:  &changes{},
		measures: newMeasures(),

		autoscaler: opts.NodeAutoscaler,
	}
	if err := metrics.Registry.Register(reconciler.measures); err != nil {
		return fmt.Errorf("registering metrics: %w", err)
	}
	c, err := controller.New("workloadspread", mgr, controller.Options{
		Reconciler:              reconciler,
		MaxConcurrentReconciles: turns.Workers,
		NewQueue:                turns.NewQueue(turns.OfNamespace),
	})
	if err != nil {
		return fmt.Errorf("making the controller: %w", err)
	}
	watch := func(w watch) error {
		if err := c.Watch(source.Kind(mgr.GetCache(), w.object, delayed{w, reconciler.changes}, w.matters)); err != nil {
			return fmt.Errorf("watching %T: %w", w.object, err)
		}
		return nil
	}
	// A replica that does not lead needs the watch when it starts to lead.
	owners.OnStart(func(ctx context.Context, object *metav1.PartialObjectMetadata) error {
		if err := IndexByController(ctx, mgr.GetFieldIndexer(), object); err != nil {
			return err
		}
		return watch(family.watchOf(object))
	})
	for _, w := range family.watches() {
		if err := watch(w); err != nil {
			return err
		}
	}
	return c.Watch(source.Func(func(ctx context.Context, q queue) error {
		opts.NodeAutoscaler.OnChange(func() {
			for request := range family.spreads(ctx, nil) {
				q.Add(request)
			}
		})
		return nil
	}))
}

// CacheOptions keep in memory only what this package reads of the watched objects. Other fields read as empty: to read a field, keep it here first.
// Objects from the cache are shared and must not be changed.
func CacheOptions() cache.Options {
	shared := ptr.To(true)
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&v1beta1.WorkloadSpread{}: {Transform: keepOfSpread},
			&corev1.Pod{}:             {Transform: keepOfPod, UnsafeDisableDeepCopy: shared},
			&corev1.ConfigMap{}: {Namespaces: map[string]cache.Config{workload.KruiseConfiguration.Namespace: {
				FieldSelector: fields.OneTermEqualSelector("metadata.name", workload.KruiseConfiguration.Name),
			}}},
			&corev1.Node{}:        {Transform: keepOfNode, UnsafeDisableDeepCopy: shared},
			&appsv1.Deployment{}:  {Transform: workload.Keep, UnsafeDisableDeepCopy: shared},
			&appsv1.ReplicaSet{}:  {Transform: workload.Keep, UnsafeDisableDeepCopy: shared},
			&appsv1.StatefulSet{}: {Transform: workload.Keep, UnsafeDisableDeepCopy: shared},
			&batchv1.Job{}:        {Transform: workload.Keep, UnsafeDisableDeepCopy: shared},
		},
	}
}

func keepOfSpread(obj any) (any, error) {
	if spread, ok := obj.(*v1beta1.WorkloadSpread); ok {
		writers.Keep(spread)
	}
	return obj, nil
}

func keepOfPod(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	kept := &corev1.Pod{
		ObjectMeta: pod.ObjectMeta,
		Spec:       corev1.PodSpec{NodeName: pod.Spec.NodeName, SchedulerName: schedulerOf(pod)},
		Status:     corev1.PodStatus{Phase: pod.Status.Phase},
	}
	kept.ManagedFields = nil
	kept.Annotations = nil
	for _, key := range []string{v1beta1.MatchedAnnotation, v1beta1.AdmittedAnnotation, v1beta1.PodDeletionCostAnnotation, v1beta1.AskedCostAnnotation, policyv1beta1.NoProtectAnnotation,
		policyv1beta1.SelectorKeysAnnotation} {
		if value, found := pod.Annotations[key]; found {
			metav1.SetMetaDataAnnotation(&kept.ObjectMeta, key, value)
		}
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady || condition.Type == corev1.PodScheduled {
			condition.Message = ""
			kept.Status.Conditions = append(kept.Status.Conditions, condition)
		}
	}
	return kept, nil
}

// schedulerOf is the scheduler that the pod's spec names. The usual names are shared strings, to save memory.
func schedulerOf(pod *corev1.Pod) string {
	for _, usual := range []string{v1beta1.SchedulerName, corev1.DefaultSchedulerName} {
		if pod.Spec.SchedulerName == usual {
			return usual
		}
	}
	return pod.Spec.SchedulerName
}

func keepOfNode(obj any) (any, error) {
	if node, ok := obj.(*metav1.PartialObjectMetadata); ok {
		node.ManagedFields, node.Annotations = nil, nil
	}
	return obj, nil
}

// Indexes of the cache.
const (
	// ControllerField of any object is the UID of its controller.
	ControllerField = "metadata.controller"
	// nodeField of a pod is the node it is bound to.
	nodeField = "spec.nodeName"
)

func addIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	if err := indexer.IndexField(ctx, &corev1.Pod{}, nodeField, nodeNameOf); err != nil {
		return fmt.Errorf("indexing pods by %s: %w", nodeField, err)
	}
	return IndexByController(ctx, indexer, &corev1.Pod{}, &appsv1.Deployment{}, &appsv1.ReplicaSet{}, &appsv1.StatefulSet{}, &batchv1.Job{})
}

// IndexByController makes the cache find objects by ControllerField. A process in which Setup is called has the index for pods and all workloads.
func IndexByController(ctx context.Context, indexer client.FieldIndexer, objects ...client.Object) error {
	for _, object := range objects {
		if err := indexer.IndexField(ctx, object, ControllerField, controllerUIDOf); err != nil {
			return fmt.Errorf("indexing %T by %s: %w", object, ControllerField, err)
		}
	}
	return nil
}

func controllerUIDOf(obj client.Object) []string {
	if ref := metav1.GetControllerOfNoCopy(obj); ref != nil {
		return []string{string(ref.UID)}
	}
	return nil
}

func nodeNameOf(obj client.Object) []string {
	pod, ok := obj.(*corev1.Pod)
	if !ok || pod.Spec.NodeName == "" {
		return nil
	}
	return []string{pod.Spec.NodeName}
}
