package workloadspread

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"sort"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

var histories = flag.Uint("histories", 300, "how many random histories of a ledger to run")

// world is what the ledger sees of the cluster, under the test's control.
type world struct {
	t        testing.TB
	clock    *testingclock.FakeClock
	ledger   *ledger
	nodes    map[string]*corev1.Node
	pods     map[types.UID]*corev1.Pod
	workload map[workloadKey]int32
	parents  map[types.UID]*workload.Owner
	// selects the workload's pods; nil if that is not known.
	selects labels.Selector
	// awake are the names of the pods woken since they were last asked for.
	awake []string
	// announced are the messages of the announcements since they were last asked for.
	announced []string
}

func (w *world) parent(_ string, owner workload.Owner) (*workload.Owner, bool) {
	parent, seen := w.parents[owner.UID]
	return parent, seen
}

func (w *world) selector(workloadKey) labels.Selector { return w.selects }

func (w *world) replicas(target workloadKey, _ *v1alpha1.WorkloadSpreadSpec) (int32, bool) {
	n, known := w.workload[target]
	return n, known
}

func (w *world) forget(workloadKey) {}

func (w *world) cached(pod *corev1.Pod) bool { return w.pods[pod.UID] != nil }

func (w *world) inNamespace(string) []*corev1.Pod {
	pods := make([]*corev1.Pod, 0, len(w.pods))
	for _, pod := range w.pods {
		pods = append(pods, pod)
	}
	return pods
}

var deploymentKey = workloadKey{"ns", appsv1.GroupName, "Deployment", "web"}

// newWorld has a Deployment "web" of the given replicas with one ReplicaSet, and nodes node-a and node-b in zones a and b.
func newWorld(tb testing.TB, replicas int32) *world {
	tb.Helper()
	w := &world{t: tb, clock: testingclock.NewFakeClock(time.Unix(1000, 0)),
		nodes: map[string]*corev1.Node{}, pods: map[types.UID]*corev1.Pod{},
		workload: map[workloadKey]int32{deploymentKey: replicas},
		parents: map[types.UID]*workload.Owner{
			"rs-uid": {Kind: schema.GroupKind{Group: appsv1.GroupName, Kind: "Deployment"}, Name: "web", UID: "web-uid"}, "web-uid": nil}}
	for _, zone := range []string{"a", "b"} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-" + zone, Labels: map[string]string{"zone": zone}}}
		w.nodes[node.Name] = node
	}
	w.ledger = newLedger(w.clock, 2*time.Second, w, w, func(name string) *corev1.Node { return w.nodes[name] }, func(pods map[string]*corev1.Pod) {
		for _, pod := range pods {
			w.awake = append(w.awake, pod.Name)
		}
	}, func(a announcement) { w.announced = append(w.announced, fmt.Sprintf("%s: %s", a.reason, a.message)) })
	return w
}

// spread creates or changes the spread "web".
func (w *world) spread(generation int64, spec string) {
	w.t.Helper()
	object := &v1alpha1.WorkloadSpread{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "spread-uid", Generation: generation}}
	object.Spec.TargetReference = v1alpha1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}
	if err := yaml.UnmarshalStrict([]byte(spec), &object.Spec); err != nil {
		w.t.Fatalf("parsing the spec: %v", err)
	}
	w.ledger.spreadChanged(object)
}

// pod makes a pending pod of the Deployment and shows it to the ledger.
func (w *world) pod(name string) *corev1.Pod {
	pod := w.podOf("rs-uid", name)
	w.pods[pod.UID] = pod
	w.ledger.observe(pod)
	return pod
}

func (w *world) podOf(owner types.UID, name string) *corev1.Pod {
	yes := true
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name + "-uid"), Labels: map[string]string{"pod-template-hash": "v1"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "rs", UID: owner, Controller: &yes}}}}
}

func (w *world) podsNamed(prefix string, n int) []*corev1.Pod {
	pods := make([]*corev1.Pod, n)
	for i := range pods {
		pods[i] = w.pod(fmt.Sprintf("%s%d", prefix, i))
	}
	return pods
}

// onNode is the pod as the API server shows it after a bind by Berth to a subset; "-" for a bind by somebody else.
func onNode(pod *corev1.Pod, node, in string) *corev1.Pod {
	bound := pod.DeepCopy()
	bound.Spec.NodeName = node
	if in != "-" {
		record, _ := json.Marshal(v1alpha1.MatchedSubset{Name: "web", Subset: in, UID: string(pod.UID)})
		bound.Annotations = map[string]string{v1alpha1.MatchedAnnotation: string(record)}
	}
	return bound
}

func terminating(pod *corev1.Pod) *corev1.Pod {
	ending := pod.DeepCopy()
	ending.DeletionTimestamp = &metav1.Time{Time: time.Unix(1000, 0)}
	return ending
}

// seeBound shows the ledger a bound pod.
func (w *world) seeBound(pod *corev1.Pod, node, in string) {
	bound := onNode(pod, node, in)
	w.pods[bound.UID] = bound
	w.ledger.observe(bound)
}

func (w *world) delete(pod *corev1.Pod) {
	delete(w.pods, pod.UID)
	w.ledger.gone(pod.UID)
}

// choose runs the pod's PreFilter and names the subset: "-" for none, or the reason of a refusal.
func (w *world) choose(pod *corev1.Pod) string {
	w.t.Helper()
	switch answer := w.ledger.choose(pod, nil); {
	case answer.decision == nil && answer.reason == "":
		return "no spread"
	case answer.decision == nil:
		return string(answer.reason)
	case answer.subset == subset.None:
		return "-"
	default:
		return answer.name()
	}
}

// schedule runs a whole cycle up to the sending of the bind.
func (w *world) schedule(pod *corev1.Pod) *decision {
	w.t.Helper()
	answer := w.ledger.choose(pod, nil)
	if answer.decision == nil {
		w.t.Fatalf("choose %s: %s %s", pod.Name, answer.reason, answer.message)
	}
	if !w.ledger.reserve(pod, answer.decision) {
		w.t.Fatalf("reserve %s in %q", pod.Name, answer.name())
	}
	if !w.ledger.startBind(pod.UID) {
		w.t.Fatalf("startBind %s", pod.Name)
	}
	return answer.decision
}

func (w *world) expectChoice(pod *corev1.Pod, want string) {
	w.t.Helper()
	if got := w.choose(pod); got != want {
		w.t.Errorf("%s chose %q, want %q", pod.Name, got, want)
	}
}

