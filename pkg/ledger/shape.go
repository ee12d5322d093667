package ledger

import (
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/berth-project/berth/pkg/subset"
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
	return encoded(pod, shape)
}

// encoded is a key of what pods have in common.
func encoded(pod *corev1.Pod, common any) string {
	key, err := json.Marshal(common)
	if err != nil {
		return string(pod.UID) // no other pod is known to be equal
	}
	return string(key)
}

// rules are what the other filters read of a pod, and its priority, by which it preempts. The revision stands for the labels, of which pods of a StatefulSet have some of their own.
func rules(pod *corev1.Pod) string {
	rules := struct {
		Revision        string
		Priority        *int32
		PodAffinity     *corev1.PodAffinity
		PodAntiAffinity *corev1.PodAntiAffinity
		Constraints     []corev1.TopologySpreadConstraint
		Devices         []corev1.PodResourceClaim
		Volumes         []string
	}{Revision: subset.RevisionOf(pod), Priority: pod.Spec.Priority, Constraints: pod.Spec.TopologySpreadConstraints, Devices: pod.Spec.ResourceClaims}
	if affinity := pod.Spec.Affinity; affinity != nil {
		rules.PodAffinity, rules.PodAntiAffinity = affinity.PodAffinity, affinity.PodAntiAffinity
	}
	for i := range pod.Spec.Volumes {
		switch volume := &pod.Spec.Volumes[i]; {
		case volume.PersistentVolumeClaim != nil:
			rules.Volumes = append(rules.Volumes, volume.PersistentVolumeClaim.ClaimName)
		case volume.Ephemeral != nil:
			rules.Volumes = append(rules.Volumes, pod.Name+"-"+volume.Name)
		}
	}
	return encoded(pod, rules)
}

// shapeOf is the pod's shape, computed once.
func (e *entry) shapeOf() string {
	if e.shape == "" {
		e.shape = Shape(e.pod, e.own)
	}
	return e.shape
}

// class of an exhausted pod.
func (e *entry) class() podClass {
	if e.rules == "" {
		e.rules = rules(e.pod)
	}
	return podClass{scope: e.scope, shape: e.shapeOf(), rules: e.rules}
}
