package workloadspread

import (
	"encoding/json"
	"fmt"
	"slices"
	"sort"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/ledger"
	"github.com/berth-project/berth/pkg/subset"
)

var (
	deploymentKind = appsv1.SchemeGroupVersion.WithKind("Deployment").GroupKind()
	replicaSetKind = appsv1.SchemeGroupVersion.WithKind("ReplicaSet").GroupKind()
)

// world is the plugin with a cluster that the test controls.
type world struct {
	t testing.TB
	*Spread
	nodes map[string]*corev1.Node
	pods  map[types.UID]*corev1.Pod
	// awake are the names of the pods that were woken since the last check.
	awake []string
	// announced are the messages of the announcements since the last check.
	announced []string
}

// want, follow, read and forget implement ownerReader. Tests say what the API server has.
func (w *world) want(schema.GroupKind)          {}
func (w *world) follow(*v1beta1.WorkloadSpread) {}
func (w *world) read(ledger.Question)           {}
func (w *world) forget(ledger.Workload)         {}

// newWorld has a Deployment "web" with this number of replicas and one ReplicaSet, and nodes node-a and node-b in zones a and b.
func newWorld(tb testing.TB, replicas int32) *world {
	tb.Helper()
	w := &world{t: tb, nodes: map[string]*corev1.Node{}, pods: map[types.UID]*corev1.Pod{}}
	w.Spread = &Spread{core: &core{
		settings:     defaultSettings(),
		finder:       newFinder(defaultSettings().notices),
		takeover:     &takeover{done: true},
		lease:        &lease{clock: clock.RealClock{}},
		gated:        func(*corev1.Pod) bool { return false },
		groupVersion: func(*corev1.Pod) string { return "" },
		announce:     func(a announcement) { w.announced = append(w.announced, fmt.Sprintf("%s: %s", a.reason, a.message)) },
		node:         func(name string) *corev1.Node { return w.nodes[name] },
		book: &book{
			clock: clock.RealClock{},
			activate: func(pods map[string]*corev1.Pod) {
				for _, pod := range pods {
					w.awake = append(w.awake, pod.Name)
				}
			},
			cached: func(pod *corev1.Pod) bool { return w.pods[pod.UID] != nil && mayStillRun(w.pods[pod.UID], pod) },
			owners: w,
			ledger: ledger.New(2 * time.Second), inFlight: map[types.UID]bool{}, held: map[types.UID]*heldPod{},
		},
	}}
	local, err := stockFilters(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	w.finder.predicates.profiles.Store("", filters{of: func(pod *corev1.Pod) func(fwk.NodeInfo) string { return refuse(tb.Context(), local, pod) }})
	for _, zone := range []string{"a", "b"} {
		node := zoneNode("node-"+zone, zone)
		w.nodes[node.Name] = node
		w.book.apply(ledger.NodeSeen{Node: node})
	}
	w.scale(replicas)
	w.book.apply(ledger.OwnerSeen{Kind: replicaSetKind, Object: &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "rs", UID: "rs-uid",
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "web-uid", Controller: ptr.To(true)}}}}})
	return w
}

// scale shows the ledger the Deployment with this number of replicas.
func (w *world) scale(replicas int32) {
	w.book.apply(ledger.OwnerSeen{Kind: deploymentKind, Object: &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "web-uid"}, Spec: appsv1.DeploymentSpec{Replicas: &replicas}}})
}

// spread creates or changes the spread "web".
func (w *world) spread(generation int64, spec string) {
	w.t.Helper()
	object := &v1beta1.WorkloadSpread{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "spread-uid", Generation: generation}}
	object.Spec.TargetReference = v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}
	if err := yaml.UnmarshalStrict([]byte(spec), &object.Spec); err != nil {
		w.t.Fatalf("parsing the spec: %v", err)
	}
	w.book.apply(ledger.SpreadSeen{Spread: object})
}

func podOf(owner types.UID, name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name + "-uid"), Labels: map[string]string{"pod-template-hash": "v1"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "rs", UID: owner, Controller: ptr.To(true)}}}}
}

// see shows the ledger a pod.
func (w *world) see(pod *corev1.Pod) {
	w.pods[pod.UID] = pod
	w.book.apply(ledger.PodSeen{Pod: pod})
}

// pod creates a pending pod of the Deployment and shows it to the ledger.
func (w *world) pod(name string) *corev1.Pod {
	pod := podOf("rs-uid", name)
	w.see(pod)
	return pod
}

