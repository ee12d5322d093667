package ledger

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func TestAnAdaptivePodGoesOnToTheNextSubsetInACycleThatFollowsAtOnce(t *testing.T) {
	w := newWorld(t, 2)
	w.spread(1, adaptive)
	pod := w.pod("p")
	if got := w.refuse(pod); got != GoOn {
		t.Fatalf("got step %d, want to go on", got)
	}
	w.expectAwake("p")
	w.expectKept("a=0 b=0") // between two subsets it holds no slot
	w.expectChoice(pod, "b")
	w.expectKept("a=0 b=1")
	w.schedule(pod)
	w.seeBound(pod, "node-b", "b")
	w.expectKept("a=0 b=1")
}

func TestOneExhaustedPodOfEachKindIsTriedForAnEvent(t *testing.T) {
	w := newWorld(t, 9)
	w.spread(1, adaptive)
	var big, small []*corev1.Pod
	for i := range 3 {
		big = append(big, requesting(podOf("rs-uid", fmt.Sprintf("big%d", i)), "8"))
		small = append(small, requesting(podOf("rs-uid", fmt.Sprintf("small%d", i)), "1"))
		w.see(big[i])
		w.see(small[i])
		w.exhaust(big[i], "a", "b")
		w.exhaust(small[i], "a", "b")
	}
	w.awake = nil
	event := &corev1.Pod{}
	for i, want := range []bool{true, false, false} {
		for _, pod := range []*corev1.Pod{big[i], small[i]} {
			if got := w.mayRetry(pod, event, "a"); got != want {
				t.Errorf("%s may retry: %t, want %t", pod.Name, got, want)
			}
		}
	}
	// The big pod finds no room. The small pod leaves room for other small pods.
	w.exhaust(big[0], "a", "b")
	w.awake = nil
	w.expectChoice(small[0], "a")
	w.schedule(small[0])
	w.expectAwake("small1")
	// If a woken pod is deleted before its cycle, the next pod has its turn. A pod that only waits has no turn to pass on.
	w.delete(small[1])
	w.expectAwake("small2")
	w.delete(big[1])
	w.expectAwake()
	if !w.mayRetry(big[2], &corev1.Pod{}, "a") {
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
	t.Run("because their bind did not happen after all", func(t *testing.T) {
		w := newWorld(t, 9)
		w.spread(1, oneInTwo)
		inA, inB, pod := w.pod("in-a"), w.pod("in-b"), w.pod("p")
		w.schedule(inA)
		w.expectChoice(inB, "b")
		w.bindUncertain(inA, initialBackoff/2)
		w.exhaust(pod, "c")
		w.step(initialBackoff / 2)
		w.awake = nil
		w.bindSettled(inA, w.now)
		w.expectAwake("p") // after its error the scheduler itself tries in-a again
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

func TestAnExhaustedPodThatIsKeptFromAskingPassesItsTurnOn(t *testing.T) {
	for name, end := range map[string]func(*world, *corev1.Pod){
		"because another plugin has refused it": func(w *world, pod *corev1.Pod) { w.apply(PodRefused{UID: pod.UID}) },
		"because it has had no cycle for a while": func(w *world, _ *corev1.Pod) {
			w.apply(Audit{})
			w.apply(Audit{})
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
			if !w.mayRetry(pods[0], &corev1.Pod{}, "a") {
				t.Fatal("want a pod for an event")
			}
			end(w, pods[0])
			w.expectAwake("p1")
			w.apply(PodRefused{UID: pods[0].UID}) // once
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
	if got := w.refuse(between); got != GoOn {
		t.Fatalf("got step %d, want to go on", got)
	}
	w.expectAwake("between", "waits")
	w.apply(PodRefused{UID: between.UID})
	w.expectAwake()
	w.delete(inA)
	w.expectAwake("last")
	w.expectChoice(waits, "a")
	w.expectChoice(last, "b")
	w.delete(last)
	w.expectChoice(between, "b") // its next cycle is the first of a round
}

func TestAPodRefusedByMoreThanItsNodesIsTriedAgainWithoutAnEvent(t *testing.T) {
	w := newWorld(t, 1)
	w.spread(1, adaptive)
	pod := w.pod("p")
	for _, wait := range []time.Duration{time.Second, 2 * time.Second} {
		w.refuse(pod)
		w.refuse(pod)
		w.expectChoice(pod, "NoNodeFits")
		w.awake = nil
		w.step(wait - 1)
		w.expectAwake()
		w.step(1)
		w.expectAwake("p")
	}
}

func TestPreemptionComesLastAndInTheOrderOfTheSubsets(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, adaptive)
	pod := w.important("p")
	var got []string
	for range 4 {
		step, d := w.refuseIn(pod)
		got = append(got, fmt.Sprintf("%s:%d", d.Name(), step))
		if step == Preempt {
			w.apply(Preempted{UID: pod.UID, Decision: d})
		}
	}
	w.expectChoice(pod, "NoNodeFits")
	want := fmt.Sprint([]string{fmt.Sprintf("a:%d", GoOn), fmt.Sprintf("b:%d", GoOn), fmt.Sprintf("a:%d", Preempt), fmt.Sprintf("b:%d", Preempt)})
	if fmt.Sprint(got) != want {
		t.Errorf("cycles %v, want %s", got, want)
	}
	w.expectKept("a=0 b=0")
}

func TestANominatedPodKeepsItsClaim(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, `{subsets: [{name: a, maxReplicas: 1}, {name: b, maxReplicas: 1}], scheduleStrategy: {type: Adaptive, whenFull: Wait}}`)
	pod := w.important("p")
	w.refuse(pod)
	w.refuse(pod)
	w.preempt(pod, true)
	w.expectKept("a=1 b=0")
	sibling := w.pod("sibling")
	w.expectChoice(sibling, "b")
	w.schedule(sibling)
	// An event wakes the pod while its victims still terminate. The pod asks whether they do. It neither goes to the next subset nor preempts
	// elsewhere.
	w.awake = nil
	for range 2 {
		w.preempt(pod, true)
		w.expectKept("a=1 b=1")
	}
	w.expectAwake()
	w.expectChoice(pod, "a") // its victims have terminated
	w.schedule(pod)
	w.expectKept("a=1 b=1")
}

func TestANominatedPodWhosePreemptionWasInVainGoesOn(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, adaptive)
	pod := w.important("p")
	for range 2 {
		w.refuse(pod)
	}
	w.preempt(pod, true)
	// Its victims have terminated, another pod is on their node, and there are no other victims.
	w.awake = nil
	w.preempt(pod, false)
	w.expectKept("a=0 b=0")
	w.expectAwake("p")
	w.expectChoice(pod, "b")
}

func TestANominatedPodWhoseSlotIsTakenAwayBeginsAgain(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, `{subsets: [{name: a, maxReplicas: "50%"}, {name: b}], scheduleStrategy: {type: Adaptive}}`)
	w.expectChoice(w.pod("older"), "a")
	pod := w.important("p")
	for range 2 {
		w.refuse(pod)
	}
	w.preempt(pod, true)
	w.scale(2) // which leaves one slot in a
	if got := w.refuse(pod); got != GoOn {
		t.Errorf("got step %d in b, where it has looked for no node yet, want to go on", got)
	}
}

// Placeholders of low priority keep room in the first subset. A pod takes their place before it goes on, and a pod that can have no victims goes on at once.
func TestAPodPreemptsBeforeItGoesOnIfTheSpreadSaysSo(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, strings.Replace(adaptive, "type: Adaptive", "type: Adaptive, adaptive: {preemption: BeforeNextSubset}", 1))
	w.result = func(*NodeCheck) CheckResult { return Infeasible } // no subset has a node that is free
	pod := w.important("p")
	w.expectChoice(pod, "a")
	w.preempt(pod, false) // there are no victims
	w.expectAwake("p")
	w.preempt(pod, true) // in b
	w.expectKept("a=0 b=1")
	w.expectChoice(pod, "b") // it stays until its victims have terminated
	w.expectChoice(w.pod("without victims"), "NoNodeFits")
}

func TestAPodThatPreemptsFirstFindsRoomThatComesFreeInTheMiddleOfItsRound(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, strings.Replace(adaptive, "type: Adaptive", "type: Adaptive, adaptive: {preemption: BeforeNextSubset}", 1))
	pod := w.important("p")
	w.preempt(pod, false) // in a
	w.result = func(check *NodeCheck) CheckResult { return FeasibleAgain }
	w.expectChoice(pod, "a")
}

