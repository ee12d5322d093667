package sidecar

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
	model "github.com/berth-project/berth/pkg/sidecar"
)

// hashLength is how much of the hash of a version is in the name of its ControllerRevision.
const hashLength = 10

// ensureRevision makes sure that the ControllerRevision of the set exists, and is the latest, and remembers it.
func (r *reconciler) ensureRevision(ctx context.Context, set *v1beta1.SidecarSet, policy *model.Policy, m *memory) error {
	name, version := set.Name+"-"+policy.Whole()[:hashLength], set.Labels[v1beta1.CustomVersionLabel]
	if name == m.revision && version == m.version {
		return nil
	}
	if err := r.makeRevision(ctx, set, policy, name, version); err != nil {
		return err
	}
	m.revision, m.version = name, version
	return nil
}

func (r *reconciler) makeRevision(ctx context.Context, set *v1beta1.SidecarSet, policy *model.Policy, name, version string) error {
	data, err := json.Marshal(&policy.Content)
	if err != nil {
		return err
	}
	all, err := r.revisionsOf(ctx, set)
	if err != nil {
		return err
	}
	wanted := &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: r.namespace, Name: name, Labels: map[string]string{v1beta1.NameLabel: set.Name},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, v1beta1.Kind)},
		},
		Data: runtime.RawExtension{Raw: data}, Revision: 1,
	}
	if version != "" {
		wanted.Labels[v1beta1.CustomVersionLabel] = version
	}
	at := slices.IndexFunc(all, func(has appsv1.ControllerRevision) bool { return has.Name == name })
	if len(all) > 0 {
		wanted.Revision = all[len(all)-1].Revision
		if at != len(all)-1 {
			wanted.Revision++
		}
	}
	if at < 0 {
		if err := r.client.Create(ctx, wanted, client.FieldOwner(v1beta1.FieldManager)); err != nil {
			return fmt.Errorf("making ControllerRevision %s: %w", name, err)
		}
		return nil
	}
	has := &all[at]
	if has.Revision == wanted.Revision && equality.Semantic.DeepEqual(has.Labels, wanted.Labels) && metav1.IsControlledBy(has, set) {
		return nil
	}
	has.Revision, has.Labels, has.OwnerReferences = wanted.Revision, wanted.Labels, wanted.OwnerReferences
	if err := r.client.Update(ctx, has, client.FieldOwner(v1beta1.FieldManager)); err != nil {
		return fmt.Errorf("updating ControllerRevision %s: %w", name, err)
	}
	return nil
}

// revisionsOf are the ControllerRevisions of a set, oldest first.
func (r *reconciler) revisionsOf(ctx context.Context, set *v1beta1.SidecarSet) ([]appsv1.ControllerRevision, error) {
	var list appsv1.ControllerRevisionList
	if err := r.live.List(ctx, &list, client.InNamespace(r.namespace), client.MatchingLabels{v1beta1.NameLabel: set.Name}); err != nil {
		return nil, fmt.Errorf("listing ControllerRevisions: %w", err)
	}
	slices.SortFunc(list.Items, func(a, b appsv1.ControllerRevision) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), strings.Compare(a.Name, b.Name))
	})
	return list.Items, nil
}

// pruneRevisions deletes the oldest ControllerRevisions above the limit that nobody names. It looks when the latest one has changed.
func (r *reconciler) pruneRevisions(ctx context.Context, set *v1beta1.SidecarSet, policy *model.Policy, latest string, found *found) error {
	if set.Status.LatestRevision == latest {
		return nil
	}
	named := sets.New(latest)
	if policy.Revision != nil {
		named.Insert(ptr.Deref(policy.Revision.RevisionName, ""))
	}
	for i := range found.pods {
		version, _ := model.VersionOf(found.pods[i].Pod, set.Name)
		named.Insert(version.ControllerRevision)
	}
	all, err := r.revisionsOf(ctx, set)
	if err != nil {
		return err
	}
	old := slices.DeleteFunc(all, func(revision appsv1.ControllerRevision) bool { return named.Has(revision.Name) })
	for i := range old[:max(len(old)-int(policy.History), 0)] {
		err := r.client.Delete(ctx, &old[i], client.Preconditions{UID: &old[i].UID, ResourceVersion: &old[i].ResourceVersion})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("deleting ControllerRevision %s: %w", old[i].Name, err)
		}
	}
	return nil
}