func (w *world) podsNamed(prefix string, n int) []*corev1.Pod {
	pods := make([]*corev1.Pod, n)
	for i := range pods {
		pods[i] = w.pod(fmt.Sprintf("%s%d", prefix, i))
	}
	return pods
}

func (w *world) delete(pod *corev1.Pod) {
	delete(w.pods, pod.UID)
	w.book.leftQueue(pod.UID)
	w.book.apply(ledger.PodGone{UID: pod.UID})
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

func terminating(pod *corev1.Pod) *corev1.Pod {
	ending := pod.DeepCopy()
	ending.DeletionTimestamp = &metav1.Time{Time: time.Unix(1000, 0)}
	return ending
}

// nodeInfo returns a node of a zone as in the scheduler's snapshot. Every call gives it a newer generation.
func nodeInfo(zone, cpu string, pods ...*corev1.Pod) fwk.NodeInfo {
	info := framework.NewNodeInfo(pods...)
	info.SetNode(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-" + zone, Labels: map[string]string{"zone": zone}},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("1Gi"), corev1.ResourcePods: resource.MustParse("110")}},
	})
	return info
}

func requesting(pod *corev1.Pod, cpu string) *corev1.Pod {
	pod.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}}
	return pod
}

// asks runs the pod's PreFilter. It returns the subset, "-" for none, or the message of a refusal.
func (w *world) asks(pod *corev1.Pod, nodes ...fwk.NodeInfo) string {
	w.t.Helper()
	switch d, refusal := w.ask(ledger.PodAsks{Pod: pod}, nodes); {
	case refusal != nil:
		return refusal.Message()
	case d == nil:
		return "no spread"
	case d.Subset == subset.None:
		return "-"
	default:
		return d.Name()
	}
}

func (w *world) expectAnswer(want string, pod *corev1.Pod, nodes ...fwk.NodeInfo) {
	w.t.Helper()
	if got := w.asks(pod, nodes...); got != want {
		w.t.Errorf("%s: got %q, want %q", pod.Name, got, want)
	}
}

// schedule runs a whole cycle until the bind is sent.
func (w *world) schedule(pod *corev1.Pod) *decision {
	w.t.Helper()
	d, refusal := w.ask(ledger.PodAsks{Pod: pod}, nil)
	if d == nil {
		w.t.Fatalf("%s: %v", pod.Name, refusal)
		return nil
	}
	if !w.book.apply(ledger.NodeFound{UID: pod.UID, Decision: d.Decision}).OK || !w.book.apply(ledger.BindSent{UID: pod.UID, Decision: d.Decision}).OK {
		w.t.Fatalf("%s cannot be bound in %q", pod.Name, d.Name())
	}
	return d
}

// refuse lets the scheduler find no node for the pod in the subset in which it asks. It returns the next step.
func (w *world) refuse(pod *corev1.Pod, verdict memoEntry, nodes ...fwk.NodeInfo) ledger.Step {
	w.t.Helper()
	d, refusal := w.ask(ledger.PodAsks{Pod: pod}, nodes)
	if d == nil {
		w.t.Fatalf("%s: %v", pod.Name, refusal)
		return ledger.GoOn
	}
	next := w.book.apply(ledger.NoNodeFound{UID: pod.UID, Decision: d.Decision}).Next
	if next == ledger.GoOn {
		w.finder.keep(d.Policy, w.finder.keyOf(pod, d.Subset), verdict)
	}
	return next
}

func (w *world) expectAwake(want ...string) {
	w.t.Helper()
	sort.Strings(w.awake)
	if !slices.Equal(w.awake, want) {
		w.t.Errorf("woken %v, want %v", w.awake, want)
	}
	w.awake = nil
}

// stages are how many pods are in each stage.
func (w *world) stages() map[string]int {
	counts := query(w.book, (*ledger.Ledger).Counts)
	return counts.ByStage()
}

// expectStages compares how many pods hold a slot in each stage.
func (w *world) expectStages(want map[string]int) {
	w.t.Helper()
	got := map[string]int{}
	for stage, n := range w.stages() {
		if n > 0 {
			got[stage] = n
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		w.t.Errorf("pods by stage %v, want %v", got, want)
	}
}

const (
	twoThenAny = `subsets:
- {name: a, maxReplicas: 2, requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [a]}]}}
- {name: b, requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [b]}]}}`
	halves   = `{subsets: [{name: a, maxReplicas: "50%"}, {name: b}]}`
	adaptive = `subsets:
- {name: a, requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [a]}]}}
- {name: b, requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [b]}]}}
scheduleStrategy: {type: Adaptive}`
)