// expectKept compares the slots of revision v1, as in "a=2 b=1".
func (w *world) expectKept(want string) {
	w.t.Helper()
	s := w.ledger.spreads.byName[types.NamespacedName{Namespace: "ns", Name: "web"}]
	var got []string
	for i := range s.policy.Subsets {
		got = append(got, fmt.Sprintf("%s=%d", s.policy.Subsets[i].Name, s.tally.Kept("v1").At(i)))
	}
	if got := strings.Join(got, " "); got != want {
		w.t.Errorf("slots %q, want %q", got, want)
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
- {name: a, maxReplicas: 2, requiredNodeSelectorTerm: {matchExpressions: [{key: zone, operator: In, values: [a]}]}}
- {name: b, requiredNodeSelectorTerm: {matchExpressions: [{key: zone, operator: In, values: [b]}]}}`
	twoAndOneWait = `{subsets: [{name: a, maxReplicas: 2}, {name: b, maxReplicas: 1}], scheduleStrategy: {whenFull: Wait}}`
	halves        = `{subsets: [{name: a, maxReplicas: "50%"}, {name: b}]}`
)

func TestPendingPodsHoldClaims(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, twoThenAny)
	pods := w.podsNamed("p", 4)
	// None of them finds a node, and still the third goes on to the second subset.
	for i, want := range []string{"a", "a", "b", "b"} {
		w.expectChoice(pods[i], want)
	}
	w.expectKept("a=2 b=2")
	// A second cycle of the same pod takes no second slot.
	w.expectChoice(pods[0], "a")
	w.expectKept("a=2 b=2")
	// A claim that is given up goes to the oldest pod of a later subset.
	w.delete(pods[1])
	w.expectAwake("p2")
	w.expectChoice(pods[2], "a")
	w.expectKept("a=2 b=1")
}

func TestASlotGoesThroughEveryState(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, twoThenAny)
	pod := w.pod("p")
	d := w.ledger.choose(pod, nil).decision
	w.expectKept("a=1 b=0")
	if !w.ledger.reserve(pod, d) {
		t.Fatal("reserve")
	}
	w.ledger.unreserve(pod.UID)
	w.ledger.unreserve(pod.UID)
	w.expectKept("a=1 b=0") // the claim stays
	w.schedule(pod)
	w.ledger.unreserve(pod.UID) // the scheduler does this after every bind error
	w.ledger.bindRefused(pod.UID)
	w.expectKept("a=1 b=0")
	w.schedule(pod)
	w.seeBound(pod, "node-a", "a")
	w.seeBound(pod, "node-a", "a") // informers repeat themselves
	w.ledger.unreserve(pod.UID)
	w.ledger.bindRefused(pod.UID)
	w.expectKept("a=1 b=0")
	w.delete(pod)
	w.ledger.gone(pod.UID)
	w.expectKept("a=0 b=0")
}

func TestAnUncertainBindKeepsItsSlot(t *testing.T) {
	const doubt = 10 * time.Second
	uncertain := func(t *testing.T) (*world, *corev1.Pod) {
		t.Helper()
		w := newWorld(t, 4)
		w.spread(1, twoAndOneWait)
		pod := w.pod("p")
		w.schedule(pod)
		w.ledger.bindUncertain(pod.UID, doubt)
		w.ledger.unreserve(pod.UID)
		w.expectKept("a=1 b=0")
		return w, pod
	}
	t.Run("while it is tried again in the same subset", func(t *testing.T) {
		w, pod := uncertain(t)
		w.schedule(pod)
		w.expectKept("a=1 b=0")
		w.seeBound(pod, "node-a", "a")
		w.expectKept("a=1 b=0")
	})
	t.Run("and takes another when it is tried in a different subset", func(t *testing.T) {
		w, pod := uncertain(t)
		w.spread(2, `{subsets: [{name: a, maxReplicas: 0}, {name: b, maxReplicas: 1}], scheduleStrategy: {whenFull: Wait}}`)
		w.expectChoice(pod, "b")
		w.expectKept("a=1 b=1")
		w.seeBound(pod, "node-a", "a") // it was the first bind that happened
		w.expectKept("a=1 b=0")
	})
	t.Run("until the pod is gone", func(t *testing.T) {
		w, pod := uncertain(t)
		w.delete(pod)
		w.expectKept("a=0 b=0")
	})
	t.Run("until a read after all doubt shows that it did not happen", func(t *testing.T) {
		w, pod := uncertain(t)
		w.ledger.bindSettled(pod.UID, w.clock.Now().Add(doubt-1))
		w.expectKept("a=1 b=0")
		w.ledger.bindSettled(pod.UID, w.clock.Now().Add(doubt))
		w.expectKept("a=0 b=0")
	})
	t.Run("and a second uncertain bind prolongs the doubt", func(t *testing.T) {
		w, pod := uncertain(t)
		w.clock.Step(doubt - 1)
		w.schedule(pod)
		w.ledger.bindUncertain(pod.UID, doubt)
		w.ledger.bindSettled(pod.UID, w.clock.Now().Add(1))
		w.expectKept("a=1 b=0")
	})
}

func TestABindThatMayYetHappenKeepsItsSlotWhateverBecomesOfTheSpread(t *testing.T) {
	const doubt = 10 * time.Second
	key := types.NamespacedName{Namespace: "ns", Name: "web"}
	const withoutA = `{subsets: [{name: c, maxReplicas: 1}, {name: b, maxReplicas: 1}], scheduleStrategy: {whenFull: Wait}}`
	// What happens to the spread, in two halves: between them it cannot be used, or not for the bind.
	changes := map[string]struct{ begin, end func(*world) }{
		"it is deleted and created again": {
			func(w *world) { w.ledger.spreadGone(key) },
			func(w *world) { w.spread(1, twoAndOneWait) },
		},
		"it is invalid for a while": {
			func(w *world) { w.spread(2, `subsets: [{name: a, maxReplicas: -1}]`) },
			func(w *world) { w.spread(3, twoAndOneWait) },
		},
		"it is invalid, deleted and created again": {
			func(w *world) { w.spread(2, `subsets: [{name: a, maxReplicas: -1}]`); w.ledger.spreadGone(key) },
			func(w *world) { w.spread(1, twoAndOneWait) },
		},
		"it has another subset in its place for a while": {
			func(w *world) { w.spread(2, withoutA) },
			func(w *world) { w.spread(3, twoAndOneWait) },
		},
		"it has another subset in its place, is edited again, is invalid and corrected": {
			func(w *world) {
				w.spread(2, withoutA)
				w.spread(3, `subsets: [{name: b, maxReplicas: 3}]`)
				w.spread(4, `subsets: [{name: a, maxReplicas: -1}]`)
			},
			func(w *world) { w.spread(5, twoAndOneWait) },
		},
		"it has another subset in its place, is deleted and created again": {
			func(w *world) { w.spread(2, withoutA); w.ledger.spreadGone(key) },
			func(w *world) { w.spread(1, twoAndOneWait) },
		},
	}
	settled := func(w *world, pod *corev1.Pod) {
		w.clock.Step(doubt)
		w.ledger.bindSettled(pod.UID, w.clock.Now())
	}
	// What happens to the bind, which was sent before: ahead of the first half, between the halves, and afterwards.
	tests := map[string]struct {
		before, between, after func(*world, *corev1.Pod)
		want, wantAfter        string
	}{
		"sent, and it happens": {
			after: func(w *world, pod *corev1.Pod) { w.seeBound(pod, "node-a", "a") },
			want:  "a=1 b=0", wantAfter: "a=1 b=0",
		},
		"sent, and it is refused": {
			after: func(w *world, pod *corev1.Pod) { w.ledger.bindRefused(pod.UID) },
			want:  "a=1 b=0", wantAfter: "a=1 b=0", // by its claim
		},
		"sent, and the pod ends": {
			after: func(w *world, pod *corev1.Pod) { w.delete(pod) },
			want:  "a=1 b=0", wantAfter: "a=0 b=0",
		},
		"it happens between": {
			between: func(w *world, pod *corev1.Pod) { w.seeBound(pod, "node-a", "a") },
			after:   func(w *world, pod *corev1.Pod) { w.delete(pod) },
			want:    "a=1 b=0", wantAfter: "a=0 b=0",
		},
		"it is refused between": {
			between: func(w *world, pod *corev1.Pod) { w.ledger.bindRefused(pod.UID) },
			want:    "a=0 b=0", wantAfter: "a=0 b=0",
		},
		"the pod ends between": {
			between: func(w *world, pod *corev1.Pod) { w.delete(pod) },
			want:    "a=0 b=0", wantAfter: "a=0 b=0",
		},
		"it becomes uncertain between": {
			between: func(w *world, pod *corev1.Pod) { w.ledger.bindUncertain(pod.UID, doubt) },
			after:   settled, want: "a=1 b=0", wantAfter: "a=0 b=0",
		},
		"it was uncertain": {
			before: func(w *world, pod *corev1.Pod) { w.ledger.bindUncertain(pod.UID, doubt) },
			after:  settled, want: "a=1 b=0", wantAfter: "a=0 b=0",
		},
		"it was uncertain, and is read too early": {
			before:  func(w *world, pod *corev1.Pod) { w.ledger.bindUncertain(pod.UID, doubt) },
			between: func(w *world, pod *corev1.Pod) { w.ledger.bindSettled(pod.UID, w.clock.Now()) },
			want:    "a=1 b=0", wantAfter: "a=1 b=0",
		},
		"it was uncertain, and is settled between": {
			before:  func(w *world, pod *corev1.Pod) { w.ledger.bindUncertain(pod.UID, doubt) },
			between: settled, want: "a=0 b=0", wantAfter: "a=0 b=0",
		},
		"it was uncertain, and a read has shown that it happened": {
			before: func(w *world, pod *corev1.Pod) {
				w.ledger.bindUncertain(pod.UID, doubt)
				w.ledger.observeKnown(onNode(pod, "node-a", "a"))
			},
			after: func(w *world, pod *corev1.Pod) { w.seeBound(pod, "node-a", "a") },
			want:  "a=1 b=0", wantAfter: "a=1 b=0",
		},
		"it was uncertain, and a read shows between that it happened": {
			before:  func(w *world, pod *corev1.Pod) { w.ledger.bindUncertain(pod.UID, doubt) },
			between: func(w *world, pod *corev1.Pod) { w.ledger.observeKnown(onNode(pod, "node-a", "a")) },
			after:   func(w *world, pod *corev1.Pod) { w.delete(pod) },
			want:    "a=1 b=0", wantAfter: "a=0 b=0",
		},
	}
	for how, change := range changes {
		for name, tc := range tests {
			t.Run(name+", and "+how, func(t *testing.T) {
				w := newWorld(t, 4)
				w.spread(1, twoAndOneWait)
				pod := w.pod("p")
				w.schedule(pod)
				run := func(f func(*world, *corev1.Pod)) {
					if f != nil {
						f(w, pod)
					}
				}
				run(tc.before)
				change.begin(w)
				run(tc.between)
				change.end(w)
				w.expectKept(tc.want)
				run(tc.after)
				w.expectKept(tc.wantAfter)
				if len(w.ledger.promises) > 0 || len(w.ledger.ahead) > 0 {
					t.Errorf("promises are left: %v, and read pods: %v", w.ledger.promises, w.ledger.ahead)
				}
			})
		}
	}
	t.Run("next to that of another bind to a subset that is still there", func(t *testing.T) {
		w := newWorld(t, 4)
		w.spread(1, twoAndOneWait)
		pod := w.pod("p")
		w.schedule(pod)
		w.ledger.bindUncertain(pod.UID, doubt)
		w.clock.Step(doubt / 2)
		w.spread(2, `{subsets: [{name: b, maxReplicas: 1}], scheduleStrategy: {whenFull: Wait}}`)
		w.schedule(pod)
		w.spread(3, twoAndOneWait)
		w.expectKept("a=1 b=1")
		w.spread(4, `{subsets: [{name: b, maxReplicas: 1}], scheduleStrategy: {whenFull: Wait}}`)
		w.ledger.bindUncertain(pod.UID, doubt)
		w.expectKept("b=1")
		w.clock.Step(doubt / 2)
		w.ledger.bindSettled(pod.UID, w.clock.Now()) // the doubt of b goes on
		w.spread(5, twoAndOneWait)
		w.expectKept("a=0 b=1")
		w.clock.Step(doubt / 2)
		w.ledger.bindSettled(pod.UID, w.clock.Now())
		w.expectKept("a=0 b=0")
		if len(w.ledger.promises) > 0 {
			t.Errorf("promises are left: %v", w.ledger.promises)
		}
	})
	t.Run("but one that is not sent yet is not sent", func(t *testing.T) {
		for how, change := range changes {
			w := newWorld(t, 4)
			w.spread(1, twoAndOneWait)
			pod := w.pod("p")
			if !w.ledger.reserve(pod, w.ledger.choose(pod, nil).decision) {
				t.Fatal("reserve")
			}
			change.begin(w)
			if w.ledger.startBind(pod.UID) {
				t.Errorf("%s: the bind is sent, and holds no slot", how)
			}
		}
	})
}

func TestFullSubsetsHoldPodsAndWakeAsManyAsThereAreSlots(t *testing.T) {
	w := newWorld(t, 10)
	w.spread(1, twoAndOneWait)
	pods := w.podsNamed("p", 8)
	for i, want := range []string{"a", "a", "b", "SubsetsFull", "SubsetsFull", "SubsetsFull", "SubsetsFull", "SubsetsFull"} {
		w.expectChoice(pods[i], want)
	}
	w.expectAwake()
	w.seeBound(pods[0], "node-a", "a")
	w.seeBound(pods[2], "node-b", "b")
	w.delete(pods[2])
	w.expectAwake("p3")
	// p3 has not had its cycle: the slot of b is meant for it, the one of a for the next.
	w.delete(pods[0])
	w.expectAwake("p4")
	w.expectChoice(pods[3], "a")
	w.expectChoice(pods[4], "b")
	w.expectAwake()
	// A woken pod that disappears leaves its slot to the next.
	w.seeBound(pods[1], "node-a", "a")
	w.delete(pods[1])
	w.awake = nil
	w.delete(pods[5])
	w.expectChoice(pods[6], "a")
	w.expectKept("a=2 b=1")
	// A raised quota wakes everyone who waits.
	w.spread(2, `{subsets: [{name: a, maxReplicas: 3}, {name: b, maxReplicas: 1}], scheduleStrategy: {whenFull: Wait}}`)
	w.expectAwake("p3", "p4", "p6", "p7")
}

func TestWhenFullScheduleLetsPodsGo(t *testing.T) {
	w := newWorld(t, 5)
	w.spread(1, `subsets: [{name: a, maxReplicas: 1}]`)
	pods := w.podsNamed("p", 2)
	w.expectChoice(pods[0], "a")
	w.expectChoice(pods[1], "-")
	w.seeBound(pods[1], "node-a", "")
	w.expectKept("a=1")
}

func TestALoweredQuotaMovesTheClaimsThatAskedLast(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, `subsets: [{name: a, maxReplicas: 4}, {name: b}]`)
	pods := w.podsNamed("p", 4)
	for _, pod := range pods {
		w.expectChoice(pod, "a")
	}
	w.spread(2, `subsets: [{name: a, maxReplicas: 2}, {name: b}]`)
	w.expectAwake("p0", "p1", "p2", "p3")
	for i, want := range []string{"a", "a", "b", "b"} {
		w.expectChoice(pods[i], want)
	}
	w.expectKept("a=2 b=2")
}

func TestALoweredQuotaCountsOnNoSlotThatAnUncertainBindMayHaveTaken(t *testing.T) {
	const doubt = 10 * time.Second
	t.Run("by a pod that claims the subset again", func(t *testing.T) {
		w := newWorld(t, 4)
		w.spread(1, twoAndOneWait)
		first, second := w.pod("first"), w.pod("second")
		w.expectChoice(first, "a")
		w.schedule(second)
		w.ledger.bindUncertain(second.UID, doubt)
		w.expectChoice(second, "a")
		w.spread(2, `{subsets: [{name: a, maxReplicas: 1}, {name: b, maxReplicas: 1}], scheduleStrategy: {whenFull: Wait}}`)
		w.expectChoice(first, "b") // although it asked first
		w.expectChoice(second, "a")
		w.seeBound(second, "node-a", "a") // its first bind has happened
		w.expectKept("a=1 b=1")
	})
	t.Run("in another subset than the one that is claimed", func(t *testing.T) {
		w := newWorld(t, 9)
		w.spread(1, `{subsets: [{name: a, maxReplicas: 3}, {name: b, maxReplicas: 9}], scheduleStrategy: {whenFull: Wait}}`)
		pod := w.pod("p")
		w.schedule(pod)
		w.ledger.bindUncertain(pod.UID, doubt)
		for _, other := range w.podsNamed("bound", 2) {
			w.schedule(other)
			w.seeBound(other, "node-a", "a")
		}
		w.spread(2, `{subsets: [{name: a, maxReplicas: 2}, {name: b, maxReplicas: 9}], scheduleStrategy: {whenFull: Wait}}`)
		w.expectChoice(pod, "b")
		for _, later := range w.podsNamed("later", 3) {
			w.expectChoice(later, "b")
		}
		w.spread(3, `{subsets: [{name: a, maxReplicas: 2}, {name: b, maxReplicas: 1}], scheduleStrategy: {whenFull: Wait}}`)
		w.expectChoice(pod, "b") // those behind it in b make no room in a, which others fill
		w.expectKept("a=3 b=4")
	})
}

func TestAReservationDoesNotOutliveItsPolicy(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, twoThenAny)
	pod := w.pod("p")
	d := w.ledger.choose(pod, nil).decision
	w.spread(2, `subsets: [{name: b}, {name: a, maxReplicas: 2}]`)
	if w.ledger.reserve(pod, d) {
		t.Error("reserved by a decision of the policy before")
	}
	w.expectKept("b=0 a=1") // the claim keeps its subset's name, not its place
}

func TestSlotsFollowTheNamesOfSubsets(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, twoThenAny)
	pods := w.podsNamed("p", 3)
	for _, pod := range pods {
		w.schedule(pod)
	}
	w.seeBound(pods[0], "node-a", "a")
	w.expectKept("a=2 b=1")
	w.spread(2, `subsets:
- {name: b, requiredNodeSelectorTerm: {matchExpressions: [{key: zone, operator: In, values: [b]}]}}
- {name: c, requiredNodeSelectorTerm: {matchExpressions: [{key: zone, operator: In, values: [a]}]}}`)
	// p0 is on a node that c now selects; p1's bind to a is on its way and no longer has a subset; p2 stays in b.
	w.expectKept("b=1 c=1")
	w.seeBound(pods[1], "node-a", "a")
	w.expectKept("b=1 c=2")
}

func TestForgedRecordsNeitherFreeNorTakeQuota(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, twoThenAny)
	pending := w.podOf("rs-uid", "pending")
	pending.Annotations = map[string]string{v1alpha1.MatchedAnnotation: `{"name":"web","subset":"b","uid":"pending-uid"}`}
	w.pods[pending.UID] = pending
	w.ledger.observe(pending)
	w.expectChoice(pending, "a")
	pod := w.pod("p")
	w.schedule(pod)
	w.seeBound(pod, "node-a", "a")
	w.expectKept("a=2 b=0")
	w.seeBound(pod, "node-a", "b") // somebody has changed the record of a bound pod
	w.expectKept("a=2 b=0")
	foreign := onNode(w.podOf("rs-uid", "foreign"), "node-b", "-")
	foreign.Annotations = map[string]string{v1alpha1.MatchedAnnotation: `{"name":"web","subset":"a","uid":"p-uid"}`}
	w.ledger.observe(foreign)
	w.expectKept("a=2 b=1") // by its node
}

func TestAfterARestartTheBoundPodsAreCountedByTheirRecords(t *testing.T) {
	w := newWorld(t, 6)
	for i, in := range []string{"a", "b", "-", ""} {
		w.seeBound(w.podOf("rs-uid", fmt.Sprintf("p%d", i)), "node-b", in)
	}
	w.seeBound(w.podOf("rs-uid", "early"), "node-new", "-")
	w.spread(1, twoThenAny)
	w.expectKept("a=1 b=2")
	// The node of an adopted pod may be seen after the pod.
	w.nodes["node-new"] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-new", Labels: map[string]string{"zone": "a"}}}
	w.ledger.nodeSeen("node-new")
	w.expectKept("a=2 b=2")
	w.expectChoice(w.pod("next"), "b")
}

func TestAPodThatEndsWhileItIsBeingReadHoldsNoSlot(t *testing.T) {
	// Both reads show the pod as it was before its end was reported, and no event of it will come any more.
	tests := map[string]struct {
		verb string
		read func(*testing.T, *world, kubernetes.Interface, *corev1.Pod)
	}{
		"by the list of a take-over": {"list", func(t *testing.T, w *world, client kubernetes.Interface, _ *corev1.Pod) {
			t.Helper()
			takeover := &takeover{clock: clock.RealClock{}, client: client, ledger: w.ledger, listeners: &listeners{}}
			if err := takeover.complete(t.Context()); err != nil || !takeover.done {
				t.Fatalf("take-over done is %t, error %v", takeover.done, err)
			}
			if w.ledger.ended != nil {
				t.Error("the ledger still remembers who has ended")
			}
		}},
		"to settle its bind": {"get", func(t *testing.T, w *world, client kubernetes.Interface, pod *corev1.Pod) {
			t.Helper()
			binds := &binds{client: client, ledger: w.ledger}
			if err := binds.settle(t.Context(), podKey{pod.Namespace, pod.Name, pod.UID}); err != nil {
				t.Fatal(err)
			}
		}},
	}
	ends := map[string]func(*world, *corev1.Pod){
		"deleted":     func(w *world, pod *corev1.Pod) { w.delete(pod) },
		"terminating": func(w *world, pod *corev1.Pod) { w.ledger.observe(terminating(pod)) },
	}
	for name, tc := range tests {
		for how, end := range ends {
			t.Run(name+", "+how, func(t *testing.T) {
				w := newWorld(t, 4)
				w.spread(1, twoThenAny)
				ended, stays := w.pod("ended"), onNode(w.podOf("rs-uid", "stays"), "node-b", "b")
				w.schedule(ended)
				before := onNode(ended, "node-a", "a")
				client := fake.NewClientset()
				client.PrependReactor(tc.verb, "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
					w.seeBound(ended, "node-a", "a")
					end(w, before)
					if tc.verb == "get" {
						return true, before, nil
					}
					return true, &corev1.PodList{Items: []corev1.Pod{*before, *stays}}, nil
				})
				tc.read(t, w, client, ended)
				if tc.verb == "get" {
					w.expectKept("a=0 b=0")
				} else {
					w.expectKept("a=0 b=1")
				}
			})
		}
	}
}

func TestAPodThatAReadHasShownOnItsNodeIsThereWhateverTheCacheHas(t *testing.T) {
	for name, in := range map[string]string{"bound by Berth": "a", "bound by somebody else": "-"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 4)
			w.spread(1, twoThenAny)
			pod := w.pod("p")
			w.ledger.observeListed(onNode(pod, "node-a", in))
			w.expectKept("a=1 b=0")
			w.ledger.spreadGone(types.NamespacedName{Namespace: "ns", Name: "web"})
			w.ledger.observe(pod) // an event of before the bind
			w.spread(1, twoThenAny)
			w.expectKept("a=1 b=0")
			w.ledger.observe(pod)
			w.expectKept("a=1 b=0")
			w.seeBound(pod, "node-a", in)
			if len(w.ledger.ahead) > 0 {
				t.Errorf("read pods are left: %v", w.ledger.ahead)
			}
			w.expectKept("a=1 b=0")
			w.ledger.observeListed(onNode(pod, "node-a", in)) // later than the event
			if len(w.ledger.ahead) > 0 {
				t.Errorf("read pods are left: %v", w.ledger.ahead)
			}
		})
	}
	t.Run("until its end", func(t *testing.T) {
		w := newWorld(t, 4)
		w.spread(1, twoThenAny)
		pod := w.pod("p")
		w.ledger.observeListed(onNode(pod, "node-a", "a"))
		w.ledger.spreadGone(types.NamespacedName{Namespace: "ns", Name: "web"})
		w.ledger.observe(terminating(pod)) // as the cache has it, without a node
		w.spread(1, twoThenAny)
		w.expectKept("a=0 b=0")
		if len(w.ledger.ahead) > 0 {
			t.Errorf("read pods are left: %v", w.ledger.ahead)
		}
	})
}

func TestRelabellingANodeMovesNobody(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, twoThenAny)
	pod := w.pod("p")
	w.seeBound(pod, "node-a", "-")
	w.expectKept("a=1 b=0")
	w.nodes["node-a"].Labels = map[string]string{"zone": "b"}
	w.ledger.nodeSeen("node-a")
	w.seeBound(pod, "node-a", "-")
	w.expectKept("a=1 b=0")
}

func TestTerminatingPodsFreeTheirSlot(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, twoThenAny)
	pod := w.pod("p")
	w.schedule(pod)
	w.seeBound(pod, "node-a", "a")
	w.ledger.observe(terminating(onNode(pod, "node-a", "a")))
	w.expectKept("a=0 b=0")
}

func TestPodsAreHeldUntilTheirOwnerIsSeen(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, twoThenAny)
	parent := w.parents["rs-uid"]
	delete(w.parents, "rs-uid")
	pod := w.pod("p")
	w.expectChoice(pod, "WorkloadNotObserved")
	w.parents["rs-uid"] = parent
	w.ledger.ownerSeen("rs-uid")
	w.expectAwake("p")
	w.expectChoice(pod, "a")
	if len(w.ledger.orphans) != 0 {
		t.Errorf("orphans left: %v", w.ledger.orphans)
	}
}

func TestAHeldPodIsWokenByWhateverEndsItsWait(t *testing.T) {
	withoutOwner := func(t *testing.T) (w *world, pod *corev1.Pod, cacheOwner func()) {
		t.Helper()
		w = newWorld(t, 4)
		w.spread(1, twoThenAny)
		parent := w.parents["rs-uid"]
		delete(w.parents, "rs-uid")
		pod = w.pod("p")
		w.expectChoice(pod, "WorkloadNotObserved")
		w.ledger.observe(pod.DeepCopy()) // the condition that the scheduler has written
		w.expectAwake()
		return w, pod, func() { w.parents["rs-uid"] = parent }
	}
	t.Run("news of the pod, if its owner is in the cache and has not been reported", func(t *testing.T) {
		w, pod, cacheOwner := withoutOwner(t)
		cacheOwner()
		w.ledger.observe(pod.DeepCopy())
		w.expectAwake("p")
		w.ledger.ownerSeen("rs-uid")
		w.ledger.observe(pod.DeepCopy())
		w.expectAwake()
	})
	t.Run("the end of the last spread of its namespace", func(t *testing.T) {
		w, pod, _ := withoutOwner(t)
		w.ledger.spreadGone(types.NamespacedName{Namespace: "ns", Name: "web"})
		w.expectAwake("p")
		w.expectChoice(pod, "no spread")
	})
	t.Run("and not by its bind", func(t *testing.T) {
		w, pod, cacheOwner := withoutOwner(t)
		cacheOwner()
		w.seeBound(pod, "node-a", "-")
		w.expectAwake()
	})
}

func TestATakeOverWaitsForBindsOfThePredecessorAsLongAsForItsOwn(t *testing.T) {
	const bindTimeout = 5 * time.Second
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 4)
		w.spread(1, twoThenAny)
		began := time.Now()
		takeover := newTakeover(clock.RealClock{}, bindTimeout, fake.NewClientset(), w.ledger, &listeners{})
		if err := takeover.complete(t.Context()); err != nil || !takeover.done {
			t.Fatalf("take-over done is %t, error %v", takeover.done, err)
		}
		if waited := time.Since(began); waited != doubtAfter(bindTimeout) || waited != 10*time.Second {
			t.Errorf("waited %s", waited)
		}
	})
}

func TestAnAdmittedPodWaitsForItsSpread(t *testing.T) {
	admitted := func(w *world, annotation string) *corev1.Pod {
		pod := w.podOf("rs-uid", "p")
		pod.Annotations = map[string]string{annotation: "{}"}
		w.pods[pod.UID] = pod
		w.ledger.observe(pod)
		w.expectChoice(pod, "WorkloadNotObserved")
		w.expectAwake()
		return pod
	}
	for _, annotation := range []string{v1alpha1.ConstraintsAnnotation, v1alpha1.AdmittedAnnotation} {
		t.Run(annotation+": until it is seen", func(t *testing.T) {
			w := newWorld(t, 4)
			pod := admitted(w, annotation)
			w.spread(1, twoThenAny)
			w.expectAwake("p")
			w.expectChoice(pod, "a")
			w.clock.Step(2 * time.Second)
			w.expectAwake()
		})
	}
	t.Run("not for ever", func(t *testing.T) {
		w := newWorld(t, 4)
		pod := admitted(w, v1alpha1.ConstraintsAnnotation)
		w.clock.Step(2*time.Second - 1)
		w.expectAwake()
		w.expectChoice(pod, "WorkloadNotObserved")
		w.clock.Step(1)
		w.expectAwake("p")
		w.expectChoice(pod, "no spread")
	})
	t.Run("not after its end", func(t *testing.T) {
		w := newWorld(t, 4)
		pod := admitted(w, v1alpha1.ConstraintsAnnotation)
		w.ledger.gone(pod.UID)
		w.clock.Step(2 * time.Second)
		w.expectAwake()
		if len(w.ledger.strays) != 0 {
			t.Errorf("strays left: %v", w.ledger.strays)
		}
	})
	t.Run("until it is changed so that a spread divides it", func(t *testing.T) {
		w := newWorld(t, 4)
		w.spread(1, `{subsets: [{name: a}], targetFilter: {selector: {matchLabels: {role: worker}}}}`)
		pod := admitted(w, v1alpha1.ConstraintsAnnotation)
		w.ledger.observe(pod.DeepCopy()) // the condition that the scheduler has written
		w.expectAwake()
		pod = pod.DeepCopy()
		pod.Labels["role"] = "worker"
		w.pods[pod.UID] = pod
		w.ledger.observe(pod)
		w.expectAwake("p")
		w.expectChoice(pod, "a")
		w.clock.Step(2 * time.Second)
		w.expectAwake()
	})
	t.Run("and others do not wait", func(t *testing.T) {
		w := newWorld(t, 4)
		w.expectChoice(w.pod("p"), "no spread")
	})
}

func TestAPodThatWasDeletedInTheQueueTakesNothing(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, twoThenAny)
	gone := w.podOf("rs-uid", "gone")
	w.expectChoice(gone, "WorkloadNotObserved")
	w.expectKept("a=0 b=0")
}

func TestPodsOfNoSpreadPass(t *testing.T) {
	w := newWorld(t, 4)
	w.expectChoice(w.pod("before"), "no spread")
	w.spread(1, twoThenAny)
	single := w.podOf("rs-uid", "single")
	single.OwnerReferences = nil
	w.pods[single.UID] = single
	w.expectChoice(single, "no spread")
	w.parents["other-uid"] = nil
	other := w.podOf("other-uid", "other")
	w.pods[other.UID] = other
	w.expectChoice(other, "no spread")
}

func TestPercentagesWaitForNewsOfTheWorkload(t *testing.T) {
	t.Run("a pod above the replicas waits until the new number is there", func(t *testing.T) {
		w := newWorld(t, 2)
		w.spread(1, halves)
		pods := w.podsNamed("p", 4) // the Deployment was scaled to 4, and its pods came first
		w.expectChoice(pods[0], "WorkloadNotObserved")
		w.workload[deploymentKey] = 4
		w.ledger.workloadChanged(deploymentKey)
		w.expectAwake("p0")
		for i, want := range []string{"a", "a", "b", "b"} {
			w.expectChoice(pods[i], want)
		}
	})
	t.Run("but not for ever", func(t *testing.T) {
		w := newWorld(t, 2)
		w.spread(1, halves)
		pods := w.podsNamed("p", 3)
		w.expectChoice(pods[0], "WorkloadNotObserved")
		w.clock.Step(2 * time.Second)
		w.expectChoice(pods[0], "a")
	})
	t.Run("a workload that is not known holds its pods", func(t *testing.T) {
		w := newWorld(t, 2)
		delete(w.workload, deploymentKey)
		w.spread(1, halves)
		pod := w.pod("p")
		w.expectChoice(pod, "WorkloadNotObserved")
		w.workload[deploymentKey] = 2
		w.ledger.workloadChanged(deploymentKey)
		w.expectAwake("p")
		w.expectChoice(pod, "a")
	})
	t.Run("a held pod that somebody else has bound is not woken", func(t *testing.T) {
		w := newWorld(t, 2)
		delete(w.workload, deploymentKey)
		w.spread(1, halves)
		pod := w.pod("p")
		w.expectChoice(pod, "WorkloadNotObserved")
		w.seeBound(pod, "node-a", "-")
		w.awake = nil
		w.workload[deploymentKey] = 2
		w.ledger.workloadChanged(deploymentKey)
		w.expectAwake() // it would never have the cycle for which a free slot is kept
	})
	t.Run("a scale-up wakes as many as there are new slots", func(t *testing.T) {
		w := newWorld(t, 2)
		w.spread(1, `{subsets: [{name: a, maxReplicas: "50%"}, {name: b, maxReplicas: "50%"}], scheduleStrategy: {whenFull: Wait, quotaScope: Workload}}`)
		old := w.podsNamed("old", 2)
		for i, node := range []string{"a", "b"} {
			w.seeBound(old[i], "node-"+node, node)
		}
		w.parents["new-uid"] = w.parents["rs-uid"]
		for i := range 2 { // surge of a rolling update, under a ReplicaSet of its own
			pod := w.podOf("new-uid", fmt.Sprintf("new%d", i))
			w.pods[pod.UID] = pod
			w.expectChoice(pod, "SubsetsFull")
		}
		w.workload[deploymentKey] = 3 // 2 and 2
		w.ledger.workloadChanged(deploymentKey)
		w.expectAwake("new0", "new1")
	})
}

func TestAnInvalidSpreadHoldsItsPodsUntilItIsCorrected(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, `subsets: [{name: a, maxReplicas: -1}]`)
	pod := w.pod("p")
	w.expectChoice(pod, "InvalidSpread")
	w.spread(2, twoThenAny)
	w.expectAwake("p")
	w.expectChoice(pod, "a")
	w.expectKept("a=1 b=0")
}

func TestADeletedSpreadLetsItsPodsGo(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, twoAndOneWait)
	pods := w.podsNamed("p", 4)
	for _, pod := range pods {
		w.choose(pod)
	}
	w.awake = nil
	w.ledger.spreadGone(types.NamespacedName{Namespace: "ns", Name: "web"})
	w.expectAwake("p0", "p1", "p2", "p3")
	w.expectChoice(pods[3], "no spread")
	if len(w.ledger.entries) != 0 || len(w.ledger.spreads.byTarget) != 0 || len(w.ledger.spreads.perNamespace) != 0 {
		t.Error("the ledger keeps something of a spread that is gone")
	}
}

func TestTheOlderOfTwoSpreadsForAWorkloadCounts(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, twoThenAny)
	pod := w.pod("p")
	w.expectChoice(pod, "a")
	later := &v1alpha1.WorkloadSpread{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web2", UID: "2", Generation: 1, CreationTimestamp: metav1.Time{Time: time.Unix(5, 0)}}}
	later.Spec.TargetReference = v1alpha1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}
	later.Spec.Subsets = []v1alpha1.Subset{{Name: "other"}}
	w.ledger.spreadChanged(later)
	w.expectChoice(pod, "a")
	w.ledger.spreadGone(types.NamespacedName{Namespace: "ns", Name: "web"})
	w.expectChoice(pod, "other")
}

func TestRevisionsAreCountedByThemselvesUnlessTheSpreadSaysOtherwise(t *testing.T) {
	for scope, want := range map[string]string{"Revision": "a", "Workload": "b"} {
		t.Run(scope, func(t *testing.T) {
			w := newWorld(t, 4)
			w.spread(1, `{subsets: [{name: a, maxReplicas: 2}, {name: b}], scheduleStrategy: {quotaScope: `+scope+`}}`)
			for _, pod := range w.podsNamed("old", 2) {
				w.seeBound(pod, "node-a", "a")
			}
			w.parents["new-uid"] = w.parents["rs-uid"]
			pod := w.podOf("new-uid", "new")
			pod.Labels["pod-template-hash"] = "v2"
			w.pods[pod.UID] = pod
			w.expectChoice(pod, want)
		})
	}
}

func TestTargetFilterLeavesOtherPodsAlone(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, `{subsets: [{name: a}], targetFilter: {selector: {matchLabels: {role: worker}}}}`)
	w.expectChoice(w.pod("driver"), "no spread")
	worker := w.podOf("rs-uid", "worker")
	worker.Labels["role"] = "worker"
	w.pods[worker.UID] = worker
	w.expectChoice(worker, "a")
}

// TestNoHistoryLosesOrInventsASlot runs random histories of everything that can happen to pods and their spread, twice, late or not at all. It
// compares the tally with a recount that knows nothing of it, and with the binds that the API server may have done or may yet do. No slot is left
// free that a pod waits for.
func TestNoHistoryLosesOrInventsASlot(t *testing.T) {
	const late = `{subsets: [{name: a, maxReplicas: 2}, {name: b, maxReplicas: 3}, {name: c, maxReplicas: 1}], scheduleStrategy: {whenFull: Wait}}`
	const doubt = time.Second
	key := types.NamespacedName{Namespace: "ns", Name: "web"}
	names, quota := []string{"a", "b", "c"}, []int32{2, 3, 1}
	for seed := range uint64(*histories) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 2))
			w := newWorld(t, 10)
			spec, picks := late, []string{"any"}
			if seed%2 == 1 {
				spec, picks = strings.Replace(late, "{whenFull", "{binding: Early, whenFull", 1), []string{"any", "", "a", "b", "c", "c"}
			}
			withoutA := strings.Replace(spec, "{name: a, maxReplicas: 2}, ", "", 1)
			generation := int64(1)
			w.spread(generation, spec)
			var pods []*corev1.Pod
			decided := map[types.UID]*decision{}
			told := map[types.UID]bool{} // that there is no slot, in their last cycle
			// Each pod's binds by subset: the one without an outcome so far, those without an answer, and the one that has happened.
			sent, doubted, happened := map[types.UID]string{}, map[types.UID]map[string]bool{}, map[types.UID]string{}
			mayBeIn := func(pod *corev1.Pod, name string) bool {
				if in, isBound := happened[pod.UID]; isBound {
					return in == name
				}
				return sent[pod.UID] == name || doubted[pod.UID][name]
			}
			for step := range 200 {
				if len(pods) < 16 && (len(pods) == 0 || r.IntN(4) == 0) {
					name, pick := fmt.Sprintf("p%d", step), picks[r.IntN(len(picks))]
					if pick == "any" {
						pods = append(pods, w.pod(name))
					} else {
						pods = append(pods, w.admitted(name, pick))
					}
					continue
				}
				i := r.IntN(len(pods))
				pod := pods[i]
				_, isBound := happened[pod.UID]
				switch r.IntN(18) {
				case 0:
					w.ledger.unreserve(pod.UID)
				case 1:
					if w.ledger.startBind(pod.UID) {
						sent[pod.UID] = decided[pod.UID].name()
					}
				case 2:
					w.ledger.bindRefused(pod.UID)
					delete(sent, pod.UID)
				case 3:
					w.ledger.bindUncertain(pod.UID, doubt)
					if in, out := sent[pod.UID]; out {
						delete(sent, pod.UID)
						if doubted[pod.UID] == nil {
							doubted[pod.UID] = map[string]bool{}
						}
						doubted[pod.UID][in] = true
					}
				case 4:
					w.clock.Step(doubt)
					if !isBound {
						w.ledger.bindSettled(pod.UID, w.clock.Now())
						delete(doubted, pod.UID)
					}
				case 5:
					switch late := r.IntN(2) == 0; {
					case isBound && late && w.pods[pod.UID].Spec.NodeName == "":
						w.ledger.observe(pod)
					case isBound:
						w.seeBound(pod, "node-a", happened[pod.UID])
					default:
						for _, in := range names {
							if !mayBeIn(pod, in) {
								continue
							}
							if late && w.ledger.entries[pod.UID] != nil {
								w.ledger.observeKnown(onNode(pod, "node-a", in)) // by a read, ahead of the event
							} else {
								w.seeBound(pod, "node-a", in)
							}
							happened[pod.UID] = in
							break
						}
					}
				case 6:
					w.delete(pod)
					pods = append(pods[:i], pods[i+1:]...)
				case 7:
					generation++
					switch s := w.ledger.spreads.byName[key]; {
					case s == nil || s.policy == nil || len(s.policy.Subsets) < len(names):
						w.spread(generation, []string{spec, spec, withoutA}[r.IntN(3)])
					case r.IntN(20) > 0: // or nobody would ever wait
					case r.IntN(3) == 0:
						w.ledger.spreadGone(key)
					case r.IntN(2) == 0:
						w.spread(generation, withoutA)
					default:
						w.spread(generation, `subsets: [{name: a, maxReplicas: -1}]`)
					}
				case 8:
					w.ledger.passOn(pod)
				case 9:
					w.ledger.passOnOverdue()
				default:
					answer := w.ledger.choose(pod, nil)
					told[pod.UID] = answer.reason == v1alpha1.ReasonSubsetsFull || answer.reason == v1alpha1.ReasonAdmittedSubsetFull
					if d := answer.decision; d != nil && w.ledger.reserve(pod, d) {
						decided[pod.UID] = d
					}
				}
				s := w.ledger.spreads.byName[key]
				if s == nil || s.policy == nil || len(s.policy.Subsets) < len(names) {
					continue
				}
				counted := make([]int32, len(names))
				for _, e := range w.ledger.entries {
					for i := range counted {
						if e.holds().Has(i) {
							counted[i]++
						}
					}
				}
				for i := range counted {
					if got := s.tally.Kept("v1").At(i); got != counted[i] || got > quota[i] {
						t.Fatalf("step %d: subset %d tallies %d, holds %d, quota %d", step, i, got, counted[i], quota[i])
					}
					for _, pod := range pods {
						if e := w.ledger.entries[pod.UID]; mayBeIn(pod, names[i]) && (e == nil || !e.holds().Has(i)) {
							t.Fatalf("step %d: %s may be in %s, and its slot is free", step, pod.Name, names[i])
						}
					}
				}
				for _, pod := range pods {
					e := w.ledger.entries[pod.UID]
					if !told[pod.UID] || e.place.list == nil {
						continue
					}
					candidate, free, onTheirWay := w.ledger.candidate(e), 0, e.place.list.woken
					for i, n := range e.place.list.wokenFor {
						onTheirWay -= n
						if !candidate.Admitted || candidate.Within == i {
							free += max(int(quota[i]-counted[i])-n, 0)
						}
					}
					if free > onTheirWay {
						t.Fatalf("step %d: %s waits for %d slots to which %d others are on their way", step, pod.Name, free, onTheirWay)
					}
				}
			}
			w.spread(generation+1, spec)
			for _, pod := range pods {
				w.delete(pod)
			}
			s := w.ledger.spreads.byName[key]
			if len(w.ledger.entries) != 0 || len(s.members) != 0 || len(s.live) != 0 || !s.nobodyWaits() || len(s.tally.Scopes()) != 0 || len(w.ledger.promises)+len(w.ledger.ahead) != 0 {
				t.Errorf("something is left of pods that are gone: %d entries, %d members, %v live, %d waitlists, scopes %v, promises %v, read pods %v",
					len(w.ledger.entries), len(s.members), s.live, len(s.waiting), s.tally.Scopes(), w.ledger.promises, w.ledger.ahead)
			}
		})
	}
}

const early = `subsets:
- {name: a, maxReplicas: 1, patch: {spec: {priorityClassName: low}}}
- {name: b, maxReplicas: 2}`

// admitted is a pod for which admission picked a subset.
func (w *world) admitted(name, in string) *corev1.Pod {
	pod := w.podOf("rs-uid", name)
	pod.Annotations = map[string]string{v1alpha1.AdmittedAnnotation: fmt.Sprintf(`{"name":"web","subset":%q,"pick":%q}`, in, name)}
	w.pods[pod.UID] = pod
	w.ledger.observe(pod)
	return pod
}

func TestAnEarlyBoundPodUsesTheSubsetWhosePatchItCarriesOrNone(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, early)
	first, second, third, other := w.admitted("first", "a"), w.admitted("second", "a"), w.admitted("third", "a"), w.admitted("other", "b")
	w.expectChoice(first, "a")
	w.expectChoice(other, "b") // although b comes later and nothing keeps it from a
	for _, pod := range []*corev1.Pod{second, third} {
		answer := w.ledger.choose(pod, nil)
		if answer.reason != v1alpha1.ReasonAdmittedSubsetFull || !strings.Contains(answer.message, `subset "a", whose patch the pod carries, has filled since`) {
			t.Fatalf("got %+v", answer)
		}
	}
	w.expectAwake() // b has room, which helps neither
	w.delete(first)
	w.expectAwake("second")
	w.expectChoice(second, "a")
	w.expectKept("a=1 b=1")
}

func TestASlotThatComesFreeWakesAnEarlyBoundPodThatCanUseIt(t *testing.T) {
	const earlyWait = `{subsets: [{name: a, maxReplicas: 1, patch: {spec: {priorityClassName: low}}}, {name: b, maxReplicas: 1}], scheduleStrategy: {whenFull: Wait}}`
	t.Run("and not one that has its claim or needs none", func(t *testing.T) {
		w := newWorld(t, 9)
		w.spread(1, earlyWait)
		letGo, inB, inA, waits := w.admitted("let-go", ""), w.admitted("in-b", "b"), w.admitted("in-a", "a"), w.admitted("waits", "a")
		w.expectChoice(letGo, "-")
		w.expectChoice(inB, "b")
		w.expectChoice(inA, "a")
		w.expectChoice(waits, "AdmittedSubsetFull")
		w.delete(inA)
		w.expectAwake("waits")
		w.expectChoice(waits, "a")
	})
	t.Run("also while another was woken for another subset", func(t *testing.T) {
		w := newWorld(t, 9)
		w.spread(1, earlyWait)
		inA, inB := w.admitted("in-a", "a"), w.admitted("in-b", "b")
		b1, b2, a1 := w.admitted("b1", "b"), w.admitted("b2", "b"), w.admitted("a1", "a")
		for _, pod := range []*corev1.Pod{inA, inB, b1, b2, a1} {
			w.choose(pod)
		}
		w.delete(inB)
		w.expectAwake("b1")
		w.delete(inA)
		w.expectAwake("a1")
		w.expectChoice(a1, "a")
		w.expectChoice(b1, "b")
		w.expectAwake()
	})
	t.Run("and none of a full subset because another has room", func(t *testing.T) {
		w := newWorld(t, 9)
		w.spread(1, earlyWait)
		inA, inB, b1 := w.admitted("in-a", "a"), w.admitted("in-b", "b"), w.admitted("b1", "b")
		for _, pod := range []*corev1.Pod{inA, inB, b1} {
			w.choose(pod)
		}
		w.delete(inA)
		w.expectAwake()
	})
}

func TestAWokenPodThatTakesNoSlotPassesItOn(t *testing.T) {
	w := newWorld(t, 9)
	w.spread(1, `{subsets: [{name: a, maxReplicas: 1}, {name: b, maxReplicas: 1}, {name: c, maxReplicas: 1}], scheduleStrategy: {whenFull: Wait}}`)
	inA, inB, inC, waits := w.pod("in-a"), w.pod("in-b"), w.pod("in-c"), w.pod("waits")
	w.expectChoice(inA, "a")
	w.expectChoice(inB, "b")
	w.expectChoice(inC, "c")
	w.expectChoice(waits, "SubsetsFull")
	w.seeBound(inC, "node-a", "c")
	w.delete(inA)
	w.expectAwake("in-b")
	w.expectChoice(w.pod("quick"), "a") // before the pod that was woken for it
	w.delete(inC)
	w.awake = nil
	w.expectChoice(inB, "b")
	w.expectAwake("waits")
	w.expectChoice(waits, "c")
}

func TestAPodThatIsWokenWhileItFindsANodePassesItsSlotOn(t *testing.T) {
	w := newWorld(t, 9)
	w.spread(1, `{subsets: [{name: a, maxReplicas: 1}, {name: b, maxReplicas: 1}], scheduleStrategy: {whenFull: Wait}}`)
	inA, inB, waits, last := w.pod("in-a"), w.pod("in-b"), w.pod("waits"), w.pod("last")
	w.schedule(inA)
	w.seeBound(inA, "node-a", "a")
	d := w.ledger.choose(inB, nil).decision
	w.expectChoice(waits, "SubsetsFull")
	w.expectChoice(last, "SubsetsFull")
	w.delete(inA)
	w.expectAwake("in-b") // in the middle of its cycle
	if !w.ledger.reserve(inB, d) {
		t.Fatal("reserve")
	}
	w.expectAwake("waits") // which need not wait until in-b is through Permit and PreBind
	w.expectKept("a=0 b=1")
	w.ledger.unreserve(inB.UID)
	w.expectChoice(inB, "a") // before the pod that was woken for it, to which it leaves its own
	w.expectAwake()
	w.expectChoice(waits, "b")
	w.expectAwake()
}

func TestAWokenPodThatIsKeptFromAskingPassesItsSlotOn(t *testing.T) {
	// p2 and p3 wait, and a slot comes free.
	woken := func(t *testing.T) (*world, []*corev1.Pod) {
		t.Helper()
		w := newWorld(t, 9)
		w.ledger.gated = func(*corev1.Pod) bool { return true }
		w.spread(1, `{subsets: [{name: a, maxReplicas: 2}], scheduleStrategy: {whenFull: Wait}}`)
		pods := w.podsNamed("p", 5)
		for i, want := range []string{"a", "a", "SubsetsFull", "SubsetsFull", "SubsetsFull"} {
			w.expectChoice(pods[i], want)
		}
		w.awake = nil
		w.delete(pods[0])
		w.expectAwake("p2")
		return w, pods
	}
	t.Run("when another plugin has refused it", func(t *testing.T) {
		w, pods := woken(t)
		w.ledger.passOn(pods[2])
		w.expectAwake("p3")
		w.ledger.passOn(pods[2]) // once
		w.expectAwake()
		w.expectKept("a=1")
		// It is not offered the next slot as long as it does not ask, and may ask whenever it is tried.
		w.delete(pods[1])
		w.expectAwake("p4")
		w.expectChoice(pods[2], "a")
		w.expectChoice(pods[3], "a")
		w.expectChoice(pods[4], "SubsetsFull")
		w.expectKept("a=2")
	})
	t.Run("when it has had no cycle for a while", func(t *testing.T) {
		w, pods := woken(t)
		w.ledger.passOnOverdue()
		w.expectAwake()
		w.ledger.passOnOverdue()
		w.expectAwake("p3")
		w.expectChoice(pods[3], "a")
		for range 3 {
			w.ledger.passOnOverdue()
		}
		w.expectAwake()
	})
	t.Run("but not when it was woken anew meanwhile", func(t *testing.T) {
		w, pods := woken(t)
		w.ledger.passOnOverdue()
		quick := w.pod("quick")
		w.expectChoice(quick, "a")
		w.expectChoice(pods[2], "SubsetsFull")
		w.awake = nil
		w.delete(quick)
		w.expectAwake("p2")
		w.ledger.passOnOverdue()
		w.expectAwake()
	})
	t.Run("and one that waits in line has none to pass on", func(t *testing.T) {
		w, pods := woken(t)
		w.ledger.passOn(pods[3])
		w.expectAwake()
		w.expectChoice(pods[2], "a")
		w.delete(pods[1])
		w.expectAwake("p3")
	})
}

func TestPreFilterTellsPostFilterWhichPodsHaveAsked(t *testing.T) {
	w := newWorld(t, 9)
	w.spread(1, `{subsets: [{name: a, maxReplicas: 1}], scheduleStrategy: {whenFull: Wait}}`)
	s := &Spread{core: &core{ledger: w.ledger, takeover: &takeover{done: true}}}
	pods := w.podsNamed("p", 2)
	for i, chosen := range []bool{true, false} {
		state := framework.NewCycleState()
		if wasRuled(state) {
			t.Errorf("%s: ruled on before it has asked", pods[i].Name)
		}
		s.PreFilter(t.Context(), state, pods[i], nil)
		if d := decisionIn(state); !wasRuled(state) || (d != nil) != chosen {
			t.Errorf("%s: ruled on is %t, with decision %v; want a decision: %t", pods[i].Name, wasRuled(state), d, chosen)
		}
	}
}

func TestAPodWithoutAPickOfThisSpreadMayUseAnySubset(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, early)
	w.expectChoice(w.pod("webhook-was-down"), "a")
	w.expectChoice(w.admitted("renamed", "gone"), "b")
	w.expectChoice(w.admitted("let-go", ""), "-")
}

func TestABindSetsNoLabelByWhichTheWorkloadWouldLoseItsPod(t *testing.T) {
	w := newWorld(t, 1)
	w.selects = labels.SelectorFromSet(labels.Set{"app": "web"})
	w.spread(1, `subsets: [{name: a, patch: {metadata: {labels: {app: other, tier: elastic}, annotations: {app: other}}}}]`)
	pod := w.podsNamed("p", 1)[0]
	binding, err := bindingOf(pod, "node-a", w.ledger.choose(pod, nil).decision)
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]string{"tier": "elastic", v1alpha1.SubsetLabel: "a"}; !maps.Equal(binding.Labels, want) || binding.Annotations["app"] != "other" {
		t.Errorf("labels %v and annotations %v, want labels %v", binding.Labels, binding.Annotations, want)
	}
}
