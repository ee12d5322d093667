package cycle

import (
	corev1 "k8s.io/api/core/v1"
	eutils "sigs.k8s.io/descheduler/pkg/descheduler/evictions/utils"

	"github.com/berth-project/berth/pkg/workload"
)

// Evictable is false for pods that nothing of Berth's ever evicts: those that nothing would make anew, because they have no controller or one that
// puts them back on the same node; those of the kubelet's own; those that are on their way out or have ended; and those that are annotated with
// descheduler.alpha.kubernetes.io/prefer-no-eviction.
func Evictable(pod *corev1.Pod) bool {
	owner := workload.ControllerOf(pod)
	if owner == nil || workload.EndsChain(owner.Kind) || pod.UID == "" || pod.DeletionTimestamp != nil || eutils.HaveNoEvictionAnnotation(pod) {
		return false
	}
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return false
	}
	return pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}

// Spares is true if the budgets of a pod have room for its eviction. It takes nothing.
func (c *Cycle) Spares(pod *corev1.Pod) bool { return c.budgets.spare(pod) == "" }
