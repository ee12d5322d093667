package controller

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
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

// keyOf names an owner inside its namespace.
func keyOf(o workload.Owner) string { return o.Kind.Group + "/" + o.Kind.Kind + "/" + o.Name }

// parent is the controller of an owner, or nil if it has none or the owner is not known.
func (f *family) parent(ctx context.Context, namespace string, of workload.Owner) (*workload.Owner, error) {
	object, err := f.read(ctx, namespace, of)
	if err != nil || object == nil {
		return nil, err
	}
	return workload.ControllerOf(object), nil
}

// read reads an owner from the cache. It is nil if the owner does not exist, or its kind is not watched.
func (f *family) read(ctx context.Context, namespace string, o workload.Owner) (client.Object, error) {
	object := f.kinds.newObject(o.Kind)
	if object == nil {
		return nil, nil
	}
	err := f.reader.Get(ctx, types.NamespacedName{Namespace: namespace, Name: o.Name}, object, client.UnsafeDisableDeepCopy)
	if apierrors.IsNotFound(err) || err == nil && o.UID != "" && object.GetUID() != o.UID {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s %s: %w", o.Kind.Kind, o.Name, err)
	}
	return object, nil
}

// spreadsOf are the spreads that name the workload.
func (f *family) spreadsOf(ctx context.Context, namespace string, o workload.Owner) ([]v1alpha1.WorkloadSpread, error) {
	var spreads v1alpha1.WorkloadSpreadList
	err := f.reader.List(ctx, &spreads, client.InNamespace(namespace), client.MatchingFields{targetField: keyOf(o)}, client.UnsafeDisableDeepCopy)
	return spreads.Items, err
}

// winner is the spread that divides the workload, or nil.
func (f *family) winner(ctx context.Context, namespace string, o workload.Owner) (*v1alpha1.WorkloadSpread, error) {
	spreads, err := f.spreadsOf(ctx, namespace, o)
	if err != nil {
		return nil, fmt.Errorf("listing the spreads of %s %s: %w", o.Kind.Kind, o.Name, err)
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
			if visited.Has(child.UID) {
				continue
			}
			visited.Insert(child.UID)
			divided := here.divided
			winner, err := f.winner(ctx, namespace, child)
			if err != nil {
				return nil, err
			}
			if winner != nil {
				divided = append(divided[:len(divided):len(divided)], dividedBy(winner))
			}
			branches = append(branches, branch{uid: child.UID, divided: divided})
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

func (f *family) ownersOwnedBy(ctx context.Context, namespace string, uid types.UID) ([]workload.Owner, error) {
	var owners []workload.Owner
	for kind, list := range f.kinds.newLists(namespace) {
		if err := f.reader.List(ctx, list, ownedBy(namespace, uid)...); err != nil {
			return nil, fmt.Errorf("listing objects of kind %s: %w", kind, err)
		}
		err := meta.EachListItem(list, func(item runtime.Object) error {
			object, err := meta.Accessor(item)
			if err == nil {
				owners = append(owners, workload.Owner{Kind: kind, Name: object.GetName(), UID: object.GetUID()})
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
