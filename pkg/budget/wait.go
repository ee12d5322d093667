package budget

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// longestStart is the longest plausible time from a pod's creation until it is ready. A pod with a later transition has most likely lost its
// readiness and got it back.
const longestStart = time.Hour

// ExpectedWait estimates how long it takes until so many more of the pods are available (wait), and how long a pod takes to become ready (takes). The
// latter is the median of the ready pods. Both are 0 if no ready pod tells. The estimate only informs: nothing is decided by it. With a wrong clock, wait
// is still between one second and takes.
func ExpectedWait(pods []*corev1.Pod, more int, now time.Time) (wait, takes time.Duration) {
	var took, ages []time.Duration
	for _, pod := range pods {
		if pod.DeletionTimestamp != nil || hasEnded(pod) {
			continue
		}
		created := pod.CreationTimestamp.Time
		if since := readySince(pod); !since.IsZero() {
			if start := since.Sub(created); start >= 0 && start <= longestStart {
				took = append(took, start)
			}
		} else if !IsReady(pod) {
			ages = append(ages, now.Sub(created))
		}
	}
	if len(took) == 0 {
		return 0, 0
	}
	slices.Sort(took)
	takes = max(took[len(took)/2].Round(time.Second), time.Second)
	var left []time.Duration
	for _, age := range ages {
		if age < 2*takes { // an older pod does not start as the others did
			left = append(left, min(max((takes-age).Round(time.Second), time.Second), takes))
		}
	}
	slices.Sort(left)
	if more = max(more, 1); more <= len(left) {
		return left[more-1], takes
	}
	return takes, takes
}

// readySince is when the pod became ready. It is zero if the pod is not ready, or does not say since when.
func readySince(pod *corev1.Pod) time.Time {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}
