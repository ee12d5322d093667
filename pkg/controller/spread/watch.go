package spread

import (
	"context"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/podstate"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// affectedSpreads are the spreads whose status may depend on an object. One too many costs a reconcile that writes nothing. One too few leaves a
// status wrong.
type affectedSpreads func(context.Context, client.Object) sets.Set[reconcile.Request]

// watch says how the controller watches a kind.
type watch struct {
	object   client.Object
	affected affectedSpreads
	matters  predicate.Predicate
	// restructures is true for an update after which pods may belong to other spreads or subsets. The creation or deletion of an object always counts
	// as one. Nil for pods: a pod's events are only about itself.
	restructures func(client.Object, client.Object) bool
}

// watches are the watches from the start.
func (f *family) watches() []watch {
	all := []watch{
		{&v1beta1.WorkloadSpread{}, f.ofSpread, spreadMatters, specChanged},
		{&corev1.Pod{}, f.ofPod, podMatters, nil},
		{&corev1.Node{}, f.ofNode, nodeMatters, always},
		{&corev1.ConfigMap{}, f.ofKruiseKinds, predicate.Funcs{}, always},
	}
	for kind, typed := range workload.Watched() {
		all = append(all, watch{typed.NewObject(), f.ofWorkload(kind), workloadMatters, hasOtherOwner})
	}
	return all
}

// watchOf is the watch of a kind of workloads that was found later.
func (f *family) watchOf(object *metav1.PartialObjectMetadata) watch {
	return watch{object, f.ofWorkload(object.GroupVersionKind().GroupKind()), predicate.Funcs{}, hasOtherOwner}
}

// affectedBy are the spreads that an event affects. It records what has changed for them.
func (w watch) affectedBy(changes *changes) func(ctx context.Context, object, other client.Object) sets.Set[reconcile.Request] {
	return func(ctx context.Context, object, other client.Object) sets.Set[reconcile.Request] {
		affected := w.affected(ctx, object)
		for request := range affected {
			if w.restructures == nil {
				changes.ofPod(request.NamespacedName, object.GetName())
			} else if other == nil || w.restructures(object, other) {
				changes.ofEverything(request.NamespacedName)
			}
		}
		return affected
	}
}

func hasOtherOwner(before, after client.Object) bool {
	return before.GetUID() != after.GetUID() || workload.ControllerUID(before) != workload.ControllerUID(after)
}

// ofPod are the spreads of the workloads above the pod.
func (f *family) ofPod(ctx context.Context, pod client.Object) sets.Set[reconcile.Request] {
	return f.affected(ctx, pod)
}

// ofWorkload are the spreads of an object of the kind, and of the workloads above it.
func (f *family) ofWorkload(kind schema.GroupKind) affectedSpreads {
	return func(ctx context.Context, object client.Object) sets.Set[reconcile.Request] {
		return f.affected(ctx, object, workload.Owner{Kind: kind, Name: object.GetName(), UID: object.GetUID()})
	}
}

// ofSpread are the spread itself, other spreads of its workload, and those of the workloads above it, which gain or lose the pods of this spread.
func (f *family) ofSpread(ctx context.Context, object client.Object) sets.Set[reconcile.Request] {
	affected := sets.New(requestFor(object))
	if spread, ok := object.(*v1beta1.WorkloadSpread); ok {
		workload := workload.TargetOf(spread)
		f.climb(ctx, spread.Namespace, &workload, affected)
	}
	return affected
}

// ofNode are the spreads of the pods on the node.
func (f *family) ofNode(ctx context.Context, node client.Object) sets.Set[reconcile.Request] {
	affected := sets.New[reconcile.Request]()
	var pods corev1.PodList
	if err := f.Reader.List(ctx, &pods, client.MatchingFields{frame.NodeField: node.GetName()}, client.UnsafeDisableDeepCopy); err != nil {
		klog.FromContext(ctx).Error(err, "Listing the pods of a node", "node", node.GetName())
		return affected
	}
	climbed := sets.New[types.UID]()
	for i := range pods.Items {
		if uid := workload.ControllerUID(&pods.Items[i]); !climbed.Has(uid) {
			climbed.Insert(uid)
			affected = affected.Union(f.ofPod(ctx, &pods.Items[i]))
		}
	}
	return affected
}

// ofKruiseKinds are the spreads of custom kinds. The list of OpenKruise has changed.
func (f *family) ofKruiseKinds(ctx context.Context, _ client.Object) sets.Set[reconcile.Request] {
	return f.spreads(ctx, func(spread *v1beta1.WorkloadSpread) bool {
		_, builtIn := workload.BuiltIn(workload.TargetOf(spread).Kind)
		return !builtIn
	})
}

// spreads are those that pick picks. Nil picks all.
func (f *family) spreads(ctx context.Context, pick func(*v1beta1.WorkloadSpread) bool) sets.Set[reconcile.Request] {
	all := sets.New[reconcile.Request]()
	var spreads v1beta1.WorkloadSpreadList
	if err := f.Reader.List(ctx, &spreads, client.UnsafeDisableDeepCopy); err != nil {
		klog.FromContext(ctx).Error(err, "Listing WorkloadSpreads")
		return all
	}
	for i := range spreads.Items {
		if pick == nil || pick(&spreads.Items[i]) {
			all.Insert(requestFor(&spreads.Items[i]))
		}
	}
	return all
}

// affected are the spreads of the object itself, if it is also passed as an owner, and of all owners above it. The object need not be in the cache:
// it may just have been deleted. If the kind of an owner is not watched yet, its objects cause events once it is.
func (f *family) affected(ctx context.Context, object client.Object, self ...workload.Owner) sets.Set[reconcile.Request] {
	affected := sets.New[reconcile.Request]()
	namespace := object.GetNamespace()
	divided, err := f.HasSpreads(ctx, namespace)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Listing WorkloadSpreads", "namespace", namespace)
		return affected
	}
	if !divided {
		return affected
	}
	for _, o := range self {
		f.addSpreadsOf(ctx, namespace, o, affected)
	}
	f.climb(ctx, namespace, workload.ControllerOf(object), affected)
	return affected
}