// A pod that was woken for a slot takes the one that its doubtful bind holds already.
func TestAPodThatNeedsNoOtherSlotPassesItOn(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, `{subsets: [{name: a, maxReplicas: 1}, {name: b, maxReplicas: 1}], scheduleStrategy: {type: Adaptive, whenFull: Wait}}`)
	inA, pod, big, small := w.pod("in-a"), w.pod("p"), w.pod("big"), w.pod("small")
	w.expectChoice(inA, "a")
	w.schedule(pod)
	w.bindUncertain(pod, time.Minute)
	w.expectChoice(big, "SubsetsFull")
	w.expectChoice(small, "SubsetsFull")
	w.refuse(inA)
	w.expectAwake("big", "in-a")
	w.apply(PodRefused{UID: inA.UID})
	w.refuse(pod) // in a
	w.expectAwake("p")
	w.result = func(check *NodeCheck) CheckResult {
		if check.Policy.Subsets[check.Subset].Name == "a" {
			return Infeasible
		}
		return Feasible
	}
	w.expectChoice(big, "NoNodeFits")
	w.expectAwake()
	w.expectChoice(pod, "b")
	w.expectAwake("small")
}

// An exhausted pod is tried for all of its class. If it waits for victims, the next one need not wait until they have left.
func TestAPodThatWaitsForVictimsPassesItsTurnOn(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, adaptive)
	first, second := w.important("first"), w.important("second")
	for _, pod := range []*corev1.Pod{first, second} {
		w.refuse(pod) // in a, and then in b
		w.refuse(pod)
		w.preempt(pod, false)
		w.preempt(pod, false)
		w.expectChoice(pod, "NoNodeFits")
	}
	w.awake = nil
	if !w.mayRetry(first, &corev1.Pod{}, "a") {
		t.Fatal("want a pod for an event")
	}
	w.refuse(first)
	w.refuse(first)
	w.awake = nil
	w.preempt(first, true)
	w.expectAwake("second")
}

