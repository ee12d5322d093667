package workloadspread_test

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// TestAnUrgentPodTakesOneVictim: whatever the order in which pods came to the node, and whether one of them is a victim already.
func TestAnUrgentPodTakesOneVictim(t *testing.T) {
	large := func(pod *corev1.Pod) { // two fit on the node, three do not
		pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("4")
	}
	started := func(second int64) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.Spec.NodeName, pod.Status.StartTime = "node-a", &metav1.Time{Time: time.Unix(second, 0)}
		}
	}
	taken := func(pod *corev1.Pod) {
		pod.DeletionTimestamp, pod.Finalizers = ptr.To(metav1.Now()), []string{"test.berth.dev/slow"}
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonPreemptionByScheduler}}
	}
	for name, tc := range map[string]struct {
		create func(p *port)
		want   []string // the pods that are left
	}{
		"the newest": {
			create: func(p *port) { p.pod("a", large, started(100)); p.pod("b", large, started(101)) },
			want:   []string{"a"},
		},
		"the one that is taken already": {
			create: func(p *port) { p.pod("a", large, started(100), taken); p.pod("b", large, started(101)) },
			want:   []string{"a", "b"},
		},
		"of two that started together, always the same": {
			create: func(p *port) { p.pod("b", large, started(100)); p.pod("a", large, started(100)) },
			want:   []string{"a"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				p := openPort(t, `subsets: [{name: a, requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [a]}]}}]`, nil, nodeOf("a"))
				tc.create(p)
				p.pod("urgent", large, func(pod *corev1.Pod) { pod.Spec.Priority = ptr.To[int32](1000) })
				p.cycle()
				if got := p.get("urgent").Status.NominatedNodeName; got != "node-a" {
					t.Errorf("urgent is nominated to %q", got)
				}
				pods, err := p.client.CoreV1().Pods("ns").List(t.Context(), metav1.ListOptions{})
				if err != nil {
					t.Fatal(err)
				}
				var got []string
				for i := range pods.Items {
					if name := pods.Items[i].Name; name != "urgent" {
						got = append(got, name)
					}
				}
				if !slices.Equal(got, tc.want) {
					t.Errorf("%v are left, want %v", got, tc.want)
				}
			})
		})
	}
}
