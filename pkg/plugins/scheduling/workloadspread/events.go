package workloadspread

import (
	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

// announcement says that no subset of a spread takes another pod. It is made once, for the first pod that has to wait. It is repeated only after no
// pod waited any more.
type announcement struct {
	spread  *v1beta1.WorkloadSpread
	pod     *corev1.Pod
	reason  v1beta1.Reason
	message string
}

// announceTo writes announcements as events on the spread.
func announceTo(handle fwk.Handle) func(announcement) {
	return func(a announcement) {
		spread := a.spread.DeepCopy()
		spread.SetGroupVersionKind(v1beta1.GroupVersion.WithKind("WorkloadSpread")) // objects from an informer do not carry it
		handle.EventRecorder().Eventf(spread, a.pod, corev1.EventTypeWarning, string(a.reason), "Scheduling", "pods wait: %s", a.message)
	}
}
