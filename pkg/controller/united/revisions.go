package united

import (
	"context"
	"fmt"
	"maps"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
	model "github.com/berth-project/berth/pkg/united"
)

// mostCollisions bounds the names that are tried for one ControllerRevision.
const mostCollisions = 10

// ensureRevision returns the name of the ControllerRevision of the template, which exists and is the latest. collisions makes the name unique. A ControllerRevision of the UnitedDeployment that has the template
// already keeps its name, such as one that OpenKruise has made: the name is in the pods, and another one would replace them all.
func (r *reconciler) ensureRevision(ctx context.Context, ud *v1beta1.UnitedDeployment, m *memory) (name string, collisions int32, _ error) {
	first, history := ptr.Deref(ud.Status.CollisionCount, 0), r.historyOf(ud)
	for collisions = first; collisions < first+mostCollisions; collisions++ {
		data, hash, err := model.RevisionOf(&ud.Spec.Template, collisions)
		if err != nil {
			return "", 0, err
		}
		if hash == m.hash {
			return m.revision, collisions, nil
		}
		name = ud.Name + "-" + hash
		if collisions == first {
			all, err := history.List(ctx)
			if err != nil {
				return "", 0, err
			}
			for i := range all {
				if model.SameTemplate(all[i].Data.Raw, data) {
					name, data = all[i].Name, all[i].Data.Raw
				}
			}
		}
		done, err := history.Ensure(ctx, name, data, map[string]string{v1beta1.RevisionLabel: name})
		if err != nil {
			return "", 0, err
		}
		if done {
			m.revision, m.hash = name, hash
			return name, collisions, nil
		}
	}
	return "", 0, fmt.Errorf("making a ControllerRevision: the last of %d names is %s: %w", mostCollisions, name,
		apierrors.NewAlreadyExists(appsv1.Resource("controllerrevisions"), name))
}

// historyOf are the ControllerRevisions of a UnitedDeployment.
func (r *reconciler) historyOf(ud *v1beta1.UnitedDeployment) *frame.History {
	return &frame.History{
		Client: r.client, Live: r.live, Owner: ud, Kind: v1beta1.Kind, Namespace: ud.Namespace, Manager: v1beta1.FieldManager, Selector: client.HasLabels{v1beta1.RevisionLabel},
	}
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
	if err := r.historyOf(ud).Prune(ctx, named, limit); err != nil {
		return err
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
