package ledger

import (
	"encoding/json"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
)

// world drives a ledger and records its requests.
type world struct {
	t      rapid.TB
	ledger *Ledger
	now    time.Time
	// result is what a pod finds when the ledger makes it check the nodes of a subset.
	result func(check *NodeCheck) CheckResult
	// awake are the names of the pods that were woken since the last check.
	awake []string
	// announced are the announcements since the last check.
	announced []string
	wanted    []schema.GroupKind
	followed  []string
	questions []Question
	missed    int
	due       time.Time
}

var (
	deploymentKind = schema.GroupKind{Group: appsv1.GroupName, Kind: "Deployment"}
	replicaSetKind = schema.GroupKind{Group: appsv1.GroupName, Kind: "ReplicaSet"}
	spreadKey      = types.NamespacedName{Namespace: "ns", Name: "web"}
)

// start is when worlds begin, and when the gates of opened pods were opened.
var start = time.Unix(1000, 0)

// emptyWorld has only nodes node-a and node-b in zones a and b.
func emptyWorld(tb rapid.TB) *world {
	tb.Helper()
	return emptyWorldAt(tb, start)
}

func emptyWorldAt(tb rapid.TB, now time.Time) *world {
	tb.Helper()
	w := &world{t: tb, now: now, ledger: New(2 * time.Second), result: func(*NodeCheck) CheckResult { return Feasible }}
	for _, zone := range []string{"a", "b"} {
		w.seeNode("node-"+zone, zone)
	}
	return w
}

// newWorld also has a Deployment "web" with this number of replicas and one ReplicaSet.
func newWorld(tb rapid.TB, replicas int32) *world {
	tb.Helper()
	w := emptyWorld(tb)
	w.scale(replicas)
	w.seeReplicaSet("rs-uid")
	return w
}

func (w *world) apply(event Event) Effects {
	fx := w.ledger.Apply(w.now, event)
	var woken []string
	for _, pod := range fx.Wake {
		woken = append(woken, pod.Name)
	}
	slices.Sort(woken)
	w.awake = append(w.awake, slices.Compact(woken)...)
	w.wanted = append(w.wanted, fx.Want...)
	for _, spread := range fx.Follow {
		w.followed = append(w.followed, spread.Name)
	}
	if fx.Announce {
		w.announced = append(w.announced, string(fx.Answer.Reason))
	}
	w.questions = append(w.questions, fx.Read...)
	w.missed += fx.Missed
	w.due = fx.At
	return fx
}

// step lets time pass. It applies TimePassed whenever it is due.
func (w *world) step(d time.Duration) {
	end := w.now.Add(d)
	for !w.due.IsZero() && !w.due.After(end) {
		w.now = w.due
		w.apply(TimePassed{})
	}
	w.now = end
}

func (w *world) seeNode(name, zone string) {
	w.apply(NodeSeen{Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": zone}}}})
}

// scale shows the ledger the Deployment with this number of replicas.
func (w *world) scale(replicas int32) {
	w.apply(OwnerSeen{Kind: deploymentKind, Object: deployment(replicas)})
}

// answer answers all questions: the Deployment has so many replicas.
func (w *world) answer(replicas int32) {
	questions := w.questions
	w.questions = nil
	for _, q := range questions {
		w.apply(OwnerRead{Kind: deploymentKind, Object: deployment(replicas), Question: q.Number})
	}
}

func deployment(replicas int32) *appsv1.Deployment {
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "web-uid"}, Spec: appsv1.DeploymentSpec{Replicas: &replicas}}
}

// seeReplicaSet shows the ledger a ReplicaSet of the Deployment.
func (w *world) seeReplicaSet(uid types.UID) {
	w.apply(OwnerSeen{Kind: replicaSetKind, Object: replicaSet(uid)})
}

func replicaSet(uid types.UID) *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "rs", UID: uid,
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "web-uid", Controller: ptr.To(true)}}}}
}

// spread creates or changes the spread "web".
func (w *world) spread(generation int64, spec string) {
	w.t.Helper()
	w.spreadOf("web", generation, "Deployment", "web", spec)
}

// spreadOf creates or changes a spread for a workload of group apps.
func (w *world) spreadOf(name string, generation int64, kind, workload, spec string) {
	w.t.Helper()
	w.apply(SpreadSeen{Spread: spreadObject(w.t, name, generation, kind, workload, spec)})
}

func spreadObject(tb rapid.TB, name string, generation int64, kind, workload, spec string) *v1beta1.WorkloadSpread {
	tb.Helper()
	object := &v1beta1.WorkloadSpread{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("spread-uid-" + name), Generation: generation}}
	object.Spec.TargetReference = v1beta1.TargetReference{APIVersion: "apps/v1", Kind: kind, Name: workload}
	if err := yaml.UnmarshalStrict([]byte(spec), &object.Spec); err != nil {
		tb.Fatalf("parsing the spec: %v", err)
	}
	return object
}

