package subset

import (
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

// PatchEarly returns a pod, decoded as for ApplyToObject, with the patch of a subset and the record of the pick. With
// None it gets the record only. Labels by which the workload selects its pods stay as they are. The selector is nil if
// it is not known. The original is not changed.
func (p *Policy) PatchEarly(pod map[string]any, index int, admitted v1beta1.AdmittedSubset, selector labels.Selector) (map[string]any, error) {
	var patch *Patch
	if index != None {
		patch = p.Subsets[index].Patch
	}
	patched, err := patch.ApplyToObject(pod)
	if err != nil {
		return nil, err
	}
	note, err := json.Marshal(admitted)
	if err != nil {
		return nil, err
	}
	metadata := makeChild(patched, "metadata")
	for _, key := range patch.Breaks(selector) {
		after := makeChild(metadata, "labels")
		if value, had := child(child(pod, "metadata"), "labels")[key]; had {
			after[key] = value
		} else {
			delete(after, key)
		}
	}
	annotations := makeChild(metadata, "annotations")
	annotations[v1beta1.AdmittedAnnotation] = string(note)
	if p.Kruise && index != None {
		if annotations[v1beta1.MatchedAnnotation], err = p.knownRecord(&admitted); err != nil {
			return nil, err
		}
		if err := p.Subsets[index].prefer(patched); err != nil {
			return nil, err
		}
	}
	return patched, nil
}

// makeChild is the object at a key. It is created if it does not exist.
func makeChild(of map[string]any, key string) map[string]any {
	object, ok := of[key].(map[string]any)
	if !ok {
		object = map[string]any{}
		of[key] = object
	}
	return object
}

// BindEarly is a copy of a pod as admission makes it when it picks a subset, which may be None, and as the API server
// stores it.
func (p *Policy) BindEarly(pod *corev1.Pod, index int, admitted v1beta1.AdmittedSubset, selector labels.Selector) (*corev1.Pod, error) {
	bound, err := throughJSON(withRequests(pod), func(tree map[string]any) (map[string]any, error) {
		return p.PatchEarly(tree, index, admitted, selector)
	})
	if err != nil {
		return nil, err
	}
	bound = withRequests(bound)
	var constraints Constraints
	if index != None {
		constraints = p.Subsets[index].Constraints
	}
	bound.Spec.SchedulerName = p.SchedulerOf(pod.Spec.SchedulerName)
	constraints.AddTo(bound)
	return bound, nil
}

// withRequests is a copy of a pod whose containers request what they are limited to, unless they say otherwise, as the
// API server stores it.
func withRequests(pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			resources := &containers[i].Resources
			for name, limit := range resources.Limits {
				if _, requested := resources.Requests[name]; requested {
					continue
				}
				if resources.Requests == nil {
					resources.Requests = corev1.ResourceList{}
				}
				resources.Requests[name] = limit
			}
		}
	}
	return pod
}
