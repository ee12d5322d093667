package united

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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
	model "github.com/berth-project/berth/pkg/united"
)

// mostCollisions bounds the names that are tried for one ControllerRevision.
const mostCollisions = 10

// ensureRevision returns the name of the ControllerRevision of the template, which exists and is the latest. collisions makes the name unique.
func (r *reconciler) ensureRevision(ctx context.Context, ud *v1beta1.UnitedDeployment, m *memory) (name string, collisions int32, _ error) {
	collisions = ptr.Deref(ud.Status.CollisionCount, 0)
	data, hash, err := model.RevisionOf(&ud.Spec.Template, collisions)
	if err != nil {
		return "", 0, err
	}
	if name = ud.Name + "-" + hash; name == m.revision {
		return name, collisions, nil
	}
	all, err := r.revisionsOf(ctx, ud)
	if err != nil {
		return "", 0, err
	}
	var latest int64
	for _, other := range all {
		latest = max(latest, other.Revision)
	}
	for range mostCollisions {
		done, err := r.makeRevision(ctx, ud, name, data, latest)
		if err != nil {
			return "", 0, err
		}
		if done {
			m.revision = name
			return name, collisions, nil
		}
		collisions++
		if data, hash, err = model.RevisionOf(&ud.Spec.Template, collisions); err != nil {
			return "", 0, err
		}
		name = ud.Name + "-" + hash
	}
	return "", 0, fmt.Errorf("making a ControllerRevision: the last of %d names is %s: %w", mostCollisions, name,
		apierrors.NewAlreadyExists(appsv1.Resource("controllerrevisions"), name))
}

// makeRevision creates a ControllerRevision, or takes one that has the same data, and makes it the latest. It is false if somebody else has the name.
func (r *reconciler) makeRevision(ctx context.Context, ud *v1beta1.UnitedDeployment, name string, data []byte, latest int64) (bool, error) {
	revision := &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: ud.Namespace, Name: name, Labels: map[string]string{v1beta1.RevisionLabel: name},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(ud, v1beta1.Kind)},
		},
		Data:     runtime.RawExtension{Raw: data},
		Revision: latest + 1,
	}
	err := r.client.Create(ctx, revision, client.FieldOwner(v1beta1.FieldManager))
	if !apierrors.IsAlreadyExists(err) {
		return err == nil, err
	}
	existing := &appsv1.ControllerRevision{}
	if err := r.live.Get(ctx, client.ObjectKeyFromObject(revision), existing); err != nil {
		return false, fmt.Errorf("reading ControllerRevision %s: %w", name, err)
	}
	owner := metav1.GetControllerOfNoCopy(existing)
	if owner != nil && owner.UID != ud.UID || !existing.DeletionTimestamp.IsZero() || !sameJSON(existing.Data.Raw, data) {
		return false, nil
	}
	if owner != nil && existing.Revision == latest {
		return true, nil
	}
	if owner == nil { // an earlier UnitedDeployment of the name has left it behind
		existing.OwnerReferences = append(existing.OwnerReferences, revision.OwnerReferences...)
	}
	metav1.SetMetaDataLabel(&existing.ObjectMeta, v1beta1.RevisionLabel, name)
	existing.Revision = latest + 1
	if err := r.client.Update(ctx, existing, client.FieldOwner(v1beta1.FieldManager)); err != nil {
		return false, fmt.Errorf("updating ControllerRevision %s: %w", name, err)
	}
	return true, nil
}

func sameJSON(a, b []byte) bool {
	var one, other any
	return json.Unmarshal(a, &one) == nil && json.Unmarshal(b, &other) == nil && equality.Semantic.DeepEqual(one, other)
}

// revisionsOf are the ControllerRevisions of a UnitedDeployment, oldest first.
func (r *reconciler) revisionsOf(ctx context.Context, ud *v1beta1.UnitedDeployment) ([]appsv1.ControllerRevision, error) {
	var list appsv1.ControllerRevisionList
	if err := r.live.List(ctx, &list, client.InNamespace(ud.Namespace), client.HasLabels{v1beta1.RevisionLabel}); err != nil {
		return nil, fmt.Errorf("listing ControllerRevisions: %w", err)
	}
	all := slices.DeleteFunc(list.Items, func(revision appsv1.ControllerRevision) bool { return !metav1.IsControlledBy(&revision, ud) })
	slices.SortFunc(all, func(a, b appsv1.ControllerRevision) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	return all, nil
}

// pruneRevisions deletes the oldest ControllerRevisions above the limit that nobody names. It does so again when other ones are named.
func (r *reconciler) pruneRevisions(ctx context.Context, ud *v1beta1.UnitedDeployment, limit int32, found *children, status *v1beta1.UnitedDeploymentStatus, m *memory) error {
	named := sets.New(status.CurrentRevision, status.UpdatedRevision, ud.Status.CurrentRevision, ud.Status.UpdatedRevision)
	for _, c := range found.all {
		named.Insert(c.Revision)
		for i := range c.Pods {
			named.Insert(c.Pods[i].Revision)
		}
	}
	state := fmt.Sprint(limit, sets.List(named))
	if m.pruned == state {
		return nil
	}
	all, err := r.revisionsOf(ctx, ud)
	if err != nil {
		return err
	}
	old := slices.DeleteFunc(all, func(revision appsv1.ControllerRevision) bool { return named.Has(revision.Name) })
	for i := range old[:max(len(old)-int(limit), 0)] {
		uid := old[i].UID
		err := r.client.Delete(ctx, &old[i], client.Preconditions{UID: &uid, ResourceVersion: ptr.To(old[i].ResourceVersion)})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("deleting ControllerRevision %s: %w", old[i].Name, err)
		}
	}
	maps.DeleteFunc(m.templates, func(name string, _ *model.Template) bool { return !named.Has(name) })
	m.pruned = state
	return nil
}

// templateOf is the template of a revision. It is nil if the revision does not exist any more.
func (r *reconciler) templateOf(ctx context.Context, ud *v1beta1.UnitedDeployment, name string, m *memory) (*model.Template, error) {
	if t, known := m.templates[name]; known {
		return t, nil
	}
	revision := &appsv1.ControllerRevision{}
	err := r.live.Get(ctx, types.NamespacedName{Namespace: ud.Namespace, Name: name}, revision)
	if apierrors.IsNotFound(err) || err == nil && !metav1.IsControlledBy(revision, ud) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading ControllerRevision %s: %w", name, err)
	}
	t, err := model.TemplateIn(revision.Data.Raw)
	if err != nil {
		return nil, fmt.Errorf("reading ControllerRevision %s: %w", name, err)
	}
	m.templates[name] = t
	return t, nil
}
