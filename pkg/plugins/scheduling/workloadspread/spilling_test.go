package workloadspread

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
)

const (
	adaptive = `subsets:
- {name: a, requiredNodeSelectorTerm: {matchExpressions: [{key: zone, operator: In, values: [a]}]}}
- {name: b, requiredNodeSelectorTerm: {matchExpressions: [{key: zone, operator: In, values: [b]}]}}
scheduleStrategy: {type: Adaptive}`
	patient = `subsets: [{name: a}, {name: b}]
scheduleStrategy: {type: Adaptive, adaptive: {disableSimulationSchedule: true, rescheduleCriticalSeconds: 30, unschedulableLastSeconds: 100}}`
)

// refuse has the scheduler find no node for the pod, which is in the middle of a cycle in the subset, and says what follows.
func (w *world) refuse(pod *corev1.Pod, verdict memoEntry, nodes ...fwk.NodeInfo) outcome {
	w.t.Helper()
	answer := w.ledger.choose(pod, nodes)
	if answer.decision == nil {
		w.t.Fatalf("%s: %s %s", pod.Name, answer.reason, answer.message)
	}
	return w.ledger.noNode(pod, answer.decision, verdict)
}

// nodeInfo is a node of a zone in the scheduler's snapshot. Every call gives it a newer generation.
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

func TestAnAdaptivePodGoesOnToTheNextSubsetInACycleThatFollowsAtOnce(t *testing.T) {
	w := newWorld(t, 2)
	w.spread(1, adaptive)
	pod := w.pod("p")
	if got := w.refuse(pod, memoEntry{generation: unproven, why: "0/1 nodes fit: 1 Insufficient cpu"}); got != goOn {
		t.Fatalf("got outcome %d, want to go on", got)
	}
	w.expectAwake("p")
	w.expectKept("a=0 b=0") // it holds nothing while it is between two subsets
	w.expectChoice(pod, "b")
	w.expectKept("a=0 b=1")
	w.schedule(pod)
	w.seeBound(pod, "node-b", "b")
	w.expectKept("a=0 b=1")
}

func TestAnExhaustedPodSaysWhyAndWaitsForANode(t *testing.T) {
	w := newWorld(t, 3)
	w.spread(1, adaptive)
	pods := w.podsNamed("p", 2)
	for i := range pods {
		for _, why := range []string{"0/1 nodes fit: 1 Insufficient cpu", "0/2 nodes fit: 2 untolerated taint"} {
			if got := w.refuse(pods[i], memoEntry{generation: unproven, why: why}); got != goOn {
				t.Fatalf("got outcome %d, want to go on", got)
			}
		}
		answer := w.ledger.choose(pods[i], nil)
		if answer.reason != v1alpha1.ReasonNoNodeFits {
			t.Fatalf("got %+v", answer)
		}
		if want := `WorkloadSpread "web": a: 0/1 nodes fit: 1 Insufficient cpu; b: 0/2 nodes fit: 2 untolerated taint`; answer.message != want {
			t.Errorf("message %q, want %q", answer.message, want)
		}
	}
	if want := []string{"NoNodeFits: a: 0/1 nodes fit: 1 Insufficient cpu; b: 0/2 nodes fit: 2 untolerated taint"}; !slices.Equal(w.announced, want) {
		t.Errorf("announced %q, want %q: once for all pods", w.announced, want)
	}
	w.awake = nil
	// One pod of the spread is tried for each event, and only on a node that a subset selects.
	event := &corev1.Pod{}
	outside := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"zone": "z"}}}
	if w.ledger.mayRetry(pods[0], outside, outside) {
		t.Error("woken by a node of no subset")
	}
	if !w.ledger.mayRetry(pods[1], event, w.nodes["node-a"]) || w.ledger.mayRetry(pods[0], event, w.nodes["node-a"]) {
		t.Error("want one pod for one event")
	}
	// It begins with the first subset again, and when it finds room there, the next is woken.
	w.expectChoice(pods[1], "a")
	w.schedule(pods[1])
	w.expectAwake("p0")
	w.expectChoice(pods[0], "a")
	w.schedule(pods[0])
	// Nobody waits any more, so it is worth saying when somebody does again.
	late := w.pod("late")
	w.refuse(late, memoEntry{generation: unproven, why: "full"})
	w.refuse(late, memoEntry{generation: unproven, why: "full"})
	w.choose(late)
	if len(w.announced) != 2 {
		t.Errorf("announced %q, want two", w.announced)
	}
}

