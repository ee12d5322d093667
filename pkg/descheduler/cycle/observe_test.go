package cycle

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	"github.com/berth-project/berth/pkg/moves"
	"github.com/berth-project/berth/pkg/snapshot"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/testkit"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func condition(kind corev1.PodConditionType, status corev1.ConditionStatus, reason string) corev1.PodCondition {
	return corev1.PodCondition{Type: kind, Status: status, Reason: reason, LastTransitionTime: metav1.NewTime(noon)}
}

// Case 20: since when a pod is unschedulable is what the scheduler says, not how old the pod is; gated and preempting pods are not.
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
	strategy := &Strategy{Schedulers: []string{v1alpha1.SchedulerName}}
	pod := pending("p")
	for name, want := range map[string]bool{v1alpha1.SchedulerName: true, corev1.DefaultSchedulerName: false} {
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
  requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [a]}]}
  tolerations: [{key: a, operator: Exists}]
- name: b
  requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [b]}]}
  tolerations: [{key: b, operator: Exists}]
`

// What would be made in place of a pod is what admission and scheduler would make of it in the subset, not a copy of what this one is bound to.
func TestTheReplacementIsForTheOtherSubset(t *testing.T) {
	policy := testkit.Policy(t, pools)
	victim := podNamed("p", true)
	victim.Spec.Tolerations = []corev1.Toleration{{Key: "own", Operator: corev1.TolerationOpExists}}
	policy.Constraints.AddTo(victim)
	c := &cluster{Cycle: &Cycle{snapshot: looking(t)}, spread: &spread{facts: moves.Facts{Name: "web", Policy: policy}}}
	made, err := c.replacement(victim, &moves.Pod{Pod: subset.Observe(victim, nil)}, 0)
	if err != nil {
		t.Fatal(err)
	}
	var tolerates []string
	for _, toleration := range made.Spec.Tolerations {
		tolerates = append(tolerates, toleration.Key)
	}
	if got := strings.Join(tolerates, " "); got != "own a" {
		t.Errorf("it tolerates %s, want its own and those of the subset", got)
	}
	terms := made.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if len(terms) != 1 || terms[0].MatchExpressions[0].Values[0] != "a" {
		t.Errorf("it requires %v", terms)
	}
	if made.Spec.NodeName != "" || made.UID == victim.UID || len(made.Status.Conditions) > 0 {
		t.Errorf("it is the pod itself: %s on %s", made.UID, made.Spec.NodeName)
	}
	if victim.Spec.NodeName != "node" || len(victim.Spec.Tolerations) != 3 {
		t.Errorf("the pod was changed: %v", victim.Spec)
	}
}

func TestTheReplacementOfAnEarlyBoundPodHasThePatchOfTheOtherSubset(t *testing.T) {
	policy := testkit.Policy(t, strings.Replace(pools, "- name: b\n", "- name: b\n  patch: {spec: {containers: [{name: main, resources: {requests: {cpu: 700m}}}]}}\n", 1))
	victim := pending("p")
	victim.Annotations = map[string]string{v1alpha1.AdmittedAnnotation: `{"name":"web","subset":"a"}`}
	victim.OwnerReferences[0].Name = "web-1"
	c := &cluster{Cycle: &Cycle{snapshot: looking(t)}, spread: &spread{facts: moves.Facts{Name: "web", Policy: policy}}}
	observed := &moves.Pod{Pod: subset.Observe(victim, nil)}
	if _, err := c.replacement(victim, observed, 1); err == nil {
		t.Error("something is known of a pod without a template")
	}
	c.snapshot = looking(t, &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-1", UID: "rs"}, Spec: appsv1.ReplicaSetSpec{
		Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}}}}})
	made, err := c.replacement(victim, observed, 1)
	if err != nil {
		t.Fatal(err)
	}
	if cpu := made.Spec.Containers[0].Resources.Requests.Cpu().String(); cpu != "700m" {
		t.Errorf("it asks for %s", cpu)
	}
}

// looking is a look at a cluster with these objects.
func looking(t *testing.T, objects ...client.Object) *snapshot.Snapshot {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	taken, err := snapshot.Take(t.Context(), fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build(), clocktesting.NewFakeClock(noon))
	if err != nil {
		t.Fatal(err)
	}
	return taken
}