// TestPodsWithOtherRulesAreTriedToo: an exhausted pod is tried for those only that find room where it does. The zone of its volume may be down, and that of another is back.
func TestPodsWithOtherRulesAreTriedToo(t *testing.T) {
	term := []corev1.PodAffinityTerm{{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "cat"}}, TopologyKey: corev1.LabelHostname}}
	for name, differs := range map[string]func(*corev1.Pod){
		"equal":    nil,
		"revision": func(pod *corev1.Pod) { pod.Labels["pod-template-hash"] = "v2" },
		"priority": func(pod *corev1.Pod) { pod.Spec.Priority = ptr.To[int32](-10) },
		"affinity": func(pod *corev1.Pod) {
			pod.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: term}}
		},
		"anti-affinity": func(pod *corev1.Pod) {
			pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: term}}
		},
		"topology spread": func(pod *corev1.Pod) {
			pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: "zone", WhenUnsatisfiable: corev1.DoNotSchedule}}
		},
		"devices": func(pod *corev1.Pod) {
			pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr.To("second")}}
		},
		"claim": func(pod *corev1.Pod) {
			pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data-1"}}}}
		},
		"ephemeral volume": func(pod *corev1.Pod) {
			pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 4)
			w.spread(1, strings.Replace(adaptive, "type: Adaptive", "type: Adaptive, quotaScope: Workload", 1))
			first, second := podOf("rs-uid", "first"), podOf("rs-uid", "second")
			if differs != nil {
				differs(second)
			}
			for _, pod := range []*corev1.Pod{first, second} {
				pod.Spec.PreemptionPolicy = ptr.To(corev1.PreemptNever)
				w.see(pod)
				w.refuse(pod) // in a, and then in b
				w.refuse(pod)
				w.expectChoice(pod, "NoNodeFits")
			}
			change := &corev1.Pod{}
			if !w.mayRetry(first, change, "a") {
				t.Fatal("no pod is tried after an event")
			}
			if got, want := w.mayRetry(second, change, "a"), differs != nil; got != want {
				t.Errorf("the second pod is tried: %t, want %t", got, want)
			}
		})
	}
}