// exhaust has a pod find no node in any subset with quota, one subset after the other.
func (w *world) exhaust(pod *corev1.Pod, subsets ...string) {
	w.t.Helper()
	for _, name := range subsets {
		answer := w.ledger.choose(pod, nil)
		if answer.decision == nil || answer.name() != name {
			w.t.Fatalf("%s: got %+v, want subset %s", pod.Name, answer, name)
		}
		if got := w.ledger.noNode(pod, answer.decision, memoEntry{generation: unproven, why: "volume"}); got != goOn {
			w.t.Fatalf("%s in %s: got outcome %d, want to go on", pod.Name, name, got)
		}
	}
	w.expectChoice(pod, "NoNodeFits")
}

func TestOneExhaustedPodOfEachKindIsTriedForAnEvent(t *testing.T) {
	w := newWorld(t, 9)
	w.spread(1, adaptive)
	big, small := w.podsNamed("big", 3), w.podsNamed("small", 3)
	for i := range big {
		requesting(big[i], "8")
		requesting(small[i], "1")
		w.exhaust(big[i], "a", "b")
		w.exhaust(small[i], "a", "b")
	}
	w.awake = nil
	event := &corev1.Pod{}
	for i, want := range []bool{true, false, false} {
		for _, pod := range []*corev1.Pod{big[i], small[i]} {
			if got := w.ledger.mayRetry(pod, event, w.nodes["node-a"]); got != want {
				t.Errorf("%s may retry: %t, want %t", pod.Name, got, want)
			}
		}
	}
	// The big one finds no room, and the small one leaves some for others like it.
	w.exhaust(big[0], "a", "b")
	w.awake = nil
	w.expectChoice(small[0], "a")
	w.schedule(small[0])
	w.expectAwake("small1")
	// One that is on its way and does not arrive leaves its turn to the next. One that waits in line has none to leave.
	w.delete(small[1])
	w.expectAwake("small2")
	w.delete(big[1])
	w.expectAwake()
	if !w.ledger.mayRetry(big[2], &corev1.Pod{}, w.nodes["node-a"]) {
		t.Error("want a pod for another event")
	}
	w.delete(big[2])
	w.expectAwake("big0")
}

func TestAnExhaustedPodIsWokenByASlotThatOthersGiveUp(t *testing.T) {
	const oneInTwo = `{subsets: [{name: a, maxReplicas: 1}, {name: b, maxReplicas: 1}, {name: c}], scheduleStrategy: {type: Adaptive}}`
	t.Run("because they move to an earlier subset", func(t *testing.T) {
		w := newWorld(t, 9)
		w.spread(1, oneInTwo)
		first, inB, pod := w.pod("first"), w.pod("in-b"), w.pod("p")
		w.expectChoice(first, "a")
		w.expectChoice(inB, "b")
		w.exhaust(pod, "c")
		w.delete(first)
		w.exhaust(pod, "a", "c")
		w.awake = nil
		w.expectChoice(inB, "a")
		w.expectAwake("p")
		w.expectChoice(pod, "b")
	})
	t.Run("because they have waited long enough", func(t *testing.T) {
		w := newWorld(t, 9)
		w.spread(1, strings.Replace(patient, "{name: a}", "{name: a, maxReplicas: 1}", 1))
		inA, pod := w.pod("in-a"), w.pod("p")
		for _, waits := range []*corev1.Pod{inA, pod} {
			if got := w.refuse(waits, memoEntry{generation: unproven}); got != stay {
				t.Fatalf("got outcome %d, want to stay", got)
			}
		}
		w.clock.Step(30 * time.Second)
		w.exhaust(pod, "b")
		w.awake = nil
		if got := w.refuse(inA, memoEntry{generation: unproven}); got != goOn {
			t.Fatalf("got outcome %d, want to go on", got)
		}
		w.expectAwake("in-a", "p")
	})
	t.Run("because their bind did not happen after all", func(t *testing.T) {
		w := newWorld(t, 9)
		w.spread(1, oneInTwo)
		inA, inB, pod := w.pod("in-a"), w.pod("in-b"), w.pod("p")
		w.schedule(inA)
		w.expectChoice(inB, "b")
		w.ledger.bindUncertain(inA.UID, firstRetry/2)
		w.exhaust(pod, "c")
		w.clock.Step(firstRetry / 2)
		w.awake = nil
		w.ledger.bindSettled(inA.UID, w.clock.Now())
		w.expectAwake("in-a", "p")
	})
	t.Run("and not by one that was taken in the same cycle, or exhausted pods would wake each other for ever", func(t *testing.T) {
		w := newWorld(t, 9)
		w.spread(1, oneInTwo)
		for _, pod := range w.podsNamed("p", 2) {
			w.exhaust(pod, "a", "b", "c")
			w.awake = slices.DeleteFunc(w.awake, func(name string) bool { return name == pod.Name })
			w.expectAwake()
		}
	})
}

