package workload

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// Selector is by which labels an object of a built-in kind knows its pods. It is nil for any other kind, of which that
// is not known.
func Selector(object runtime.Object) labels.Selector {
	var of *metav1.LabelSelector
	switch w := object.(type) {
	case *appsv1.Deployment:
		of = w.Spec.Selector
	case *appsv1.ReplicaSet:
		of = w.Spec.Selector
	case *appsv1.StatefulSet:
		of = w.Spec.Selector
	case *batchv1.Job:
		of = w.Spec.Selector
	case *appsv1.DaemonSet:
		of = w.Spec.Selector
	case *corev1.ReplicationController:
		return labels.SelectorFromSet(w.Spec.Selector)
	}
	if of == nil {
		return nil
	}
	selector, err := metav1.LabelSelectorAsSelector(of)
	if err != nil {
		return nil // the API server has validated it
	}
	return selector
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
