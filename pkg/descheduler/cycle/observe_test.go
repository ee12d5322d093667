package cycle

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/lineage"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func condition(kind corev1.PodConditionType, status corev1.ConditionStatus, reason string) corev1.PodCondition {
	return corev1.PodCondition{Type: kind, Status: status, Reason: reason, LastTransitionTime: metav1.NewTime(noon)}
}

// Case 20: since when a pod is unschedulable is what the scheduler says, not how old the pod is; gated and preempting
// pods are not.
func TestSinceWhenAPodIsUnschedulable(t *testing.T) {
	unschedulable := condition(corev1.PodScheduled, corev1.ConditionFalse, corev1.PodReasonUnschedulable)
	for name, tc := range map[string]struct {
		change func(*corev1.Pod)
		want   time.Time
	}{
		"since the scheduler says so":                                      {func(*corev1.Pod) {}, noon},
		"since it was made, if its gates were removed, which nobody notes": {func(p *corev1.Pod) { p.Status.Conditions[0].LastTransitionTime = metav1.Time{} }, noon.Add(-time.Hour)},
		"not before it was tried":                                          {func(p *corev1.Pod) { p.Status.Conditions = nil }, time.Time{}},
		"not while it has gates":                                           {func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}} }, time.Time{}},
		"not while others make way":                                        {func(p *corev1.Pod) { p.Status.NominatedNodeName = "n" }, time.Time{}},
		"not if it failed for something":                                   {func(p *corev1.Pod) { p.Status.Conditions[0].Reason = corev1.PodReasonSchedulerError }, time.Time{}},
		"not once it has a node":                                           {func(p *corev1.Pod) { p.Spec.NodeName = "n" }, time.Time{}},
	} {
		pod := pending("p")
		pod.CreationTimestamp = metav1.NewTime(noon.Add(-time.Hour))
		pod.Status.Conditions = []corev1.PodCondition{unschedulable}
		tc.change(pod)
		c := &Cycle{snapshot: looking(t)}
		if got := c.observe(pod).UnschedulableSince; !got.Equal(tc.want) {
			t.Errorf("%s: got %s", name, got)
		}
	}
}

// Case 20: a pod of another scheduler is not ours to move while it is pending.
func TestPendingPodsOfOtherSchedulersStay(t *testing.T) {
	strategy := &Strategy{Schedulers: []string{v1beta1.SchedulerName}}
	pod := pending("p")
	for name, want := range map[string]bool{v1beta1.SchedulerName: true, corev1.DefaultSchedulerName: false} {
		if pod.Spec.SchedulerName = name; strategy.admits(pod) != want {
			t.Errorf("%s: got %t", name, !want)
		}
	}
}

func TestNodesMustBeSteady(t *testing.T) {
	node := func(created, ready time.Duration, status corev1.ConditionStatus) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(noon.Add(-created))}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: status, LastTransitionTime: metav1.NewTime(noon.Add(-ready))}}}}
	}
	for name, tc := range map[string]struct {
		node   *corev1.Node
		window time.Duration
		want   bool
	}{
		"ready for long":          {node(time.Hour, time.Hour, corev1.ConditionTrue), 10 * time.Minute, true},
		"ready for a moment":      {node(time.Hour, time.Minute, corev1.ConditionTrue), 10 * time.Minute, false},
		"there for a moment":      {node(time.Minute, time.Hour, corev1.ConditionTrue), 10 * time.Minute, false},
		"not ready":               {node(time.Hour, time.Hour, corev1.ConditionFalse), 10 * time.Minute, false},
		"without a word about it": {&corev1.Node{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(noon.Add(-time.Hour))}}, time.Minute, false},
		"with no window":          {node(0, 0, corev1.ConditionFalse), 0, true},
	} {
		if got := steady(tc.node, noon, tc.window); got != tc.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}

const pools = `subsets:
- name: a
  requiredNodeSelector: {matchExpressions: [{key: pool, operator: In, values: [a]}]}
  tolerations: [{key: a, operator: Exists}]
- name: b
  requiredNodeSelector: {matchExpressions: [{key: pool, operator: In, values: [b]}]}
  tolerations: [{key: b, operator: Exists}]
`

// looking is a look at a cluster with these objects.
func looking(t *testing.T, objects ...client.Object) *lineage.Snapshot {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	taken, err := lineage.Take(t.Context(), fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build(), clocktesting.NewFakeClock(noon))
	if err != nil {
		t.Fatal(err)
	}
	return taken
}
