package federation

import (
	"errors"
	"maps"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
)

// Render is the ReplicaSet in a cluster as it is applied. It has no owner, because that is in another cluster: the label says whose it is.
func (p *Policy) Render(replicas int32, owner types.UID) map[string]any {
	selector, err := runtime.DefaultUnstructuredConverter.ToUnstructured(p.LabelSelector)
	template := runtime.DeepCopyJSON(p.Template)
	if err = errors.Join(err, unstructured.SetNestedField(template, "true", "metadata", "labels", v1alpha1.HubLabel)); err != nil {
		panic(err) // Compile has seen that they are objects
	}
	labels := map[string]any{}
	for key, value := range p.LabelSelector.MatchLabels {
		labels[key] = value
	}
	maps.Copy(labels, map[string]any{v1alpha1.OwnerLabel: string(owner), v1alpha1.HubLabel: "true"})
	return map[string]any{
		"apiVersion": "apps/v1", "kind": "ReplicaSet",
		"metadata": map[string]any{"namespace": p.Namespace, "name": p.Name, "labels": labels},
		"spec": map[string]any{
			"replicas": int64(replicas), "minReadySeconds": int64(p.MinReadySeconds), "selector": selector, "template": template,
		},
	}
}