func TestFixedPreemptsInItsSubset(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, twoThenAny)
	pod := w.pod("p")
	w.preempt(pod, false)
	w.expectKept("a=1 b=0")
	w.expectChoice(pod, "a")
}

func TestAPodThatOnlyNodesRefusedIsTriedWhenTheFiltersOfNodesChange(t *testing.T) {
	w := newWorld(t, 9)
	w.spread(1, adaptive)
	pod := w.pod("p")
	w.result = func(*NodeCheck) CheckResult { return Infeasible }
	w.expectChoice(pod, "NoNodeFits")
	for _, filters := range []bool{false, true} {
		if got := w.apply(ClusterChanged{UID: pod.UID, Change: fmt.Sprint(filters), Filters: filters}).OK; got != filters {
			t.Errorf("a change that is not about a node, and opens nodes: %t: the pod is tried: %t", filters, got)
		}
	}
}

func TestAnExhaustedPodIsLetGoWhenTheLastSlotIsTaken(t *testing.T) {
	const oneSlot = `{subsets: [{name: a, maxReplicas: 1, requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [a]}]}}], scheduleStrategy: {type: Adaptive}}`
	// No node of a has room for the big pods.
	exhausted := func(t *testing.T, spec string) (*world, []*corev1.Pod) {
		t.Helper()
		w := newWorld(t, 9)
		w.spread(1, spec)
		big := w.podsNamed("big", 2)
		w.result = func(*NodeCheck) CheckResult { return Infeasible }
		for _, pod := range big {
			w.expectChoice(pod, "NoNodeFits")
		}
		w.result = func(*NodeCheck) CheckResult { return Feasible }
		return w, big
	}
	t.Run("by a pod that has found a node", func(t *testing.T) {
		w, big := exhausted(t, oneSlot)
		small := w.pod("small")
		d := w.ask(small).Decision
		w.expectAwake() // it may find no node
		w.reserve(small, d)
		w.expectAwake("big0")
		w.startBind(small, d)
		w.seeBound(small, "node-a", "a")
		w.expectAwake()
		w.expectChoice(big[0], "-")
		w.expectAwake()
		w.schedule(big[0])
		w.expectAwake("big1") // where another pod found a node
		w.expectKept("a=1")
	})
	t.Run("by a pod that somebody else has bound", func(t *testing.T) {
		w, big := exhausted(t, oneSlot)
		w.seeBound(podOf("rs-uid", "adopted"), "node-a", "-")
		w.expectAwake("big0")
		w.expectChoice(big[0], "-")
	})
	t.Run("by one whose node is seen late", func(t *testing.T) {
		w, big := exhausted(t, oneSlot)
		w.seeBound(podOf("rs-uid", "adopted"), "node-new", "-")
		w.expectAwake()
		w.seeNode("node-new", "a")
		w.expectAwake("big0")
		w.expectChoice(big[0], "-")
	})
	t.Run("but not while another subset has room", func(t *testing.T) {
		w, _ := exhausted(t, strings.Replace(oneSlot, "}], sch", "}, {name: b, maxReplicas: 1, requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [b]}]}}], sch", 1))
		w.schedule(requesting(w.pod("small"), "1"))
		w.expectAwake()
	})
	t.Run("where pods wait when all subsets are full, to say so, one after the other", func(t *testing.T) {
		w, big := exhausted(t, strings.Replace(oneSlot, "{type: Adaptive}", "{type: Adaptive, whenFull: Wait}", 1))
		w.schedule(requesting(w.pod("small"), "1"))
		w.expectAwake("big0")
		w.expectChoice(big[0], "SubsetsFull")
		w.expectAwake("big1")
		w.expectChoice(big[1], "SubsetsFull")
		w.expectAwake()
	})
}