func TestAWokenPodThatFindsNoNodePassesItsSlotOn(t *testing.T) {
	w := newWorld(t, 3)
	w.spread(1, `{subsets: [{name: a, maxReplicas: 1}], scheduleStrategy: {type: Adaptive, whenFull: Wait}}`)
	nodes := []fwk.NodeInfo{nodeInfo("a", "4")}
	first, big, small := w.pod("first"), w.podsNamed("big", 2), requesting(w.pod("small"), "1")
	requesting(big[0], "8")
	requesting(big[1], "8")
	w.expectChoice(first, "a")
	for _, pod := range append(slices.Clone(big), small) {
		w.expectChoice(pod, "SubsetsFull")
	}
	w.delete(first)
	w.awake = nil
	for _, pod := range big {
		if answer := w.ledger.choose(pod, nodes); answer.reason != v1alpha1.ReasonNoNodeFits {
			t.Fatalf("got %+v", answer)
		}
	}
	w.expectAwake("small")
	if answer := w.ledger.choose(small, nodes); answer.decision == nil || answer.name() != "a" {
		t.Errorf("got %+v, want subset a", answer)
	}
}

func TestAnExhaustedPodIsLetGoWhenTheLastSlotIsTaken(t *testing.T) {
	const oneSlot = `{subsets: [{name: a, maxReplicas: 1, requiredNodeSelectorTerm: {matchExpressions: [{key: zone, operator: In, values: [a]}]}}], scheduleStrategy: {type: Adaptive}}`
	// No node of a takes the big pods.
	exhausted := func(t *testing.T, spec string) (*world, []*corev1.Pod) {
		t.Helper()
		w := newWorld(t, 9)
		w.spread(1, spec)
		big := w.podsNamed("big", 2)
		for _, pod := range big {
			if got := w.ledger.choose(requesting(pod, "8"), []fwk.NodeInfo{nodeInfo("a", "2")}); got.reason != v1alpha1.ReasonNoNodeFits {
				t.Fatalf("got %+v", got)
			}
		}
		return w, big
	}
	t.Run("by a pod that has found a node", func(t *testing.T) {
		w, big := exhausted(t, oneSlot)
		small := w.pod("small")
		d := w.ledger.choose(small, nil).decision
		w.expectAwake() // it may find no node
		w.ledger.reserve(small, d)
		w.expectAwake("big0")
		w.ledger.startBind(small.UID)
		w.seeBound(small, "node-a", "a")
		w.expectAwake()
		w.expectChoice(big[0], "-")
		w.expectAwake()
		w.schedule(big[0])
		w.expectAwake("big1") // where one found a node
		w.expectKept("a=1")
	})
	t.Run("by a pod that somebody else has bound", func(t *testing.T) {
		w, big := exhausted(t, oneSlot)
		w.seeBound(w.podOf("rs-uid", "adopted"), "node-a", "-")
		w.expectAwake("big0")
		w.expectChoice(big[0], "-")
	})
	t.Run("by one whose node is seen late", func(t *testing.T) {
		w, big := exhausted(t, oneSlot)
		w.seeBound(w.podOf("rs-uid", "adopted"), "node-new", "-")
		w.expectAwake()
		w.nodes["node-new"] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-new", Labels: map[string]string{"zone": "a"}}}
		w.ledger.nodeSeen("node-new")
		w.expectAwake("big0")
		w.expectChoice(big[0], "-")
	})
	t.Run("but not while another subset has room", func(t *testing.T) {
		w, _ := exhausted(t, strings.Replace(oneSlot, "}], sch", "}, {name: b, maxReplicas: 1, requiredNodeSelectorTerm: {matchExpressions: [{key: zone, operator: In, values: [b]}]}}], sch", 1))
		w.schedule(requesting(w.pod("small"), "1"))
		w.expectAwake()
	})
	t.Run("nor where pods wait when all subsets are full", func(t *testing.T) {
		w, _ := exhausted(t, strings.Replace(oneSlot, "{type: Adaptive}", "{type: Adaptive, whenFull: Wait}", 1))
		w.schedule(requesting(w.pod("small"), "1"))
		w.expectAwake()
	})
}

