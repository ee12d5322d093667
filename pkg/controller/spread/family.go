package spread

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/lineage"
	"github.com/berth-project/berth/pkg/workload"
)

// family knows the owners of pods, through the lineage, and the pods of a workload that a spread divides. Objects that it returns are shared and must
// not be changed.
type family struct {
	*lineage.Lineage
}

// podsBelow are the pods below a workload, except those that a spread of a nearer owner divides.
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
			winner, err := f.Winner(ctx, namespace, child)
			if err != nil {
				return nil, err
			}
			if winner != nil {
				divided = append(divided[:len(divided):len(divided)], f.dividedBy(winner))
			}
			branches = append(branches, branch{uid: child.UID, divided: divided})
		}
	}
	return pods, nil
}

// isBelow is true for the pods that podsBelow lists.
func (f *family) isBelow(ctx context.Context, pod *corev1.Pod, workloadUID types.UID) (below bool, _ error) {
	_, err := f.Climb(ctx, pod.Namespace, workload.ControllerOf(pod), func(owner workload.Owner) (bool, error) {
		if below = owner.UID == workloadUID; below {
			return true, nil
		}
		nearer, err := f.Winner(ctx, pod.Namespace, owner)
		return nearer != nil && f.Compiled(nearer).Divides(pod.Labels), err
	})
	return below, err
}

func (f *family) podsOwnedBy(ctx context.Context, namespace string, uid types.UID) ([]corev1.Pod, error) {
	var pods corev1.PodList
	if err := f.Reader.List(ctx, &pods, ownedBy(namespace, uid)...); err != nil {
		return nil, fmt.Errorf("listing pods: %w", err)
	}
	return pods.Items, nil
}

func (f *family) ownersOwnedBy(ctx context.Context, namespace string, uid types.UID) ([]workload.Owner, error) {
	var owners []workload.Owner
	for kind, list := range f.NewLists(namespace) {
		if err := f.Reader.List(ctx, list, ownedBy(namespace, uid)...); err != nil {
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

// latestRevision is the revision that a Deployment rolls out, or has rolled out. It is empty for other workloads: their pods have one controller for
// all revisions, or no revisions.
func (f *family) latestRevision(ctx context.Context, of client.Object) (string, error) {
	if _, ok := of.(*appsv1.Deployment); !ok {
		return "", nil
	}
	var sets appsv1.ReplicaSetList
	if err := f.Reader.List(ctx, &sets, ownedBy(of.GetNamespace(), of.GetUID())...); err != nil {
		return "", fmt.Errorf("listing ReplicaSets: %w", err)
	}
	var latest *appsv1.ReplicaSet
	for i := range sets.Items {
		if set := &sets.Items[i]; latest == nil || workload.CompareRevisions(set, latest) > 0 {
			latest = set
		}
	}
	if latest == nil {
		return "", nil
	}
	return latest.Labels[appsv1.DefaultDeploymentUniqueLabelKey], nil
}

func ownedBy(namespace string, uid types.UID) []client.ListOption {
	return []client.ListOption{client.InNamespace(namespace), client.MatchingFields{frame.ControllerField: string(uid)}, client.UnsafeDisableDeepCopy}
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

// dividedBy is true for the pods that a spread divides, of those below its workload.
func (f *family) dividedBy(spread *v1beta1.WorkloadSpread) podPredicate {
	compiled := f.Compiled(spread)
	return func(pod *corev1.Pod) bool { return compiled.Divides(pod.Labels) }
}
