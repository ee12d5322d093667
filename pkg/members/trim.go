package members

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// OwnerIndex is a field index of the cached pods: the name of the controller that owns the pod, usually a ReplicaSet.
const OwnerIndex = "owner"

// trimReplicaSet keeps everything but managed fields, the annotation of kubectl apply, and the pods' spec. A caller who needs the spec reads it live. The
// API server would refuse to write a ReplicaSet as it is here.
func trimReplicaSet(object any) (any, error) {
	set, ok := object.(*appsv1.ReplicaSet)
	if !ok {
		return object, nil
	}
	trimMeta(&set.ObjectMeta)
	set.Spec.Template.Spec = corev1.PodSpec{}
	return set, nil
}

// trimPod keeps what says which pod it is, whose, where, and how it fares.
func trimPod(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	trimMeta(&pod.ObjectMeta)
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
	return pod, nil
}

func trimMeta(meta *metav1.ObjectMeta) {
	meta.ManagedFields = nil
	delete(meta.Annotations, corev1.LastAppliedConfigAnnotation)
}

// ownerOf is the name of the controller that owns a pod.
func ownerOf(object client.Object) []string {
	if owner := metav1.GetControllerOfNoCopy(object); owner != nil {
		return []string{owner.Name}
	}
	return nil
}

// about returns the workload that a change of the object is about: a ReplicaSet itself, and the controller of a pod.
func about(object any) (types.NamespacedName, bool) {
	if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = gone.Obj
	}
	switch object := object.(type) {
	case *appsv1.ReplicaSet:
		return client.ObjectKeyFromObject(object), true
	case *corev1.Pod:
		if owner := ownerOf(object); owner != nil {
			return types.NamespacedName{Namespace: object.Namespace, Name: owner[0]}, true
		}
	}
	return types.NamespacedName{}, false
}