func TestAWokenPodThatFindsNoNodePassesItsSlotOn(t *testing.T) {
	w := newWorld(t, 3)
	w.spread(1, `{subsets: [{name: a, maxReplicas: 1}], scheduleStrategy: {type: Adaptive, whenFull: Wait}}`)
	first, big, small := w.pod("first"), w.podsNamed("big", 2), w.pod("small")
	w.expectChoice(first, "a")
	for _, pod := range append(slices.Clone(big), small) {
		w.expectChoice(pod, "SubsetsFull")
	}
	w.delete(first)
	w.awake = nil
	w.result = func(*NodeCheck) CheckResult { return Infeasible }
	for _, pod := range big {
		w.expectChoice(pod, "NoNodeFits")
	}
	w.expectAwake("small")
	w.result = func(*NodeCheck) CheckResult { return Feasible }
	w.expectChoice(small, "a")
}

func TestARefusalSaysOfEachSubsetWhatKeepsThePodFromIt(t *testing.T) {
	w := newWorld(t, 9)
	w.spread(1, `subsets: [{name: full, maxReplicas: 1}, {name: mine, maxReplicas: 1}, {name: other, maxReplicas: 1}, {name: unknown}]`)
	w.schedule(w.pod("first"))
	pod := w.pod("p")
	d := w.ask(pod).Decision
	answer := w.apply(NoNodeFound{UID: pod.UID, Decision: d}).Answer
	why := func(index int) string { return []string{"0/1 nodes fit", "0/2 nodes fit", "0/3 nodes fit", ""}[index] }
	const want = `WorkloadSpread "web": full: 1/1 kept; mine: 0/2 nodes fit; other: 0/3 nodes fit; unknown: 0/- kept`
	if got := answer.Describe(why); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestALentClaimIsKeptAndBound has ten pods at 20/20/60 % and no node in a. Its share goes to the others, and no pod more than there are replicas.
func TestALentClaimIsKeptAndBound(t *testing.T) {
	w := newWorld(t, 10)
	w.result = func(check *NodeCheck) CheckResult {
		if check.Policy.Subsets[check.Subset].Name == "a" {
			return Infeasible
		}
		return Feasible
	}
	w.spread(1, `{subsets: [{name: a, maxReplicas: 20%}, {name: b, maxReplicas: 20%}, {name: c, maxReplicas: 60%}], scheduleStrategy: {type: Adaptive}}`)
	for i, in := range []string{"c", "c", "b", "c", "c", "c", "b", "c", "c", "c"} {
		pod := w.pod(fmt.Sprint("p", i))
		w.expectChoice(pod, in)
		for range i % 3 { // it may ask again before it has a node
			w.expectChoice(pod, in)
		}
		w.schedule(pod)
		w.seeBound(pod, "node-"+in, in)
	}
	w.expectKept("a=0 b=2 c=8")
	if over := w.ledger.Counts().OverQuota; over != 0 {
		t.Errorf("%d pods are over quota, want lent pods not to be", over)
	}
	w.result = func(*NodeCheck) CheckResult { return Feasible }
	w.scale(11)
	w.expectChoice(w.pod("next"), "a")
}

// A pod that finds a node, and cannot be bound to it, goes on after a while.
func TestAnAdaptivePodGoesOnFromASubsetInWhichBindsFail(t *testing.T) {
	w := newWorld(t, 2)
	w.spread(1, adaptive)
	pod := w.pod("p")
	for try := range mostFailures {
		d := w.schedule(pod)
		if d.Name() != "a" {
			t.Fatalf("try %d is in %s", try, d.Name())
		}
		w.bindRefused(pod)
		w.expectKept("a=1 b=0")
		w.step(failingPeriod / mostFailures)
	}
	// So often, but not for so long: the API server may have been busy.
	w.reserve(pod, w.ask(pod).Decision)
	w.unreserve(pod)
	w.expectKept("a=0 b=0")
	w.expectAwake("p")
	if d := w.schedule(pod); d.Name() != "b" {
		t.Fatalf("it is in %s", d.Name())
	}
	w.bindRefused(pod)
	w.expectKept("a=0 b=1")
}
