package frame

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// History is the ControllerRevisions of one object.
type History struct {
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Owner is the object, and Kind its kind. Namespace is where its ControllerRevisions are.
	Owner     metav1.Object
	Kind      schema.GroupVersionKind
	Namespace string
	// Selector is labels that all of them have.
	Selector client.ListOption
	// Manager is the field manager of the writes.
	Manager client.FieldOwner
}

// Ensure makes sure that a ControllerRevision with the data exists, has the labels, and is the latest of its owner. A name stands for the data. It returns false if the name is
// somebody else's, or of other data, or about to be free.
func (h *History) Ensure(ctx context.Context, name string, data []byte, labels map[string]string) (bool, error) {
	all, err := h.List(ctx)
	if err != nil {
		return false, err
	}
	var latest int64
	for i := range all {
		latest = max(latest, all[i].Revision)
	}
	wanted := &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: h.Namespace, Name: name, Labels: labels, OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(h.Owner, h.Kind)},
		},
		Data:     runtime.RawExtension{Raw: data},
		Revision: latest + 1,
	}
	err = h.Client.Create(ctx, wanted, h.Manager)
	if err == nil {
		return true, nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return false, fmt.Errorf("making ControllerRevision %s: %w", name, err)
	}
	has := &appsv1.ControllerRevision{}
	if err := h.Live.Get(ctx, client.ObjectKeyFromObject(wanted), has); err != nil {
		return false, fmt.Errorf("reading ControllerRevision %s: %w", name, err)
	}
	owner := metav1.GetControllerOfNoCopy(has)
	if owner != nil && owner.UID != h.Owner.GetUID() || !has.DeletionTimestamp.IsZero() || !sameJSON(has.Data.Raw, data) {
		return false, nil
	}
	before := has.DeepCopy()
	if owner == nil { // an earlier object of the name has left it behind
		has.OwnerReferences = append(has.OwnerReferences, wanted.OwnerReferences...)
	}
	if owner == nil || has.Revision != latest {
		has.Revision = latest + 1
	}
	if has.Labels == nil {
		has.Labels = map[string]string{}
	}
	maps.Copy(has.Labels, labels)
	if equality.Semantic.DeepEqual(before, has) {
		return true, nil
	}
	if err := h.Client.Update(ctx, has, h.Manager); err != nil {
		return false, fmt.Errorf("updating ControllerRevision %s: %w", name, err)
	}
	return true, nil
}

func sameJSON(a, b []byte) bool {
	var one, other any
	return json.Unmarshal(a, &one) == nil && json.Unmarshal(b, &other) == nil && equality.Semantic.DeepEqual(one, other)
}

// List reads the ControllerRevisions of the owner from the API server, oldest first.
func (h *History) List(ctx context.Context) ([]appsv1.ControllerRevision, error) {
	var list appsv1.ControllerRevisionList
	if err := h.Live.List(ctx, &list, client.InNamespace(h.Namespace), h.Selector); err != nil {
		return nil, fmt.Errorf("listing ControllerRevisions: %w", err)
	}
	all := slices.DeleteFunc(list.Items, func(revision appsv1.ControllerRevision) bool { return !metav1.IsControlledBy(&revision, h.Owner) })
	slices.SortFunc(all, func(a, b appsv1.ControllerRevision) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	return all, nil
}

// Prune deletes the oldest ControllerRevisions above the limit, of those that nobody names.
func (h *History) Prune(ctx context.Context, named sets.Set[string], limit int32) error {
	all, err := h.List(ctx)
	if err != nil {
		return err
	}
	old := slices.DeleteFunc(all, func(revision appsv1.ControllerRevision) bool { return named.Has(revision.Name) })
	for i := range old[:max(len(old)-int(limit), 0)] {
		err := h.Client.Delete(ctx, &old[i], client.Preconditions{UID: &old[i].UID, ResourceVersion: &old[i].ResourceVersion})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("deleting ControllerRevision %s: %w", old[i].Name, err)
		}
	}
	return nil
}
