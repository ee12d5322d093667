package controller

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// family knows who owns whom, from the cache: upwards from a pod to the spreads that may divide it, and downwards from a workload to the
// pods that a spread divides. Objects that it returns are shared and must not be changed.
type family struct {
	reader client.Reader
	kinds  *kinds
}

// owner is an object that may own pods, directly or through others.
type owner struct {
	kind schema.GroupKind
	name string
	// uid is empty for an owner that is known by name only.
	uid types.UID
}

// key names the owner inside its namespace, without its version.
func (o owner) key() string { return o.kind.Group + "/" + o.kind.Kind + "/" + o.name }

// longestOwnerChain bounds the walk from a pod to its workload. Real chains have two or three links.
const longestOwnerChain = 8

// targetOf is the workload that a spread names.
func targetOf(spread *v1alpha1.WorkloadSpread) owner {
	ref := spread.Spec.TargetReference
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		gv.Group = ref.APIVersion // matches nothing; Compile reports the field
	}
	return owner{kind: schema.GroupKind{Group: gv.Group, Kind: ref.Kind}, name: ref.Name}
}

// controllerOf is the object's controller, or nil.
func controllerOf(object metav1.Object) *owner {
	ref := metav1.GetControllerOfNoCopy(object)
	if ref == nil {
		return nil
	}
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return nil // the API server has validated it
	}
	return &owner{kind: schema.GroupKind{Group: gv.Group, Kind: ref.Kind}, name: ref.Name, uid: ref.UID}
}

func controllerUID(object metav1.Object) types.UID {
	if ref := metav1.GetControllerOfNoCopy(object); ref != nil {
		return ref.UID
	}
	return ""
}

// parent is the controller of an owner, or nil if it has none or the owner is not known.
func (f *family) parent(ctx context.Context, namespace string, of owner) (*owner, error) {
	object, err := f.read(ctx, namespace, of)
	if err != nil || object == nil {
		return nil, err
	}
	return controllerOf(object), nil
}

// read reads an owner from the cache. It is nil if the owner does not exist, or its kind is not watched.
func (f *family) read(ctx context.Context, namespace string, o owner) (client.Object, error) {
	object := f.kinds.newObject(o.kind)
	if object == nil {
		return nil, nil
	}
	err := f.reader.Get(ctx, types.NamespacedName{Namespace: namespace, Name: o.name}, object, client.UnsafeDisableDeepCopy)
	if apierrors.IsNotFound(err) || err == nil && o.uid != "" && object.GetUID() != o.uid {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s %s: %w", o.kind.Kind, o.name, err)
	}
	return object, nil
}

// spreadsOf are the spreads that name the workload.
func (f *family) spreadsOf(ctx context.Context, namespace string, o owner) ([]v1alpha1.WorkloadSpread, error) {
	var spreads v1alpha1.WorkloadSpreadList
	err := f.reader.List(ctx, &spreads, client.InNamespace(namespace), client.MatchingFields{targetField: o.key()}, client.UnsafeDisableDeepCopy)
	return spreads.Items, err
}

// winner is the spread that divides the workload, or nil.
func (f *family) winner(ctx context.Context, namespace string, o owner) (*v1alpha1.WorkloadSpread, error) {
	spreads, err := f.spreadsOf(ctx, namespace, o)
	if err != nil {
		return nil, fmt.Errorf("listing the spreads of %s %s: %w", o.kind.Kind, o.name, err)
	}
	var winner *v1alpha1.WorkloadSpread
	for i := range spreads {
		if winner == nil || workload.Wins(&spreads[i], winner) {
			winner = &spreads[i]
		}
	}
	return winner, nil
}

// podsBelow are the pods that a workload owns, except those that a spread of a nearer owner divides.
func (f *family) podsBelow(ctx context.Context, namespace string, workload types.UID) ([]corev1.Pod, error) {
	type branch struct {
		uid types.UID
		// divided are the pods that spreads between the workload and this branch divide.
		divided []podPredicate
	}
	var pods []corev1.Pod
	visited := sets.New(workload)
	for branches := []branch{{uid: workload}}; len(branches) > 0; branches = branches[1:] {
		here := branches[0]
		owned, err := f.podsOwnedBy(ctx, namespace, here.uid)
		if err != nil {
			return nil, err
		}
		for i := range owned {
			if !anyOf(here.divided, &owned[i]) {
				pods = append(pods, owned[i])
			}
		}
		children, err := f.ownersOwnedBy(ctx, namespace, here.uid)
		if err != nil {
			return nil, err
		}
		for _, child := range children {
			if visited.Has(child.uid) {
				continue
			}
			visited.Insert(child.uid)
			divided := here.divided
			winner, err := f.winner(ctx, namespace, child)
			if err != nil {
				return nil, err
			}
			if winner != nil {
				divided = append(divided[:len(divided):len(divided)], dividedBy(winner))
			}
			branches = append(branches, branch{uid: child.uid, divided: divided})
		}
	}
	return pods, nil
}

func (f *family) podsOwnedBy(ctx context.Context, namespace string, uid types.UID) ([]corev1.Pod, error) {
	var pods corev1.PodList
	if err := f.reader.List(ctx, &pods, ownedBy(namespace, uid)...); err != nil {
		return nil, fmt.Errorf("listing pods: %w", err)
	}
	return pods.Items, nil
}

func (f *family) ownersOwnedBy(ctx context.Context, namespace string, uid types.UID) ([]owner, error) {
	var owners []owner
	for kind, list := range f.kinds.newLists(namespace) {
		if err := f.reader.List(ctx, list, ownedBy(namespace, uid)...); err != nil {
			return nil, fmt.Errorf("listing objects of kind %s: %w", kind, err)
		}
		err := meta.EachListItem(list, func(item runtime.Object) error {
			object, err := meta.Accessor(item)
			if err == nil {
				owners = append(owners, owner{kind: kind, name: object.GetName(), uid: object.GetUID()})
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("listing objects of kind %s: %w", kind, err)
		}
	}
	return owners, nil
}

func ownedBy(namespace string, uid types.UID) []client.ListOption {
	return []client.ListOption{client.InNamespace(namespace), client.MatchingFields{controllerField: string(uid)}, client.UnsafeDisableDeepCopy}
}

type podPredicate func(*corev1.Pod) bool

func anyOf(predicates []podPredicate, pod *corev1.Pod) bool {
	for _, matches := range predicates {
		if matches(pod) {
			return true
		}
	}
	return false
}

// dividedBy are the pods below its workload that a spread divides. One that cannot be used keeps all of them to itself: the scheduler holds
// them until it is corrected.
func dividedBy(spread *v1alpha1.WorkloadSpread) podPredicate {
	policy, errs := subset.Compile(&spread.Spec, field.NewPath("spec"))
	if len(errs) > 0 {
		return func(*corev1.Pod) bool { return true }
	}
	return func(pod *corev1.Pod) bool { return policy.Selects(pod.Labels) }
}
