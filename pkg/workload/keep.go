package workload

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Keep drops from a built-in workload what only its controller needs: the pod template, which is by far the largest part, the status, and the
// annotations, of which one often repeats the template. From PartialObjectMetadata it drops the annotations. It changes the object, leaves other
// types alone, and is a transform for caches.
func Keep(obj any) (any, error) {
	switch w := obj.(type) {
	case *appsv1.Deployment:
		w.Spec.Template, w.Status = corev1.PodTemplateSpec{}, appsv1.DeploymentStatus{}
	case *appsv1.ReplicaSet:
		w.Spec.Template, w.Status = corev1.PodTemplateSpec{}, appsv1.ReplicaSetStatus{}
	case *appsv1.StatefulSet:
		w.Spec.Template, w.Spec.VolumeClaimTemplates, w.Status = corev1.PodTemplateSpec{}, nil, appsv1.StatefulSetStatus{}
	case *batchv1.Job:
		w.Spec.Template, w.Status = corev1.PodTemplateSpec{}, batchv1.JobStatus{}
	case *metav1.PartialObjectMetadata:
	default:
		return obj, nil
	}
	if object, ok := obj.(metav1.Object); ok {
		object.SetManagedFields(nil)
		object.SetAnnotations(nil)
	}
	return obj, nil
}
