package main

import (
	"context"
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
)

// serveStub serves a webhook for the namespace stub. It answers every review with the same patch, which is similar to Berth's.
func (c *creations) serveStub(ctx context.Context) (stop func(), err error) {
	patch, err := stubPatch()
	if err != nil {
		return nil, err
	}
	return c.ServePodWebhook(ctx, stub, patch)
}

// stubPatch is a JSON patch that gives a pod what Berth's webhook gives a pod of a spread.
func stubPatch() ([]byte, error) {
	spread := &v1beta1.WorkloadSpread{}
	if err := yaml.Unmarshal([]byte(spreadOver("web-0")), spread); err != nil {
		return nil, err
	}
	policy, errs := subset.Compile(spread, nil)
	if policy == nil {
		return nil, errs.ToAggregate()
	}
	pod := &corev1.Pod{}
	policy.Constraints.AddTo(pod)
	patch := []map[string]any{
		{"op": "add", "path": "/spec/schedulerName", "value": v1beta1.SchedulerName},
		{"op": "add", "path": "/metadata/annotations", "value": pod.Annotations},
		{"op": "add", "path": "/spec/affinity", "value": pod.Spec.Affinity},
	}
	for i := range pod.Spec.Tolerations {
		patch = append(patch, map[string]any{"op": "add", "path": "/spec/tolerations/-", "value": pod.Spec.Tolerations[i]})
	}
	return json.Marshal(patch)
}
