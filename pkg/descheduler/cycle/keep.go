package cycle

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

// keepOfPod drops from a pod of the informers what neither filters of kube-scheduler nor strategies of the framework
// read: most of a real pod. A pod that was bound early keeps all, because the patch of its subset is taken out of it
// again.
func keepOfPod(obj any) (any, error) {
	pod, is := obj.(*corev1.Pod)
	if !is {
		return obj, nil
	}
	pod.ManagedFields = nil
	delete(pod.Annotations, corev1.LastAppliedConfigAnnotation)
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range statuses {
			s := &statuses[i]
			statuses[i] = corev1.ContainerStatus{Name: s.Name, State: s.State, LastTerminationState: s.LastTerminationState, Ready: s.Ready, RestartCount: s.RestartCount, Started: s.Started}
		}
	}
	if pod.Annotations[v1beta1.AdmittedAnnotation] != "" {
		return pod, nil
	}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			c := &containers[i]
			containers[i] = corev1.Container{Name: c.Name, Image: c.Image, Ports: c.Ports, Resources: c.Resources, RestartPolicy: c.RestartPolicy}
		}
	}
	// No filter asks for these volumes, and no node lacks them.
	pod.Spec.Volumes = slices.DeleteFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.Secret != nil || v.ConfigMap != nil || v.Projected != nil || v.DownwardAPI != nil
	})
	return pod, nil
}
