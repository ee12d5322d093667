package ledger

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

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
	w.expectChoice(w.pod("quick"), "a") // before the pod that was woken for the slot
	w.delete(inC)
	w.expectAwake("waits") // in-b would not leave b for c
	w.expectChoice(inB, "b")
	w.expectAwake()
	w.expectChoice(waits, "c")
}

func TestAPodThatIsWokenWhileItFindsANodePassesItsSlotOn(t *testing.T) {
	w := newWorld(t, 9)
	w.spread(1, `{subsets: [{name: a, maxReplicas: 1}, {name: b, maxReplicas: 1}], scheduleStrategy: {whenFull: Wait}}`)
	inA, inB, waits, last := w.pod("in-a"), w.pod("in-b"), w.pod("waits"), w.pod("last")
	w.schedule(inA)
	w.seeBound(inA, "node-a", "a")
	d := w.ask(inB).Decision
	w.expectChoice(waits, "SubsetsFull")
	w.expectChoice(last, "SubsetsFull")
	w.delete(inA)
	w.expectAwake("in-b") // in the middle of its cycle
	if !w.reserve(inB, d) {
		t.Fatal("reserve")
	}
	w.expectAwake("waits") // it need not wait until in-b is through Permit and PreBind
	w.expectKept("a=0 b=1")
	w.unreserve(inB)
	w.expectAwake("in-b")
	w.expectChoice(inB, "a") // before the pod that was woken for the slot, which gets the slot that in-b had
	w.expectAwake()
	w.expectChoice(waits, "b")
	w.expectAwake()
}

func TestAWokenPodThatIsKeptFromAskingPassesItsSlotOn(t *testing.T) {
	// p2 and p3 wait, and a slot becomes free.
	woken := func(t *testing.T) (*world, []*corev1.Pod) {
		t.Helper()
		w := newWorld(t, 9)
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
		w.apply(PodRefused{UID: pods[2].UID})
		w.expectAwake("p3")
		w.apply(PodRefused{UID: pods[2].UID}) // once
		w.expectAwake()
		w.expectKept("a=1")
		// The ledger does not offer the pod the next slot until the pod asks. The pod may ask whenever the scheduler tries it.
		w.delete(pods[1])
		w.expectAwake("p4")
		w.expectChoice(pods[2], "a")
		w.expectChoice(pods[3], "a")
		w.expectChoice(pods[4], "SubsetsFull")
		w.expectKept("a=2")
	})
	t.Run("when it has had no cycle for a while", func(t *testing.T) {
		w, pods := woken(t)
		w.apply(Audit{})
		w.expectAwake()
		w.apply(Audit{})
		w.expectAwake("p3")
		w.expectChoice(pods[3], "a")
		for range 3 {
			w.apply(Audit{})
		}
		w.expectAwake()
	})
	t.Run("but not when it was woken again meanwhile", func(t *testing.T) {
		w, pods := woken(t)
		w.apply(Audit{})
		quick := w.pod("quick")
		w.expectChoice(quick, "a")
		w.expectChoice(pods[2], "SubsetsFull")
		w.awake = nil
		w.delete(quick)
		w.expectAwake("p2")
		w.apply(Audit{})
		w.expectAwake()
	})
	t.Run("and one that waits in line has none to pass on", func(t *testing.T) {
		w, pods := woken(t)
		w.apply(PodRefused{UID: pods[3].UID})
		w.expectAwake()
		w.expectChoice(pods[2], "a")
		w.delete(pods[1])
		w.expectAwake("p3")
	})
}
