package workloadspread

import (
	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	"github.com/berth-project/berth/pkg/subset"
)

// announcement is that no subset of a spread takes another pod. It is made once, for the first pod that has to wait, and again only after
// nobody waited any more.
type announcement struct {
	spread  *v1alpha1.WorkloadSpread
	pod     *corev1.Pod
	reason  v1alpha1.Reason
	message string
}

// announceTo writes announcements as events on the spread.
func announceTo(handle fwk.Handle) func(announcement) {
	return func(a announcement) {
		spread := a.spread.DeepCopy()
		spread.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("WorkloadSpread")) // objects from an informer do not carry it
		handle.EventRecorder().Eventf(spread, a.pod, corev1.EventTypeWarning, string(a.reason), "Scheduling", "pods wait: %s", a.message)
	}
}

// announceIfFirst has the pod's refusal announced if no other pod of the spread was waiting.
func (l *ledger) announceIfFirst(e *entry, answer ruling) {
	if e.spread.announced || answer.reason != v1alpha1.ReasonNoNodeFits && answer.reason != v1alpha1.ReasonSubsetsFull {
		return
	}
	e.spread.announced = true
	l.announcements = append(l.announcements, announcement{e.spread.object, e.pod, answer.reason, l.describeSubsets(e, subset.None, "")})
}

// nobodyWaits is true if no pod of the spread waits for a slot or a node.
func (s *spread) nobodyWaits() bool {
	return len(s.waiting) == 0 && len(s.exhausted) == 0
}
