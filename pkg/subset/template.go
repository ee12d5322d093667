package subset

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Require adds a term to the required node affinity of a pod's spec, as a JSON decoder returns it: every term of the
// pod gets the requirements too. A nil term, and one without requirements, changes nothing. It changes the maps of the
// spec.
func Require(spec map[string]any, term *corev1.NodeSelectorTerm) error {
	if term == nil || isEmpty(term) {
		return nil
	}
	affinity := makeChild(makeChild(spec, "affinity"), "nodeAffinity")
	const key = "requiredDuringSchedulingIgnoredDuringExecution"
	var own corev1.NodeSelector
	if err := decode(affinity[key], &own); err != nil {
		return fmt.Errorf("reading the required node affinity of the pod: %w", err)
	}
	terms, narrowed, _ := and(own.NodeSelectorTerms, []corev1.NodeSelectorTerm{*term})
	if !narrowed {
		return nil
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&corev1.NodeSelector{NodeSelectorTerms: terms})
	if err != nil {
		return fmt.Errorf("writing the required node affinity: %w", err)
	}
	affinity[key] = object
	return nil
}

// Tolerate adds tolerations to a pod's spec, as a JSON decoder returns it, unless the pod has them. It changes the maps
// of the spec.
func Tolerate(spec map[string]any, tolerations []corev1.Toleration) error {
	var own []corev1.Toleration
	if err := decode(spec["tolerations"], &own); err != nil {
		return fmt.Errorf("reading the tolerations of the pod: %w", err)
	}
	present, _ := spec["tolerations"].([]any)
	all := slices.Clip(present)
	for i := range tolerations {
		if hasToleration(own, &tolerations[i]) {
			continue
		}
		object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&tolerations[i])
		if err != nil {
			return fmt.Errorf("writing a toleration: %w", err)
		}
		all = append(all, object)
	}
	if len(all) > 0 {
		spec["tolerations"] = all
	}
	return nil
}

// decode reads content, as a JSON decoder returns it, into a value. Nil leaves the value as it is.
func decode(content, into any) error {
	if content == nil {
		return nil
	}
	encoded, err := json.Marshal(content)
	if err != nil {
		return err
	}
	return json.Unmarshal(encoded, into)
}