func TestAnExhaustedPodThatIsKeptFromAskingPassesItsTurnOn(t *testing.T) {
	for name, end := range map[string]func(*world, *corev1.Pod){
		"because another plugin has refused it": func(w *world, pod *corev1.Pod) { w.ledger.passOn(pod) },
		"because it has had no cycle for a while": func(w *world, _ *corev1.Pod) {
			w.ledger.passOnOverdue()
			w.ledger.passOnOverdue()
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 9)
			w.spread(1, adaptive)
			pods := w.podsNamed("p", 3)
			for _, pod := range pods {
				w.exhaust(pod, "a", "b")
			}
			w.awake = nil
			if !w.ledger.mayRetry(pods[0], &corev1.Pod{}, w.nodes["node-a"]) {
				t.Fatal("want a pod for an event")
			}
			end(w, pods[0])
			w.expectAwake("p1")
			w.ledger.passOn(pods[0]) // once
			w.expectAwake()
			w.expectChoice(pods[1], "a")
			w.expectChoice(pods[0], "a")
		})
	}
}

func TestAnAdaptivePodThatIsKeptFromItsNextSubsetHoldsNothing(t *testing.T) {
	w := newWorld(t, 9)
	w.spread(1, `{subsets: [{name: a, maxReplicas: 1}, {name: b, maxReplicas: 1}], scheduleStrategy: {type: Adaptive, whenFull: Wait}}`)
	inA, between, waits, last := w.pod("in-a"), w.pod("between"), w.pod("waits"), w.pod("last")
	w.schedule(inA)
	w.expectChoice(between, "b")
	w.expectChoice(waits, "SubsetsFull")
	w.expectChoice(last, "SubsetsFull")
	if got := w.refuse(between, memoEntry{generation: unproven}); got != goOn {
		t.Fatalf("got outcome %d, want to go on", got)
	}
	w.expectAwake("between", "waits")
	w.ledger.passOn(between)
	w.expectAwake()
	w.delete(inA)
	w.expectAwake("last")
	w.expectChoice(waits, "a")
	w.expectChoice(last, "b")
	w.delete(last)
	w.expectChoice(between, "b") // its next cycle is the first of a round
}

func TestASubsetWithoutNodesCostsNoCycle(t *testing.T) {
	w := newWorld(t, 1)
	w.spread(1, adaptive)
	pod := w.pod("p")
	if got := w.ledger.choose(pod, []fwk.NodeInfo{nodeInfo("b", "1"), nodeInfo("c", "1")}); got.decision == nil || got.name() != "b" {
		t.Fatalf("got %+v, want subset b", got)
	}
	got := w.ledger.choose(pod, []fwk.NodeInfo{nodeInfo("c", "1")})
	if want := `WorkloadSpread "web": a: no node belongs to it; b: no node belongs to it`; got.message != want {
		t.Errorf("message %q, want %q", got.message, want)
	}
	if got := w.ledger.choose(pod, []fwk.NodeInfo{nodeInfo("a", "1"), nodeInfo("b", "1")}); got.decision == nil || got.name() != "a" {
		t.Errorf("got %+v, want subset a, which has a node now", got)
	}
}

