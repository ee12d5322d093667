package workload

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
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
	switch w := object.(type) {
	case *appsv1.Deployment:
		return w.Spec.Selector
	case *appsv1.ReplicaSet:
		return w.Spec.Selector
	case *appsv1.StatefulSet:
		return w.Spec.Selector
	case *batchv1.Job:
		return w.Spec.Selector
	case *appsv1.DaemonSet:
		return w.Spec.Selector
	case *corev1.ReplicationController:
		return &metav1.LabelSelector{MatchLabels: w.Spec.Selector}
	case *unstructured.Unstructured:
		if selector := (&metav1.LabelSelector{}); inSpec(w, "selector", selector) {
			return selector
		}
	}
	return nil
}

// Template is what an object makes its pods from: that of a built-in kind, and spec.template of an object of another kind
// that was read as a whole. It is nil if that is not known.
func Template(object runtime.Object) *corev1.PodTemplateSpec {
	switch w := object.(type) {
	case *appsv1.Deployment:
		return &w.Spec.Template
	case *appsv1.ReplicaSet:
		return &w.Spec.Template
	case *appsv1.StatefulSet:
		return &w.Spec.Template
	case *batchv1.Job:
		return &w.Spec.Template
	case *unstructured.Unstructured:
		if template := (&corev1.PodTemplateSpec{}); inSpec(w, "template", template) {
			return template
		}
	}
	return nil
}

// inSpec reads a field of the spec. It is false if the field is missing, or is something else.
func inSpec(object *unstructured.Unstructured, field string, into any) bool {
	fields, found, _ := unstructured.NestedMap(object.Object, "spec", field)
	return found && runtime.DefaultUnstructuredConverter.FromUnstructured(fields, into) == nil
}

// TemplateLabels are the labels of the pods that an object of a built-in kind creates. It is nil for any other kind.
func TemplateLabels(object runtime.Object) labels.Set {
	switch w := object.(type) {
	case *appsv1.Deployment:
		return w.Spec.Template.Labels
	case *appsv1.ReplicaSet:
		return w.Spec.Template.Labels
	case *appsv1.StatefulSet:
		return w.Spec.Template.Labels
	default:
		return nil
	}
}
