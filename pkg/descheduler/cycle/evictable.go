package cycle

import (
	corev1 "k8s.io/api/core/v1"
	eutils "sigs.k8s.io/descheduler/pkg/descheduler/evictions/utils"

	"github.com/berth-project/berth/pkg/podstate"
	"github.com/berth-project/berth/pkg/workload"
)

// Evictable is false for pods that Berth's strategies never evict: pods that no controller would replace, or that a
// DaemonSet or a node puts back on the same node; pods of a Job, which would count a failure for each; pods of a pod
// group of Kubernetes; pods that have ended; and those that may not go; see mayGo.
func Evictable(pod *corev1.Pod) bool {
	owner := workload.ControllerOf(pod)
	return owner != nil && !workload.EndsChain(owner.Kind) && !workload.CountsDeletions(owner.Kind) && !isOfGroup(pod) && !podstate.HasEnded(pod) && mayGo(pod)
}

// Removable is true for failed pods that may go. Nothing runs in them, so it does not matter who would replace them.
func Removable(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodFailed && mayGo(pod) }

// mayGo is false for mirror pods, terminating pods, and pods with the annotation
// descheduler.alpha.kubernetes.io/prefer-no-eviction.
func mayGo(pod *corev1.Pod) bool {
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return !mirror && pod.UID != "" && pod.DeletionTimestamp == nil && !eutils.HaveNoEvictionAnnotation(pod)
}

// Spares is true if the budgets of a pod have room for its eviction. It takes nothing.
func (c *Cycle) Spares(pod *corev1.Pod) bool { return c.budgets.spare(pod) == "" }
