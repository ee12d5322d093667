package workload

import (
	"cmp"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Keep drops from a built-in workload what only its controller needs: the pod template, which is by far the largest part, the status, and the
// annotations, of which one often repeats the template. A ReplicaSet keeps its RevisionAnnotation. From PartialObjectMetadata it drops the
// annotations. It changes the object, leaves other types alone, and is a transform for caches.
func Keep(obj any) (any, error) {
	var revision string
	switch w := obj.(type) {
	case *appsv1.Deployment:
		w.Spec.Template, w.Status = corev1.PodTemplateSpec{}, appsv1.DeploymentStatus{}
	case *appsv1.ReplicaSet:
		w.Spec.Template, w.Status = corev1.PodTemplateSpec{}, appsv1.ReplicaSetStatus{}
		revision = w.Annotations[RevisionAnnotation]
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
		if revision != "" {
			object.SetAnnotations(map[string]string{RevisionAnnotation: revision})
		}
	}
	return obj, nil
}

// RevisionAnnotation of a ReplicaSet is its number in the history of its Deployment. The Deployment controller sets it.
const RevisionAnnotation = "deployment.kubernetes.io/revision"

// CompareRevisions orders the ReplicaSets of a Deployment. The last one is that which the Deployment rolls out, or has rolled out.
func CompareRevisions(a, b *appsv1.ReplicaSet) int {
	revisionOf := func(rs *appsv1.ReplicaSet) int {
		revision, _ := strconv.Atoi(rs.Annotations[RevisionAnnotation]) // 0 if somebody has removed it
		return revision
	}
	return cmp.Or(cmp.Compare(revisionOf(a), revisionOf(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time))
}
