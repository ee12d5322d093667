package workloadspread

import (
	"k8s.io/component-base/metrics/testutil"

	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestTheGateHoldsAPodFromWhenItIsToldToWaitUntilItIsWoken(t *testing.T) {
	w := newWorld(t, 2)
	w.gated = func(*corev1.Pod) bool { return true }
	w.spread(1, `subsets: [{name: a, maxReplicas: 1}]
scheduleStrategy: {whenFull: Wait}`)
	var plugins Family
	plugins.core.Store(w.core)
	gate := &gate{family: &plugins}
	pods := w.podsNamed("p", 2)
	expectHeld := func(when string, pod *corev1.Pod, want bool) {
		t.Helper()
		if held := !gate.PreEnqueue(t.Context(), pod).IsSuccess(); held != want {
			t.Errorf("%s: held is %t, want %t", when, held, want)
		}
	}
	expectFull := func(pod *corev1.Pod) {
		t.Helper()
		if got := w.asks(pod); !strings.HasPrefix(got, "SubsetsFull") {
			t.Fatalf("got %q", got)
		}
	}
	w.expectAnswer("a", pods[0])
	expectHeld("before its first cycle", pods[1], false)
	expectFull(pods[1])
	expectHeld("told to wait", pods[1], true)
	w.expectAwake("p1") // this makes the queue call the gate
	w.see(pods[1].DeepCopy())
	expectHeld("its status written", pods[1], true)
	w.delete(pods[0])
	w.expectAwake("p1")
	expectHeld("woken", pods[1], false)
	w.expectAnswer("a", pods[1])

	late := w.pod("late")
	expectFull(late)
	w.expectAwake("late")
	changed := late.DeepCopy()
	changed.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	w.see(changed)
	w.expectAwake("late")
	expectHeld("changed", changed, false)

	expectFull(changed)
	w.expectAwake("late")
	free := changed.DeepCopy()
	free.OwnerReferences = nil
	w.see(free)
	w.expectAwake("late")
	expectHeld("of no spread any more", free, false)
}

func TestAnAuditFindsAPodThatTheGateStillHoldsAlthoughItWasWoken(t *testing.T) {
	w := newWorld(t, 2)
	w.spread(1, `subsets: [{name: a, maxReplicas: 1}]
scheduleStrategy: {whenFull: Wait}`)
	var plugins Family
	plugins.core.Store(w.core)
	gate := &gate{family: &plugins}
	pods := w.podsNamed("p", 2)
	for _, pod := range pods {
		w.asks(pod)
	}
	missed := func() float64 {
		t.Helper()
		value, err := testutil.GetCounterMetricValue(missedWakeUps)
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	exposeMetrics(w.book)
	before := missed()
	if gate.PreEnqueue(t.Context(), pods[1]).IsSuccess() {
		t.Fatal("not held")
	}
	w.book.audit()
	w.delete(pods[0])
	w.expectAwake("p1") // and the queue gets no event
	w.book.audit()
	w.expectAwake()
	w.book.audit()
	w.expectAwake("p1")
	if got := missed() - before; got != 1 {
		t.Errorf("%v missed wake-ups, want 1", got)
	}
	if !gate.PreEnqueue(t.Context(), pods[1]).IsSuccess() {
		t.Error("held although it was woken")
	}
	w.book.audit()
	w.book.audit()
	w.expectAwake()
}
