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
	return appendMissing(spec, "tolerations", tolerations, sameToleration)
}

// appendMissing appends items to the list at a key, unless it has the same ones. It does not change the list that it
// finds there. Nothing to add leaves the key as it is.
func appendMissing[T any](object map[string]any, key string, items []T, same func(a, b *T) bool) error {
	var present []T
	if err := decode(object[key], &present); err != nil {
		return fmt.Errorf("reading %s of the pod: %w", key, err)
	}
	own, _ := object[key].([]any)
	all := slices.Clip(own)
	for i := range items {
		if slices.ContainsFunc(present, func(other T) bool { return same(&other, &items[i]) }) {
			continue
		}
		item, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&items[i])
		if err != nil {
			return fmt.Errorf("writing %s: %w", key, err)
		}
		all = append(all, item)
	}
	if len(all) > 0 {
		object[key] = all
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
