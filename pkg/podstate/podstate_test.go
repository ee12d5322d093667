package podstate

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestWhatAPodIs(t *testing.T) {
	made, later := metav1.Unix(1000, 0), metav1.Unix(2000, 0)
	with := func(node string, phase corev1.PodPhase, conditions ...corev1.PodCondition) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: made}, Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: phase, Conditions: conditions}}
	}
	is := func(of corev1.PodConditionType, status corev1.ConditionStatus, reason string) corev1.PodCondition {
		return corev1.PodCondition{Type: of, Status: status, Reason: reason, LastTransitionTime: later}
	}
	leaving := with("n", corev1.PodRunning)
	leaving.DeletionTimestamp = &later
	for name, tc := range map[string]struct {
		pod                          *corev1.Pod
		ended, active, ready         bool
		readySince, unschedulableFor metav1.Time
	}{
		"a new pod":                     {with("", corev1.PodPending), false, true, false, made, metav1.Time{}},
		"one that is ready":             {with("n", corev1.PodRunning, is(corev1.PodReady, corev1.ConditionTrue, "")), false, true, true, later, metav1.Time{}},
		"one that is ready no more":     {with("n", corev1.PodRunning, is(corev1.PodReady, corev1.ConditionFalse, "")), false, true, false, later, metav1.Time{}},
		"one that OpenKruise updates":   {with("n", corev1.PodRunning, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse}, is("InPlaceUpdateReady", corev1.ConditionFalse, "")), false, true, false, later, metav1.Time{}},
		"one without a node":            {with("", corev1.PodPending, is(corev1.PodScheduled, corev1.ConditionFalse, corev1.PodReasonUnschedulable)), false, true, false, made, later},
		"one with a gate":               {with("", corev1.PodPending, is(corev1.PodScheduled, corev1.ConditionFalse, corev1.PodReasonSchedulingGated)), false, true, false, made, metav1.Time{}},
		"one that found a node at last": {with("n", corev1.PodPending, is(corev1.PodScheduled, corev1.ConditionFalse, corev1.PodReasonUnschedulable)), false, true, false, made, metav1.Time{}},
		"one that has failed":           {with("n", corev1.PodFailed), true, false, false, made, metav1.Time{}},
		"one that is being deleted":     {leaving, false, false, false, made, metav1.Time{}},
	} {
		t.Run(name, func(t *testing.T) {
			ready, since := IsReady(tc.pod)
			unschedulable, waits := IsUnschedulable(tc.pod)
			if HasEnded(tc.pod) != tc.ended || IsActive(tc.pod) != tc.active || ready != tc.ready || !since.Equal(tc.readySince.Time) || !waits.Equal(tc.unschedulableFor.Time) || unschedulable == waits.IsZero() {
				t.Errorf("ended %t, active %t, ready %t since %v, unschedulable since %v", HasEnded(tc.pod), IsActive(tc.pod), ready, since, waits)
			}
		})
	}
}
