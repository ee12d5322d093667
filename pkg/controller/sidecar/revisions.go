package sidecar

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
	model "github.com/berth-project/berth/pkg/sidecar"
)

// hashLength is how much of the hash of a version is in the name of its ControllerRevision.
const hashLength = 10

// historyOf are the ControllerRevisions of a set. A set has no namespace, and they are in Berth's.
func (r *reconciler) historyOf(set *v1beta1.SidecarSet) *frame.History {
	return &frame.History{
		Client: r.client, Live: r.live, Owner: set, Kind: v1beta1.Kind, Namespace: r.namespace, Manager: v1beta1.FieldManager,
		Selector: client.MatchingLabels{v1beta1.NameLabel: set.Name},
	}
}

// ensureRevision makes sure that the ControllerRevision of the set exists, and is the latest, and remembers it.
func (r *reconciler) ensureRevision(ctx context.Context, set *v1beta1.SidecarSet, policy *model.Policy, m *memory) error {
	name, version := set.Name+"-"+policy.Whole()[:hashLength], set.Labels[v1beta1.CustomVersionLabel]
	if name == m.revision && version == m.version {
		return nil
	}
	data, err := json.Marshal(&policy.Content)
	if err != nil {
		return err
	}
	labels := map[string]string{v1beta1.NameLabel: set.Name}
	if version != "" {
		labels[v1beta1.CustomVersionLabel] = version
	}
	done, err := r.historyOf(set).Ensure(ctx, name, data, labels)
	if err != nil {
		return err
	}
	if !done { // that of an earlier set of the name is about to be deleted
		return fmt.Errorf("ControllerRevision %s in namespace %s is not of this SidecarSet; delete it", name, r.namespace)
	}
	m.revision, m.version = name, version
	return nil
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
	return r.historyOf(set).Prune(ctx, named, policy.History)
}
