package snapshot

import (
	"context"
	"errors"
	"fmt"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	"github.com/berth-project/berth/pkg/workload"
)

// Replicas of a spread's workload, which is target: from the snapshot if it is of a built-in kind, and otherwise by one request.
func (s *Snapshot) Replicas(ctx context.Context, spread *v1alpha1.WorkloadSpread, target client.Object) (int32, error) {
	replicas, err := workload.Replicas(target, spread.Spec.TargetFilter)
	filter := spread.Spec.TargetFilter
	byPaths := filter != nil && len(filter.ReplicasPathList) > 0
	if _, other := s.Owner(spread.Namespace, workload.TargetOf(spread)); other && byPaths || !byPaths && !errors.Is(err, workload.ErrNeedsScale) {
		return replicas, err
	}
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(schema.FromAPIVersionAndKind(spread.Spec.TargetReference.APIVersion, spread.Spec.TargetReference.Kind))
	object.SetNamespace(spread.Namespace)
	object.SetName(spread.Spec.TargetReference.Name)
	if byPaths {
		if err := s.live.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
			return 0, fmt.Errorf("reading the workload: %w", err)
		}
		return workload.Replicas(object, filter)
	}
	answer := &unstructured.Unstructured{}
	answer.SetGroupVersionKind(autoscalingv1.SchemeGroupVersion.WithKind("Scale"))
	if err := s.live.SubResource("scale").Get(ctx, object, answer); err != nil {
		return 0, fmt.Errorf("reading the workload's scale: %w", err)
	}
	scale := &autoscalingv1.Scale{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(answer.Object, scale); err != nil {
		return 0, fmt.Errorf("reading the workload's scale: %w", err)
	}
	return workload.OfScale(scale), nil
}
