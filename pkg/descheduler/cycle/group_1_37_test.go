//go:build kubernetes_1_37

package cycle

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

func TestAPodOfAGroupIsNotEvicted(t *testing.T) {
	pod := podNamed("p", true)
	if !Evictable(pod) {
		t.Error("a pod without a group is not evictable")
	}
	pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To("train")}
	if Evictable(pod) {
		t.Error("a pod of a group is evictable, and would come back to the subset of its group")
	}
}
