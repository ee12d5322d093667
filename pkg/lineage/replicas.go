package lineage

import (
	"context"
	"errors"
	"fmt"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// Replicas of a spread's workload, which is target: from the snapshot if it is of a built-in kind, and otherwise by one
// request.
func (s *Snapshot) Replicas(ctx context.Context, spread *v1beta1.WorkloadSpread, target client.Object) (int32, error) {
	paths := subset.ReplicaPaths(spread)
	replicas, err := workload.Replicas(target, paths)
	byPaths := len(paths) > 0
	if _, other := s.Owner(spread.Namespace, workload.TargetOf(spread)); other && byPaths || !byPaths && !errors.Is(err, workload.ErrNeedsScale) {
		return replicas, err
	}
	return LiveReplicas(ctx, s.live, spread)
}

// LiveReplicas of a spread's workload, by one request.
func LiveReplicas(ctx context.Context, live client.Client, spread *v1beta1.WorkloadSpread) (int32, error) {
	paths, ref := subset.ReplicaPaths(spread), spread.Spec.TargetReference
	key := client.ObjectKey{Namespace: spread.Namespace, Name: ref.Name}
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind))
	object.SetNamespace(key.Namespace)
	object.SetName(key.Name)
	kind, builtIn := workload.BuiltIn(workload.TargetOf(spread).Kind)
	if builtIn || len(paths) > 0 {
		var of client.Object = object
		if builtIn {
			of = kind.NewObject()
		}
		if err := live.Get(ctx, key, of); err != nil {
			return 0, fmt.Errorf("reading the workload: %w", err)
		}
		return workload.Replicas(of, paths)
	}
	return ReplicasOfScale(ctx, live, object)
}

// ReplicasOfScale is how many pods an object asks for by its scale subresource.
func ReplicasOfScale(ctx context.Context, live client.SubResourceClientConstructor, of *unstructured.Unstructured) (int32, error) {
	scale := &unstructured.Unstructured{}
	scale.SetGroupVersionKind(autoscalingv1.SchemeGroupVersion.WithKind("Scale"))
	if err := live.SubResource("scale").Get(ctx, of, scale); err != nil {
		return 0, fmt.Errorf("reading the workload's scale: %w", err)
	}
	return workload.OfScale(scale)
}