// climb adds the spreads that name an owner, its owner, and so on.
func (f *family) climb(ctx context.Context, namespace string, from *workload.Owner, affected sets.Set[reconcile.Request]) {
	_, err := f.Climb(ctx, namespace, from, func(owner workload.Owner) (bool, error) {
		f.addSpreadsOf(ctx, namespace, owner, affected)
		return false, nil
	})
	if err != nil {
		klog.FromContext(ctx).Error(err, "Looking for the owner of a workload", "namespace", namespace)
	}
}

func (f *family) addSpreadsOf(ctx context.Context, namespace string, o workload.Owner, affected sets.Set[reconcile.Request]) {
	spreads, err := f.SpreadsNaming(ctx, namespace, o)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Listing WorkloadSpreads of a workload", "kind", o.Kind, "workload", klog.KRef(namespace, o.Name))
		return
	}
	for i := range spreads {
		affected.Insert(requestFor(&spreads[i]))
	}
}

func requestFor(object metav1.Object) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}}
}

// spreadMatters also passes status changes: a status that another client has written is corrected.
var spreadMatters = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	before, after := e.ObjectOld.(*v1beta1.WorkloadSpread), e.ObjectNew.(*v1beta1.WorkloadSpread)
	return !subset.SamePolicy(before, after) || !equality.Semantic.DeepEqual(before.Status, after.Status)
}}

// podMatters drops updates that change nothing the model or the status reads.
var podMatters = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	before, after := e.ObjectOld.(*corev1.Pod), e.ObjectNew.(*corev1.Pod)
	was, _ := podstate.IsUnschedulable(before)
	is, _ := podstate.IsUnschedulable(after)
	return was != is || workload.ControllerUID(before) != workload.ControllerUID(after) ||
		!equality.Semantic.DeepEqual(before.Labels, after.Labels) ||
		!reflect.DeepEqual(subset.Observe(before, nil), subset.Observe(after, nil))
}}

// specChanged: the spec of a spread decides about pods, its status does not.
func specChanged(before, after client.Object) bool {
	return before.GetUID() != after.GetUID() || before.GetGeneration() != after.GetGeneration()
}

// always: node events are already filtered to what decides about pods.
func always(client.Object, client.Object) bool { return true }

// workloadMatters: replicas are part of the spec, so the generation changes with them. A Deployment that goes back to an old ReplicaSet gives it a new
// number.
var workloadMatters = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	return e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() || hasOtherOwner(e.ObjectOld, e.ObjectNew) ||
		e.ObjectOld.GetAnnotations()[workload.RevisionAnnotation] != e.ObjectNew.GetAnnotations()[workload.RevisionAnnotation]
}}

// nodeMatters: subsets select nodes by labels and name.
var nodeMatters = predicate.LabelChangedPredicate{}
