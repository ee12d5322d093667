package lineage

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/workload"
)

// ControllerField indexes objects by the UID of their controller. The cache must have the index for pods and for all
// owners of pods.
const ControllerField = "metadata.controller"

// OwnedBy are the options for a list of the objects whose controller has the UID. The objects are shared with the cache
// and must not be changed.
func OwnedBy(namespace string, uid types.UID) []client.ListOption {
	return []client.ListOption{client.InNamespace(namespace), client.MatchingFields{ControllerField: string(uid)}, client.UnsafeDisableDeepCopy}
}

// Below calls visit with the UID of a workload, and with those of all owners of pods below it. divided is true for the
// labels of a pod of that owner if the spread of a nearer owner divides the pod.
func (l *Lineage) Below(ctx context.Context, namespace string, top types.UID, visit func(owner types.UID, divided func(labels map[string]string) bool) error) error {
	type branch struct {
		uid types.UID
		// nearer are the spreads of the owners between the workload and this branch.
		nearer []*Spread
	}
	visited := sets.New(top)
	for branches := []branch{{uid: top}}; len(branches) > 0; branches = branches[1:] {
		here := branches[0]
		if err := visit(here.uid, func(labels map[string]string) bool {
			return slices.ContainsFunc(here.nearer, func(s *Spread) bool { return s.Divides(labels) })
		}); err != nil {
			return err
		}
		children, err := l.ownersOwnedBy(ctx, namespace, here.uid)
		if err != nil {
			return err
		}
		for _, child := range children {
			if visited.Has(child.UID) {
				continue
			}
			visited.Insert(child.UID)
			winner, err := l.Winner(ctx, namespace, child)
			if err != nil {
				return err
			}
			nearer := here.nearer
			if winner != nil {
				nearer = append(slices.Clip(nearer), l.Compiled(winner))
			}
			branches = append(branches, branch{child.UID, nearer})
		}
	}
	return nil
}

func (l *Lineage) ownersOwnedBy(ctx context.Context, namespace string, uid types.UID) ([]workload.Owner, error) {
	var owners []workload.Owner
	for kind, list := range l.NewLists(namespace) {
		if err := l.Reader.List(ctx, list, OwnedBy(namespace, uid)...); err != nil {
			return nil, fmt.Errorf("listing objects of kind %s: %w", kind, err)
		}
		if err := meta.EachListItem(list, func(item runtime.Object) error {
			object := item.(client.Object)
			owners = append(owners, workload.Owner{Kind: kind, Name: object.GetName(), UID: object.GetUID()})
			return nil
		}); err != nil {
			return nil, fmt.Errorf("listing objects of kind %s: %w", kind, err)
		}
	}
	return owners, nil
}

// Node is a node of the cache, which callers must not change. It is nil if the name is empty or the node is gone.
func (l *Lineage) Node(ctx context.Context, name string) (*corev1.Node, error) {
	if name == "" {
		return nil, nil
	}
	node := &corev1.Node{}
	if err := l.Reader.Get(ctx, types.NamespacedName{Name: name}, node, client.UnsafeDisableDeepCopy); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("reading node %s: %w", name, err)
	}
	return node, nil
}