func TestASubsetWithoutRoomCostsNoCycle(t *testing.T) {
	w := newWorld(t, 9)
	w.spread(1, adaptive)
	full, other := nodeInfo("a", "1", requesting(w.podOf("rs-uid", "big"), "900m")), nodeInfo("b", "8")
	next := func(name, cpu string) *corev1.Pod {
		pod := requesting(w.podOf("rs-uid", name), cpu)
		w.pods[pod.UID] = pod
		w.ledger.observe(pod)
		return pod
	}
	chooses := func(pod *corev1.Pod, want string, nodes ...fwk.NodeInfo) {
		t.Helper()
		if got := w.ledger.choose(pod, nodes); got.decision == nil || got.name() != want {
			t.Errorf("%s: got %+v, want subset %s", pod.Name, got, want)
		}
	}
	chooses(next("first", "500m"), "b", full, other)
	chooses(next("same", "500m"), "b", full, other)
	// A bind elsewhere changes a node of another subset, which proves nothing about this one.
	chooses(next("elsewhere", "500m"), "b", full, nodeInfo("b", "8", requesting(w.podOf("rs-uid", "new"), "1")))
	// A change of the full node that makes no room does not open the subset.
	stillFull := nodeInfo("a", "1", requesting(w.podOf("rs-uid", "other"), "800m"))
	chooses(next("still-full", "500m"), "b", stillFull, other)
	// A smaller pod has a shape of its own.
	chooses(next("small", "50m"), "a", stillFull, other)
	// Room on one node opens the subset again.
	roomy := nodeInfo("a", "1", requesting(w.podOf("rs-uid", "little"), "100m"))
	chooses(next("room", "500m"), "a", roomy, other)
	if answer := w.ledger.choose(next("huge", "9"), []fwk.NodeInfo{roomy, other}); answer.reason != v1alpha1.ReasonNoNodeFits ||
		answer.message != `WorkloadSpread "web": a: 0/1 nodes fit: 1 Insufficient cpu; b: 0/1 nodes fit: 1 Insufficient cpu` {
		t.Errorf("got %+v", answer)
	}
	w.expectAwake() // nobody had to be tried twice
}

func TestAPodWhosePredicatesChangeIsJudgedAnew(t *testing.T) {
	w := newWorld(t, 1)
	w.spread(1, adaptive)
	pod := requesting(w.pod("p"), "500m")
	nodes := []fwk.NodeInfo{nodeInfo("a", "400m"), nodeInfo("b", "8")}
	if got := w.ledger.choose(pod, nodes); got.decision == nil || got.name() != "b" {
		t.Fatalf("got %+v, want subset b", got)
	}
	w.ledger.observe(requesting(pod.DeepCopy(), "300m")) // resized while it was pending
	if got := w.ledger.choose(pod, nodes); got.decision == nil || got.name() != "a" {
		t.Errorf("got %+v, want subset a", got)
	}
}

func TestRoomThatComesFreeInTheMiddleOfARoundIsNotMissed(t *testing.T) {
	w := newWorld(t, 1)
	w.spread(1, adaptive)
	pod := requesting(w.podOf("rs-uid", "p"), "500m")
	w.pods[pod.UID] = pod
	w.ledger.observe(pod)
	before, other := nodeInfo("a", "1"), nodeInfo("b", "1")
	newest := func(infos ...fwk.NodeInfo) memoEntry {
		entry := memoEntry{}
		for _, info := range infos {
			entry.generation = max(entry.generation, info.GetGeneration())
		}
		return entry
	}
	w.refuse(pod, newest(before, other), before, other) // in a, where it would displace a nominated pod
	after := nodeInfo("a", "1")
	w.refuse(pod, newest(after, other), before, other) // in b; meanwhile a has changed
	if got := w.ledger.choose(pod, []fwk.NodeInfo{after, other}); got.decision == nil || got.name() != "a" {
		t.Errorf("got %+v, want subset a again", got)
	}
}

