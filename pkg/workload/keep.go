package workload

import (
	"cmp"
	"maps"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
)

// Keep drops from a built-in workload what only its controller needs: the pod template, which is by far the largest
// part, the status, and the annotations, of which one often repeats the template. A ReplicaSet keeps its
// RevisionAnnotation. A child of a UnitedDeployment keeps its annotations but that one, and the numbers of its status.
// From PartialObjectMetadata Keep drops the annotations. It changes the object, leaves other types alone, and is a
// transform for caches.
func Keep(obj any) (any, error) {
	object, isObject := obj.(metav1.Object)
	if !isObject {
		return obj, nil
	}
	child := isChild(object)
	kept := map[string]string{}
	switch w := obj.(type) {
	case *appsv1.Deployment:
		status := appsv1.DeploymentStatus{}
		if was := &w.Status; child {
			status = appsv1.DeploymentStatus{ObservedGeneration: was.ObservedGeneration, Replicas: was.Replicas, UpdatedReplicas: was.UpdatedReplicas,
				AvailableReplicas: was.AvailableReplicas}
			for _, c := range was.Conditions {
				if c.Type == appsv1.DeploymentReplicaFailure {
					status.Conditions = append(status.Conditions, appsv1.DeploymentCondition{Type: c.Type, Status: c.Status, LastTransitionTime: c.LastTransitionTime})
				}
			}
		}
		w.Spec.Template, w.Status = corev1.PodTemplateSpec{}, status
	case *appsv1.ReplicaSet:
		w.Spec.Template, w.Status = corev1.PodTemplateSpec{}, appsv1.ReplicaSetStatus{}
		if revision := w.Annotations[RevisionAnnotation]; revision != "" {
			kept[RevisionAnnotation] = revision
		}
	case *appsv1.StatefulSet:
		status := appsv1.StatefulSetStatus{}
		if was := &w.Status; child {
			status = appsv1.StatefulSetStatus{ObservedGeneration: was.ObservedGeneration, Replicas: was.Replicas, UpdatedReplicas: was.UpdatedReplicas,
				AvailableReplicas: was.AvailableReplicas}
		}
		w.Spec.Template, w.Spec.VolumeClaimTemplates, w.Status = corev1.PodTemplateSpec{}, nil, status
	case *batchv1.Job:
		w.Spec.Template, w.Status = corev1.PodTemplateSpec{}, batchv1.JobStatus{}
	case *metav1.PartialObjectMetadata:
	default:
		return obj, nil
	}
	if child {
		maps.Copy(kept, object.GetAnnotations())
		delete(kept, corev1.LastAppliedConfigAnnotation)
	}
	object.SetManagedFields(nil)
	object.SetAnnotations(nil)
	if len(kept) > 0 {
		object.SetAnnotations(kept)
	}
	return obj, nil
}

// isChild is true for an object whose controller is a UnitedDeployment.
func isChild(object metav1.Object) bool {
	owner := ControllerOf(object)
	return owner != nil && owner.Kind == v1beta1.Kind.GroupKind()
}

// RevisionAnnotation of a ReplicaSet is its number in the history of its Deployment. The Deployment controller sets it.
const RevisionAnnotation = "deployment.kubernetes.io/revision"

// CompareRevisions orders the ReplicaSets of a Deployment. The last one is that which the Deployment rolls out, or has
// rolled out.
func CompareRevisions(a, b *appsv1.ReplicaSet) int {
	revisionOf := func(rs *appsv1.ReplicaSet) int {
		revision, _ := strconv.Atoi(rs.Annotations[RevisionAnnotation]) // 0 if somebody has removed it
		return revision
	}
	return cmp.Or(cmp.Compare(revisionOf(a), revisionOf(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time))
}
