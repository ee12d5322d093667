//go:build kubernetes_1_37

package workloadspread

import (
	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// PatchPodStatus implements fwk.APICacher.
func (w writer) PatchPodStatus(pod *corev1.Pod, conditions []*corev1.PodCondition, nominating *fwk.NominatingInfo) (<-chan error, error) {
	return w.patch(pod, conditions, nominating)
}
