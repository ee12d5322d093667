package budget

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/podstate"
)

// TakesOut is true if an update of a pod or of its status takes a serving pod out of service although its containers run. After the update the pod is
// not ready, has ended, has a readiness gate turned off, or has its first label with UnavailableLabelPrefix.
//
// It is false if the new status says that a container is not ready any more. Such a status is a report: the provider of a virtual node writes it as
// well, and refusing it would not make the container ready. A label counts all the same.
func TakesOut(before, after *corev1.Pod) bool {
	if !serves(before) {
		return false
	}
	return isMarkedUnavailable(after) || (!IsReady(after) || podstate.HasEnded(after) || !passesGates(after)) && !reportsContainers(before, after)
}

// serves is true for a pod that is ready, that has no readiness gate turned off, and that no label takes out of service. If a gate is off, the kubelet
// is about to make the pod unready.
func serves(pod *corev1.Pod) bool {
	return IsReady(pod) && passesGates(pod) && !isMarkedUnavailable(pod)
}

// passesGates is true if all readiness gates of the pod are on.
func passesGates(pod *corev1.Pod) bool {
	return !slices.ContainsFunc(pod.Spec.ReadinessGates, func(gate corev1.PodReadinessGate) bool { return !says(pod, gate.ConditionType) })
}

// isMarkedUnavailable is true for a pod that a label takes out of service.
func isMarkedUnavailable(pod *corev1.Pod) bool {
	for key := range pod.Labels {
		if strings.HasPrefix(key, v1beta1.UnavailableLabelPrefix) {
			return true
		}
	}
	return false
}

// reportsContainers is true if a container was ready and the new status says that it is not.
func reportsContainers(before, after *corev1.Pod) bool {
	return slices.ContainsFunc(before.Status.ContainerStatuses, func(was corev1.ContainerStatus) bool {
		is := podstate.ContainerStatus(after.Status.ContainerStatuses, was.Name)
		return was.Ready && (is == nil || !is.Ready)
	})
}

// isAfter is true if a resourceVersion is later than another one. It is false if one of them is not a number.
func isAfter(revision, other string) bool {
	order, err := resourceversion.CompareResourceVersion(revision, other)
	return err == nil && order > 0
}
