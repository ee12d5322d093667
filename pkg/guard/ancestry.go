package guard

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/workload"
)

// ancestry is the owner chain of a pod. It rules out the workloads that do not own the pod, so that the guard need not ask their budgets. A namespace
// may have hundreds of such budgets, and some whose workload Berth may not read.
//
// Another workload can adopt a pod only after the pod's own workload has orphaned it. The orphan finalizer shows that while the workload is
// being deleted. A workload that is deleted between this check and the operation goes unseen. Its pods go to another workload only if both select the
// same pods, which Kubernetes warns of.
type ancestry struct {
	// owners are named as in the owner reference to each, the pod's controller first. They have no UID, because a budget names its target without one.
	owners []workload.Owner
	// open is true if the pod may have owners that are not known.
	open bool
	// adoptable is true if the last of the owners, or a pod without owners, has no controller and a workload may adopt it.
	adoptable bool
}

// isOf is false only if the workload surely does not own the pod now.
func (a *ancestry) isOf(target *v1beta1.TargetReference) bool {
	return a.open || slices.Contains(a.owners, workload.Owner{Kind: budget.KindOf(target), Name: target.Name})
}

// mayBeOf is false only if the workload surely does not own the pod now and cannot adopt it.
func (a *ancestry) mayBeOf(target *v1beta1.TargetReference) bool {
	return a.adoptable || a.isOf(target)
}

// objects reads the metadata of owners.
type objects = shared[objectKey, *metav1.PartialObjectMetadata]

type objectKey struct {
	kind schema.GroupVersionKind
	name types.NamespacedName
}

func newObjects(live client.Reader) *objects {
	return newShared(func(ctx context.Context, key objectKey) (*metav1.PartialObjectMetadata, error) {
		object := &metav1.PartialObjectMetadata{}
		object.SetGroupVersionKind(key.kind)
		if err := live.Get(ctx, key.name, object); err != nil {
			return nil, fmt.Errorf("reading the metadata of %s %s: %w", key.kind.Kind, key.name, err)
		}
		return object, nil
	})
}

// ancestryOf reads the owner chain of a pod. A read that fails leaves the chain open. The guard then asks the budget, which reports what is wrong.
func ancestryOf(ctx context.Context, o *objects, pod *corev1.Pod) *ancestry {
	a := &ancestry{}
	key := objectKey{corev1.SchemeGroupVersion.WithKind("Pod"), client.ObjectKeyFromObject(pod)}
	var object metav1.Object = pod
	for range workload.LongestOwnerChain {
		ref := metav1.GetControllerOfNoCopy(object)
		if ref == nil {
			a.adoptable = isAdopted(key.kind.GroupKind())
			return a
		}
		above := objectKey{schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind), types.NamespacedName{Namespace: pod.Namespace, Name: ref.Name}}
		a.owners = append(a.owners, workload.Owner{Kind: above.kind.GroupKind(), Name: ref.Name})
		next, err := o.ask(ctx, above).wait(ctx)
		switch {
		case meta.IsNoMatchError(err), apierrors.IsForbidden(err):
			return a // the census of a budget reads no further either
		case apierrors.IsNotFound(err), err == nil && (next.UID != ref.UID || next.DeletionTimestamp != nil && !leavesBehind(next)):
			a.open = !stillNames(ctx, o, key, object.GetUID(), ref.UID)
			return a
		case err != nil, leavesBehind(next):
			a.open = true
			return a
		}
		key, object = above, next
	}
	a.open = true
	return a
}

// isAdopted is true for kinds that a workload adopts if they have no controller and its selector picks them.
func isAdopted(kind schema.GroupKind) bool {
	return kind == schema.GroupKind{Kind: "Pod"} || kind == schema.GroupKind{Group: appsv1.GroupName, Kind: "ReplicaSet"}
}

// leavesBehind is true for an object that is being deleted and orphans its dependents.
func leavesBehind(object *metav1.PartialObjectMetadata) bool {
	return object.DeletionTimestamp != nil && slices.Contains(object.Finalizers, metav1.FinalizerOrphanDependents)
}

// stillNames is true if an object still names an owner that is gone or is being deleted. Kubernetes then deletes the object with its owner: nobody
// orphaned it before.
func stillNames(ctx context.Context, o *objects, key objectKey, uid, owner types.UID) bool {
	object, err := o.ask(ctx, key).wait(ctx)
	return err == nil && object.UID == uid && workload.ControllerUID(object) == owner
}
