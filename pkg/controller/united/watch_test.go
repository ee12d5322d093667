package united

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
)

func TestEventsOfPodsThatMatter(t *testing.T) {
	waiting := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{v1beta1.SubsetNameLabel: "a", v1beta1.ReservedPodLabel: "false"}}}
	waiting.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, LastTransitionTime: metav1.NewTime(time.Unix(1000, 0))}}
	changed := func(change func(*corev1.Pod)) *corev1.Pod {
		pod := waiting.DeepCopy()
		change(pod)
		return pod
	}
	for name, tc := range map[string]struct {
		after *corev1.Pod
		want  bool
	}{
		"nothing":         {changed(func(*corev1.Pod) {}), false},
		"another message": {changed(func(p *corev1.Pod) { p.Status.Conditions[0].Message = "0/5 nodes" }), false},
		"it waits since another time": {changed(func(p *corev1.Pod) {
			p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(time.Unix(2000, 0))
		}), true},
		"it got a node":       {changed(func(p *corev1.Pod) { p.Spec.NodeName = "n"; p.Status.Conditions = nil }), true},
		"it is a reservation": {changed(func(p *corev1.Pod) { p.Labels[v1beta1.ReservedPodLabel] = "true" }), true},
		"it is being deleted": {changed(func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(3000, 0)} }), true},
		"a label of somebody": {changed(func(p *corev1.Pod) { p.Labels["note"] = "x" }), false},
		"another owner": {changed(func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "K", Name: "k", UID: "k", Controller: new(bool)}}
		}), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := podMatters.Update(event.UpdateEvent{ObjectOld: waiting, ObjectNew: tc.after}); got != tc.want {
				t.Errorf("got %t", got)
			}
		})
	}
}
