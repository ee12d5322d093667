package workload

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// Selector is LabelSelector, parsed.
func Selector(object runtime.Object) labels.Selector {
	of := LabelSelector(object)
	if of == nil {
		return nil
	}
	selector, err := metav1.LabelSelectorAsSelector(of)
	if err != nil {
		return nil // the API server has validated that of a built-in kind
	}
	return selector
}

// LabelSelector is by which labels an object knows its pods: that of a built-in kind, and spec.selector of an object of
// another kind that was read as a whole. It is nil if that is not known.
func LabelSelector(object runtime.Object) *metav1.LabelSelector {
	if w, is := object.(*unstructured.Unstructured); is {
		if selector := (&metav1.LabelSelector{}); inSpec(w, "selector", selector) {
			return selector
		}
	}
	return PartsOf(object).Selector
}

// Template is what an object makes its pods from: that of a built-in kind, and spec.template of an object of another
// kind that was read as a whole. It is nil if that is not known.
func Template(object runtime.Object) *corev1.PodTemplateSpec {
	if w, is := object.(*unstructured.Unstructured); is {
		if template := (&corev1.PodTemplateSpec{}); inSpec(w, "template", template) {
			return template
		}
	}
	return PartsOf(object).Template
}

// inSpec reads a field of the spec. It is false if the field is missing, or is something else.
func inSpec(object *unstructured.Unstructured, field string, into any) bool {
	fields, found, _ := unstructured.NestedMap(object.Object, "spec", field)
	return found && runtime.DefaultUnstructuredConverter.FromUnstructured(fields, into) == nil
}

// TemplateLabels are the labels of the pods that an object of a built-in kind creates. It is nil for any other kind.
func TemplateLabels(object runtime.Object) labels.Set {
	if template := PartsOf(object).Template; template != nil {
		return template.Labels
	}
	return nil
}