func (w *world) spreadGone() { w.apply(SpreadGone{Key: spreadKey}) }

// pod creates a pending pod of the Deployment and shows it to the ledger.
func (w *world) pod(name string) *corev1.Pod {
	pod := podOf("rs-uid", name)
	w.see(pod)
	return pod
}

func podOf(owner types.UID, name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name + "-uid"), Labels: map[string]string{"pod-template-hash": "v1"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "rs", UID: owner, Controller: ptr.To(true)}}}}
}

func (w *world) podsNamed(prefix string, n int) []*corev1.Pod {
	pods := make([]*corev1.Pod, n)
	for i := range pods {
		pods[i] = w.pod(fmt.Sprintf("%s%d", prefix, i))
	}
	return pods
}

// important creates a pending pod with a high priority.
func (w *world) important(name string) *corev1.Pod {
	pod := podOf("rs-uid", name)
	pod.Spec.Priority = ptr.To[int32](10)
	w.see(pod)
	return pod
}

// admitted creates a pod for which admission picked a subset.
func (w *world) admitted(name, in string) *corev1.Pod {
	pod := podOf("rs-uid", name)
	pod.Annotations = map[string]string{v1beta1.AdmittedAnnotation: fmt.Sprintf(`{"name":"web","subset":%q,"pick":%q}`, in, name)}
	w.see(pod)
	return pod
}

// onNode returns the pod as the API server shows it after Berth has bound it to a subset. With "-" another scheduler has bound it.
func onNode(pod *corev1.Pod, node, in string) *corev1.Pod {
	bound := pod.DeepCopy()
	bound.Spec.NodeName = node
	if in != "-" {
		record, _ := json.Marshal(v1beta1.MatchedSubset{Name: "web", Subset: in, UID: string(pod.UID)})
		bound.Annotations = map[string]string{v1beta1.MatchedAnnotation: string(record)}
	}
	return bound
}

// withGate returns the pod as admission makes it for a spread with binding: Gated.
func withGate(pod *corev1.Pod) *corev1.Pod {
	gated := pod.DeepCopy()
	subset.Gate(gated)
	return gated
}

// opened returns the pod as it is after the scheduler has opened its gate in a subset of the spread "web".
func opened(pod *corev1.Pod, in string) *corev1.Pod {
	open := pod.DeepCopy()
	open.Spec.SchedulingGates = subset.OtherGates(pod)
	open.Annotations = map[string]string{v1beta1.AdmittedAnnotation: fmt.Sprintf(`{"name":"web","subset":%q,"pick":%q,"time":%q}`, in, pod.UID, start.UTC().Format(time.RFC3339))}
	return open
}

func requesting(pod *corev1.Pod, cpu string) *corev1.Pod {
	pod.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}}
	return pod
}

func terminating(pod *corev1.Pod) *corev1.Pod {
	ending := pod.DeepCopy()
	ending.DeletionTimestamp = &metav1.Time{Time: time.Unix(1000, 0)}
	return ending
}

func (w *world) see(pod *corev1.Pod)    { w.apply(PodSeen{Pod: pod}) }
func (w *world) delete(pod *corev1.Pod) { w.apply(PodGone{UID: pod.UID}) }

// seeBound shows the ledger a bound pod.
func (w *world) seeBound(pod *corev1.Pod, node, in string) { w.see(onNode(pod, node, in)) }

// ask runs the pod's PreFilter.
func (w *world) ask(pod *corev1.Pod) Answer {
	w.t.Helper()
	event := PodAsks{Pod: pod}
	fx := w.apply(event)
	for range subset.MaxSubsets + 1 {
		if fx.Check == nil {
			return fx.Answer
		}
		event.Results.Add(fx.Check, w.result(fx.Check))
		fx = w.apply(event)
	}
	w.t.Fatalf("%s: the ledger does not stop looking", pod.Name)
	return Answer{}
}

// choose returns the subset that the pod gets, "-" for none, or the reason of a refusal.
func (w *world) choose(pod *corev1.Pod) string {
	w.t.Helper()
	switch answer := w.ask(pod); {
	case answer.Decision == nil && answer.Reason == "":
		return "no spread"
	case answer.Decision == nil:
		return string(answer.Reason)
	case answer.Decision.Subset == subset.None:
		return "-"
	default:
		return answer.Decision.Name()
	}
}

func (w *world) reserve(pod *corev1.Pod, d *Decision) bool {
	return w.apply(NodeFound{UID: pod.UID, Decision: d}).OK
}

func (w *world) unreserve(pod *corev1.Pod) { w.apply(NodeLost{UID: pod.UID}) }

func (w *world) startBind(pod *corev1.Pod, d *Decision) bool {
	return w.apply(BindSent{UID: pod.UID, Decision: d}).OK
}

