package united

import (
	"context"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/podstate"
	"github.com/berth-project/berth/pkg/workload"
)

func (r *reconciler) itself(_ context.Context, object client.Object) []string {
	r.noteOrphaning(object)
	return []string{object.GetName()}
}

// ofChild is the UnitedDeployment of a child, or all of the namespace for an object that one of them may adopt.
func (r *reconciler) ofChild(ctx context.Context, object client.Object) []string {
	owner := workload.ControllerOf(object)
	if owner != nil && owner.Kind == unitedDeployment {
		return []string{owner.Name}
	}
	if owner != nil || !hasSubset(object) || !r.isServed() {
		return nil
	}
	var all v1beta1.UnitedDeploymentList
	if err := r.client.List(ctx, &all, client.InNamespace(object.GetNamespace()), client.UnsafeDisableDeepCopy); err != nil {
		klog.FromContext(ctx).Error(err, "Listing UnitedDeployments", "namespace", object.GetNamespace())
		return nil
	}
	var names []string
	for i := range all.Items {
		names = append(names, all.Items[i].Name)
	}
	return names
}

// belowChild is the UnitedDeployment above a pod or ReplicaSet. All pods of children have the label of their subset, so that other pods cost nothing.
func (r *reconciler) belowChild(ctx context.Context, object client.Object) []string {
	if !hasSubset(object) {
		return nil
	}
	var names []string
	_, err := r.owners.Climb(ctx, object.GetNamespace(), workload.ControllerOf(object), func(owner workload.Owner) (bool, error) {
		if owner.Kind == unitedDeployment {
			names = append(names, owner.Name)
		}
		return len(names) > 0, nil
	})
	if err != nil {
		klog.FromContext(ctx).Error(err, "Looking for the UnitedDeployment of an object", "object", klog.KObj(object))
	}
	return names
}

func hasSubset(object metav1.Object) bool {
	_, has := object.GetLabels()[v1beta1.SubsetNameLabel]
	return has
}

// unitedMatters also passes status changes: a status that another client has written is corrected. Annotations matter to a deletion.
var unitedMatters = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*v1beta1.UnitedDeployment)
	after, okAfter := e.ObjectNew.(*v1beta1.UnitedDeployment)
	return !ok || !okAfter || before.UID != after.UID || before.Generation != after.Generation || before.Annotations[v1alpha1.TakeOverAnnotation] != after.Annotations[v1alpha1.TakeOverAnnotation] || !after.DeletionTimestamp.IsZero() || !equality.Semantic.DeepEqual(before.Status, after.Status)
}}

// childMatters drops updates of what the cache does not keep, such as most conditions: what it has is then the same but for the resourceVersion.
var childMatters = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	before := e.ObjectOld.DeepCopyObject().(client.Object)
	before.SetResourceVersion(e.ObjectNew.GetResourceVersion())
	return !equality.Semantic.DeepEqual(before, e.ObjectNew)
}}

// ownerMatters: a ReplicaSet only leads from a pod to its Deployment.
var ownerMatters = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	return !workload.HaveSameController(e.ObjectOld, e.ObjectNew)
}}

// podMatters drops updates that change nothing the model reads.
var podMatters = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*corev1.Pod)
	after, okAfter := e.ObjectNew.(*corev1.Pod)
	if !ok || !okAfter {
		return true
	}
	return !workload.HaveSameController(before, after) || podstate.HasEnded(before) != podstate.HasEnded(after) || podstate.IsActive(before) != podstate.IsActive(after) ||
		!reflect.DeepEqual(podOf(before), podOf(after)) // equality.Semantic knows metav1.Time, and panics at a time.Time
}}
