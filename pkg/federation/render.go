package federation

import (
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
)

// Render is the ReplicaSet in a cluster as it is applied. It has no owner, because that is in another cluster: the label says whose it is.
func (p *Policy) Render(replicas int32, owner types.UID) (map[string]any, error) {
	selector, err := runtime.DefaultUnstructuredConverter.ToUnstructured(p.LabelSelector)
	if err != nil {
		return nil, fmt.Errorf("writing the selector: %w", err)
	}
	labels := map[string]any{}
	for key, value := range p.LabelSelector.MatchLabels {
		labels[key] = value
	}
	maps.Copy(labels, map[string]any{v1alpha1.OwnerLabel: string(owner), v1alpha1.HubLabel: "true"})
	template := runtime.DeepCopyJSON(p.Template)
	metadata := at(template, "metadata")
	podLabels := at(metadata, "labels")
	podLabels[v1alpha1.HubLabel] = "true"
	metadata["labels"], template["metadata"] = podLabels, metadata
	return map[string]any{
		"apiVersion": "apps/v1", "kind": "ReplicaSet",
		"metadata": map[string]any{"namespace": p.Namespace, "name": p.Name, "labels": labels},
		"spec": map[string]any{
			"replicas": int64(replicas), "minReadySeconds": int64(p.MinReadySeconds), "selector": selector, "template": template,
		},
	}, nil
}

// at is the object at a key, or a new one that is not part of the content yet.
func at(content map[string]any, key string) map[string]any {
	if object, is := content[key].(map[string]any); is {
		return object
	}
	return map[string]any{}
}