func TestAPodRefusedByMoreThanItsNodesIsTriedAgainWithoutAnEvent(t *testing.T) {
	w := newWorld(t, 1)
	w.spread(1, adaptive)
	pod := w.pod("p")
	for _, wait := range []time.Duration{time.Second, 2 * time.Second} {
		w.refuse(pod, memoEntry{generation: unproven, why: "volume"})
		w.refuse(pod, memoEntry{generation: unproven, why: "volume"})
		w.expectChoice(pod, "NoNodeFits")
		w.awake = nil
		w.clock.Step(wait - 1)
		w.expectAwake()
		w.clock.Step(1)
		w.expectAwake("p")
	}
}

func TestAVerdictThatProvesNothingIsNotRemembered(t *testing.T) {
	w := newWorld(t, 9)
	w.spread(1, adaptive)
	nodes := []fwk.NodeInfo{nodeInfo("a", "8"), nodeInfo("b", "8")}
	pods := w.podsNamed("p", 2)
	w.refuse(pods[0], memoEntry{generation: unproven, why: "anti-affinity"}, nodes...)
	if got := w.ledger.choose(pods[1], nodes); got.decision == nil || got.name() != "a" {
		t.Errorf("got %+v, want subset a", got)
	}
}

func TestWithoutSimulationAPodWaitsAndThenNobodyWaitsForAWhile(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, patient)
	pods := w.podsNamed("p", 3)
	unfit := memoEntry{generation: unproven}
	if got := w.refuse(pods[0], unfit); got != stay {
		t.Fatalf("got outcome %d, want to stay", got)
	}
	w.expectKept("a=1 b=0") // it waits on its claim
	w.clock.Step(30 * time.Second)
	w.expectAwake("p0")
	if got := w.refuse(pods[0], unfit); got != goOn {
		t.Fatalf("got outcome %d after the wait, want to go on", got)
	}
	w.expectChoice(pods[0], "b")
	// The next pod tries the subset, for it might fit there, but does not wait.
	if got := w.refuse(pods[1], unfit); got != goOn {
		t.Fatalf("got outcome %d while the subset is skipped, want to go on", got)
	}
	w.clock.Step(100 * time.Second)
	if got := w.refuse(pods[2], unfit); got != stay {
		t.Fatalf("got outcome %d afterwards, want to stay", got)
	}
}

func TestPreemptionComesLastAndInTheOrderOfTheSubsets(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, adaptive)
	pod := w.podOf("rs-uid", "p")
	pod.Spec.Priority = ptr.To[int32](10)
	w.pods[pod.UID] = pod
	w.ledger.observe(pod)
	unfit := memoEntry{generation: unproven}
	var got []string
	for range 5 {
		answer := w.ledger.choose(pod, nil)
		if answer.decision == nil {
			got = append(got, string(answer.reason))
			continue
		}
		next := w.ledger.noNode(pod, answer.decision, unfit)
		got = append(got, fmt.Sprintf("%s:%d", answer.name(), next))
		if next == preempt {
			w.ledger.preempted(pod, false)
		}
	}
	want := fmt.Sprint([]string{fmt.Sprintf("a:%d", goOn), fmt.Sprintf("b:%d", goOn), fmt.Sprintf("a:%d", preempt), fmt.Sprintf("b:%d", preempt), "NoNodeFits"})
	if fmt.Sprint(got) != want {
		t.Errorf("cycles %v, want %s", got, want)
	}
	w.expectKept("a=0 b=0")
}

