package budget

import (
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-project/berth/pkg/crd/policy/v1alpha1"
)

// TakesOut is true if an update of a pod or of its status takes an available pod out of service although its containers run: the pod is not ready any more, is
// said to have ended, has a readiness gate turned off, or gets its first label that says so.
//
// A status that says of a container that it is not ready any more is a report: whoever runs the pods of a virtual node writes it as well, and to refuse it
// would not bring the container back.
func TakesOut(before, after *corev1.Pod) bool {
	if !serves(before) {
		return false
	}
	return isMarkedUnavailable(after) || (!IsReady(after) || hasEnded(after) || !passesGates(after)) && !reportsContainers(before, after)
}

// serves is true for a pod that is ready and stays so: no gate is off for which its kubelet is about to make it unready, and no label takes it out of service.
func serves(pod *corev1.Pod) bool {
	return IsReady(pod) && passesGates(pod) && !isMarkedUnavailable(pod)
}

// passesGates is true if all readiness gates of the pod are on.
func passesGates(pod *corev1.Pod) bool {
	for _, gate := range pod.Spec.ReadinessGates {
		if !says(pod, gate.ConditionType) {
			return false
		}
	}
	return true
}

// isMarkedUnavailable is true for a pod that a label says not to serve.
func isMarkedUnavailable(pod *corev1.Pod) bool {
	for key := range pod.Labels {
		if strings.HasPrefix(key, v1alpha1.UnavailableLabelPrefix) {
			return true
		}
	}
	return false
}

// reportsContainers is true if a container was ready and is said not to be.
func reportsContainers(before, after *corev1.Pod) bool {
	for i := range before.Status.ContainerStatuses {
		was := &before.Status.ContainerStatuses[i]
		if is := statusOf(was.Name, after.Status.ContainerStatuses); was.Ready && (is == nil || !is.Ready) {
			return true
		}
	}
	return false
}

// isAfter is true if a resourceVersion is later than another one. One that is not a number is later than nothing, and nothing is later than it.
func isAfter(revision, other string) bool {
	a, errA := strconv.ParseUint(revision, 10, 64)
	b, errB := strconv.ParseUint(other, 10, 64)
	return errA == nil && errB == nil && a > b
}
