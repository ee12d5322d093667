package spread

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
	var pods []corev1.Pod
	err := f.Below(ctx, namespace, workload, func(owner types.UID, divided func(map[string]string) bool) error {
		var owned corev1.PodList
		if err := f.Reader.List(ctx, &owned, lineage.OwnedBy(namespace, owner)...); err != nil {
			return fmt.Errorf("listing pods: %w", err)
		}
		for i := range owned.Items {
			if !divided(owned.Items[i].Labels) {
				pods = append(pods, owned.Items[i])
			}
		}
		return nil
	})
	return pods, err
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

// latestRevision is the revision that a Deployment rolls out, or has rolled out. It is empty for other workloads: their pods have one controller for
// all revisions, or no revisions.
func (f *family) latestRevision(ctx context.Context, of client.Object) (string, error) {
	if _, ok := of.(*appsv1.Deployment); !ok {
		return "", nil
	}
	var sets appsv1.ReplicaSetList
	if err := f.Reader.List(ctx, &sets, lineage.OwnedBy(of.GetNamespace(), of.GetUID())...); err != nil {
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