func TestANominatedPodKeepsItsClaim(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, `{subsets: [{name: a, maxReplicas: 1}, {name: b, maxReplicas: 1}], scheduleStrategy: {type: Adaptive, whenFull: Wait}}`)
	pod := w.podOf("rs-uid", "p")
	pod.Spec.Priority = ptr.To[int32](10)
	w.pods[pod.UID] = pod
	w.ledger.observe(pod)
	unfit := memoEntry{generation: unproven}
	w.refuse(pod, unfit)
	w.refuse(pod, unfit)
	if got := w.refuse(pod, unfit); got != preempt {
		t.Fatalf("got outcome %d", got)
	}
	w.ledger.preempted(pod, true)
	w.expectKept("a=1 b=0")
	sibling := w.pod("sibling")
	w.expectChoice(sibling, "b")
	w.schedule(sibling)
	// An event has it tried again while they are still leaving. It asks whether they are, and neither goes on nor preempts elsewhere.
	w.awake = nil
	for range 2 {
		if got := w.refuse(pod, unfit); got != preempt {
			t.Fatalf("got outcome %d while its victims leave, want to ask DefaultPreemption", got)
		}
		w.ledger.preempted(pod, true)
		w.expectKept("a=1 b=1")
	}
	w.expectAwake()
	w.expectChoice(pod, "a") // its victims have left
	w.schedule(pod)
	w.expectKept("a=1 b=1")
}

func TestANominatedPodWhosePreemptionWasInVainGoesOn(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, adaptive)
	pod := w.podOf("rs-uid", "p")
	pod.Spec.Priority = ptr.To[int32](10)
	w.pods[pod.UID] = pod
	w.ledger.observe(pod)
	unfit := memoEntry{generation: unproven}
	for range 3 {
		w.refuse(pod, unfit)
	}
	w.ledger.preempted(pod, true)
	// Its victims have left, somebody else is on their node, and there are no other victims.
	if got := w.refuse(pod, unfit); got != preempt {
		t.Fatalf("got outcome %d, want to preempt", got)
	}
	w.awake = nil
	w.ledger.preempted(pod, false)
	w.expectKept("a=0 b=0")
	w.expectAwake("p")
	w.expectChoice(pod, "b")
}

func TestANominatedPodWhoseSlotIsTakenAwayBeginsAnew(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, `{subsets: [{name: a, maxReplicas: "50%"}, {name: b}], scheduleStrategy: {type: Adaptive}}`)
	w.expectChoice(w.pod("older"), "a")
	pod := w.podOf("rs-uid", "p")
	pod.Spec.Priority = ptr.To[int32](10)
	w.pods[pod.UID] = pod
	w.ledger.observe(pod)
	for range 3 {
		w.refuse(pod, memoEntry{generation: unproven})
	}
	w.ledger.preempted(pod, true)
	w.workload[deploymentKey] = 2 // which leaves one slot in a
	w.ledger.workloadChanged(deploymentKey)
	if got := w.refuse(pod, memoEntry{generation: unproven}); got != goOn {
		t.Errorf("got outcome %d in b, where it has looked for no node yet, want to go on", got)
	}
}

func TestFixedPreemptsInItsSubset(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, twoThenAny)
	pod := w.pod("p")
	if got := w.refuse(pod, memoEntry{generation: unproven}); got != preempt {
		t.Fatalf("got outcome %d, want to preempt", got)
	}
	w.ledger.preempted(pod, false)
	w.expectKept("a=1 b=0")
	w.expectChoice(pod, "a")
}

