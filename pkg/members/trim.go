package members

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// OwnerIndex is a field index of the cached pods and ReplicaSets: the name of the controller that owns the object.
const OwnerIndex = "owner"

// trim drops managed fields, the annotation of kubectl apply, and most of the pods' spec. A caller who needs these reads them live. The API server would refuse to write a workload as it
// is here.
func trim(object any) (any, error) {
	if meta, is := object.(metav1.Object); is {
		meta.SetManagedFields(nil)
		delete(meta.GetAnnotations(), corev1.LastAppliedConfigAnnotation)
	}
	switch object := object.(type) {
	case *appsv1.Deployment:
		object.Spec.Template.Spec = corev1.PodSpec{}
	case *appsv1.StatefulSet:
		object.Spec.Template.Spec, object.Spec.VolumeClaimTemplates = corev1.PodSpec{}, nil
	case *appsv1.ReplicaSet:
		object.Spec.Template.Spec = corev1.PodSpec{}
	case *corev1.Pod:
		trimPod(object)
	}
	return object, nil
}

// trimPod keeps what says which pod it is, whose, where, and how it fares.
func trimPod(pod *corev1.Pod) {
	pod.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName, SchedulerName: pod.Spec.SchedulerName, SchedulingGates: pod.Spec.SchedulingGates}
	kept := corev1.PodStatus{Phase: pod.Status.Phase, StartTime: pod.Status.StartTime, Reason: pod.Status.Reason}
	for _, condition := range pod.Status.Conditions {
		switch condition.Type {
		case corev1.PodScheduled:
			kept.Conditions = append(kept.Conditions, condition) // its message says why a pod is not scheduled
		case corev1.PodReady:
			condition.Message = ""
			kept.Conditions = append(kept.Conditions, condition)
		}
	}
	pod.Status = kept
}

// ownerOf is the name of the controller that owns an object.
func ownerOf(object client.Object) []string {
	if owner := metav1.GetControllerOfNoCopy(object); owner != nil {
		return []string{owner.Name}
	}
	return nil
}

// about returns what a change of the object is about: a workload itself, and the controller of a pod.
func about(object any) (Change, bool) {
	if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = gone.Obj
	}
	changed, ok := object.(client.Object)
	if !ok {
		return Change{}, false
	}
	change := Change{Workload: client.ObjectKeyFromObject(changed), Labels: changed.GetLabels()}
	if _, isPod := object.(*corev1.Pod); isPod {
		owner := ownerOf(changed)
		if owner == nil {
			return Change{}, false
		}
		change.Workload.Name = owner[0]
	}
	return change, true
}
