package members

import (
	"maps"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
)

// OwnerIndex is a field index of the cached pods and ReplicaSets: the name of the controller that owns the object.
const OwnerIndex = "owner"

// read are the labels that the hub reads of ReplicaSets and pods in its members.
var read = []string{v1alpha1.HubLabel, v1alpha1.OwnerLabel, v1alpha1.AdoptLabel, v1beta1.OwnerLabel, v1beta1.SubsetNameLabel, v1beta1.RevisionLabel, v1beta1.ReservedPodLabel}

// hubOnly are the labels of all pods of FederatedReplicaSets, as the cache keeps them.
var hubOnly = map[string]string{v1alpha1.HubLabel: "true"}

// Trim drops what no caller reads of a cached object: managed fields, the annotation of kubectl apply, most of the pods' spec, and all that ReplicaSets and pods, which are many, have besides. A caller who needs more reads
// it live. The API server would refuse to write a workload as it is here.
func Trim(object any) (any, error) {
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
		object.Spec.Template, object.Annotations, object.Labels = corev1.PodTemplateSpec{}, nil, readOf(object.Labels)
	case *corev1.Pod:
		trimPod(object)
	}
	return object, nil
}

// readOf are the labels that the hub reads. The result may be shared.
func readOf(all map[string]string) map[string]string {
	kept := map[string]string{}
	for _, key := range read {
		if value, has := all[key]; has {
			kept[key] = value
		}
	}
	if maps.Equal(kept, hubOnly) {
		return hubOnly
	}
	return kept
}

// trimPod keeps what says which pod it is, whose, where, and how it fares.
func trimPod(pod *corev1.Pod) {
	pod.Annotations, pod.Labels = nil, readOf(pod.Labels)
	pod.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName}
	kept := corev1.PodStatus{Phase: pod.Status.Phase}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled || condition.Type == corev1.PodReady {
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