func TestAnExhaustedPodIsWokenByTheVolumesAndDevicesThatConcernIt(t *testing.T) {
	w := newWorld(t, 1)
	w.spread(1, adaptive)
	pod := w.podsNamed("p", 1)[0]
	pod.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "device", ResourceClaimName: ptr.To("gpu")}}
	for range 2 {
		w.refuse(pod, memoEntry{generation: unproven, why: "1 cannot allocate all claims"})
	}
	if answer := w.ledger.choose(pod, nil); answer.reason != v1alpha1.ReasonNoNodeFits {
		t.Fatalf("got %+v", answer)
	}
	volumeClaim := func(name string) any {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: name}}
	}
	claim := func(name string, allocated bool) any {
		c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: name}}
		if allocated {
			c.Status.Allocation = &resourcev1.AllocationResult{}
		}
		return c
	}
	s := &Spread{core: &core{ledger: w.ledger}}
	tests := map[string]struct {
		hint          fwk.QueueingHintFn
		before, after any
		want          fwk.QueueingHint
	}{
		"a volume":                     {s.isSchedulableAfterVolumeChange, nil, &corev1.PersistentVolume{}, fwk.Queue},
		"an attachment that is gone":   {s.isSchedulableAfterVolumeChange, &storagev1.VolumeAttachment{}, nil, fwk.Queue},
		"its volume claim":             {s.isSchedulableAfterVolumeChange, nil, volumeClaim("data"), fwk.Queue},
		"another's volume claim":       {s.isSchedulableAfterVolumeChange, nil, volumeClaim("other"), fwk.QueueSkip},
		"devices":                      {s.isSchedulableAfterDeviceChange, nil, &resourcev1.ResourceSlice{}, fwk.Queue},
		"its claim":                    {s.isSchedulableAfterDeviceChange, claim("gpu", false), claim("gpu", false), fwk.Queue},
		"another's claim, given back":  {s.isSchedulableAfterDeviceChange, claim("other", true), claim("other", false), fwk.Queue},
		"another's claim, still taken": {s.isSchedulableAfterDeviceChange, claim("other", true), claim("other", true), fwk.QueueSkip},
		"another's claim, new":         {s.isSchedulableAfterDeviceChange, nil, claim("other", false), fwk.QueueSkip},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got, err := tc.hint(klog.Background(), pod, tc.before, tc.after); err != nil || got != tc.want {
				t.Errorf("got %v and error %v, want %v", got, err, tc.want)
			}
		})
	}
	plain := pod.DeepCopy()
	plain.Spec.Volumes, plain.Spec.ResourceClaims = nil, nil
	for _, hint := range []fwk.QueueingHintFn{s.isSchedulableAfterVolumeChange, s.isSchedulableAfterDeviceChange} {
		if got, err := hint(klog.Background(), plain, nil, &resourcev1.ResourceSlice{}); err != nil || got != fwk.QueueSkip {
			t.Errorf("a pod without volumes and devices: got %v and error %v, want skip", got, err)
		}
	}
}

func TestTheGateHoldsAPodFromWhenItIsToldToWaitUntilItIsWoken(t *testing.T) {
	w := newWorld(t, 2)
	w.ledger.gated = func(*corev1.Pod) bool { return true }
	w.spread(1, `subsets: [{name: a, maxReplicas: 1}]
scheduleStrategy: {whenFull: Wait}`)
	var plugins Family
	plugins.core.Store(&core{ledger: w.ledger})
	gate := &Gate{&plugins}
	pods := w.podsNamed("p", 2)
	expectHeld := func(when string, want bool) {
		t.Helper()
		if held := !gate.PreEnqueue(t.Context(), pods[1]).IsSuccess(); held != want {
			t.Errorf("%s: held is %t, want %t", when, held, want)
		}
	}
	w.expectChoice(pods[0], "a")
	expectHeld("before its first cycle", false)
	if answer := w.ledger.choose(pods[1], nil); answer.reason != v1alpha1.ReasonSubsetsFull {
		t.Fatalf("got %+v", answer)
	}
	expectHeld("told to wait", true)
	w.expectAwake("p1") // which makes the queue ask the gate
	w.ledger.observe(pods[1].DeepCopy())
	expectHeld("its status written", true)
	w.ledger.gone(pods[0].UID)
	w.expectAwake("p1")
	expectHeld("woken", false)
	w.expectChoice(pods[1], "a")

	late := w.pod("late")
	if answer := w.ledger.choose(late, nil); answer.reason != v1alpha1.ReasonSubsetsFull {
		t.Fatalf("got %+v", answer)
	}
	w.expectAwake("late")
	changed := late.DeepCopy()
	changed.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	w.ledger.observe(changed)
	w.expectAwake("late") // another pod, as it were
	if !gate.PreEnqueue(t.Context(), changed).IsSuccess() {
		t.Error("held although it has changed")
	}

	// Nobody divides it any more.
	if answer := w.ledger.choose(changed, nil); answer.reason != v1alpha1.ReasonSubsetsFull {
		t.Fatalf("got %+v", answer)
	}
	w.expectAwake("late")
	free := changed.DeepCopy()
	free.OwnerReferences = nil
	w.ledger.observe(free)
	w.expectAwake("late")
	if !gate.PreEnqueue(t.Context(), free).IsSuccess() {
		t.Error("held although no spread divides it")
	}
}