func (w *world) bindRefused(pod *corev1.Pod) { w.apply(BindRefused{UID: pod.UID}) }

func (w *world) bindUncertain(pod *corev1.Pod, doubt time.Duration) {
	w.apply(BindUnknown{UID: pod.UID, Until: w.now.Add(doubt)})
}

func (w *world) bindSettled(pod *corev1.Pod, readAt time.Time) {
	w.apply(BindDisproved{UID: pod.UID, ReadAt: readAt})
}

// schedule runs a whole cycle until the bind is sent.
func (w *world) schedule(pod *corev1.Pod) *Decision {
	w.t.Helper()
	answer := w.ask(pod)
	if answer.Decision == nil {
		w.t.Fatalf("%s asks: %s %s", pod.Name, answer.Reason, answer.Message)
	}
	if !w.reserve(pod, answer.Decision) {
		w.t.Fatalf("reserve %s in %q", pod.Name, answer.Decision.Name())
	}
	if !w.startBind(pod, answer.Decision) {
		w.t.Fatalf("send the bind of %s", pod.Name)
	}
	return answer.Decision
}

// refuse is called for a pod in the middle of a cycle in a subset. The scheduler finds no node for it. refuse returns the next step.
func (w *world) refuse(pod *corev1.Pod) Step {
	w.t.Helper()
	step, _ := w.refuseIn(pod)
	return step
}

func (w *world) refuseIn(pod *corev1.Pod) (Step, *Decision) {
	w.t.Helper()
	answer := w.ask(pod)
	if answer.Decision == nil {
		w.t.Fatalf("%s: %s %s", pod.Name, answer.Reason, answer.Message)
	}
	return w.apply(NoNodeFound{UID: pod.UID, Decision: answer.Decision}).Next, answer.Decision
}

// preempt makes the pod preempt in the subset in which it asks.
func (w *world) preempt(pod *corev1.Pod, nominated bool) {
	w.t.Helper()
	step, d := w.refuseIn(pod)
	if step != Preempt {
		w.t.Fatalf("%s: got step %d, want to preempt", pod.Name, step)
	}
	w.apply(Preempted{UID: pod.UID, Decision: d, Nominated: nominated})
}

// exhaust lets a pod find no node in any subset with quota, one subset after the other.
func (w *world) exhaust(pod *corev1.Pod, subsets ...string) {
	w.t.Helper()
	for _, name := range subsets {
		step, d := w.refuseIn(pod)
		if d.Name() != name || step != GoOn {
			w.t.Fatalf("%s: got step %d in %s, want to go on from %s", pod.Name, step, d.Name(), name)
		}
	}
	w.expectChoice(pod, "NoNodeFits")
}

// mayRetry returns whether the scheduler tries the pod because of a change on a node.
func (w *world) mayRetry(pod *corev1.Pod, change any, zone string) bool {
	return w.apply(ClusterChanged{UID: pod.UID, Change: change, Node: w.ledger.nodes["node-"+zone], OnNode: true}).OK
}

func (w *world) expectChoice(pod *corev1.Pod, want string) {
	w.t.Helper()
	if got := w.choose(pod); got != want {
		w.t.Errorf("%s chose %q, want %q", pod.Name, got, want)
	}
}

// expectKept compares the slots of revision v1, for example "a=2 b=1".
func (w *world) expectKept(want string) {
	w.t.Helper()
	w.expectKeptIn("v1", want)
}

func (w *world) expectKeptIn(scope, want string) {
	w.t.Helper()
	a := w.ledger.byName[spreadKey]
	var got []string
	for i := range a.policy.Subsets {
		got = append(got, fmt.Sprintf("%s=%d", a.policy.Subsets[i].Name, a.tally.Kept(scope).At(i)))
	}
	if got := strings.Join(got, " "); got != want {
		w.t.Errorf("slots of %q: %q, want %q", scope, got, want)
	}
}

func (w *world) expectAwake(want ...string) {
	w.t.Helper()
	sort.Strings(w.awake)
	if fmt.Sprint(w.awake) != fmt.Sprint(want) {
		w.t.Errorf("woken %v, want %v", w.awake, want)
	}
	w.awake = nil
}

const (
	twoThenAny = `subsets:
- {name: a, maxReplicas: 2, requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [a]}]}}
- {name: b, requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [b]}]}}`
	twoAndOneWait = `{subsets: [{name: a, maxReplicas: 2}, {name: b, maxReplicas: 1}], scheduleStrategy: {whenFull: Wait}}`
	halves        = `{subsets: [{name: a, maxReplicas: "50%"}, {name: b}]}`
	early         = `subsets:
- {name: a, maxReplicas: 1, patch: {spec: {priorityClassName: low}}}
- {name: b, maxReplicas: 2}`
	adaptive = `subsets:
- {name: a, requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [a]}]}}
- {name: b, requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [b]}]}}
scheduleStrategy: {type: Adaptive}`
)
