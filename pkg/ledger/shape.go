package ledger

import (
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
)

// Shape is what the node-local filters of the scheduler read of a pod with these tolerations of its own. Pods with equal shapes fit the same nodes,
// as far as these filters decide.
func Shape(pod *corev1.Pod, own []corev1.Toleration) string {
	shape := struct {
		Requests    corev1.ResourceList
		Ports       []corev1.ContainerPort
		Selector    map[string]string
		Affinity    *corev1.NodeAffinity
		Tolerations []corev1.Toleration
		Own         []corev1.Toleration
		NodeName    string
		Profile     string
	}{
		Requests:    resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{}),
		Selector:    pod.Spec.NodeSelector,
		Tolerations: pod.Spec.Tolerations,
		Own:         own,
		NodeName:    pod.Spec.NodeName,
		Profile:     pod.Spec.SchedulerName,
	}
	if pod.Spec.Affinity != nil {
		shape.Affinity = pod.Spec.Affinity.NodeAffinity
	}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			for _, port := range containers[i].Ports {
				if port.HostPort > 0 {
					shape.Ports = append(shape.Ports, port)
				}
			}
		}
	}
	encoded, err := json.Marshal(shape)
	if err != nil {
		return string(pod.UID) // no other pod is known to be equal
	}
	return string(encoded)
}

// class of an exhausted pod.
func (e *entry) class() podClass {
	if e.shape == "" {
		e.shape = Shape(e.pod, e.own)
	}
	return podClass{scope: e.scope, shape: e.shape}
}
