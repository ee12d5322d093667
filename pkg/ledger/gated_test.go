package ledger

import (
	"fmt"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
)

const (
	gatedOneEach = `subsets:
- {name: a, maxReplicas: 1, requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [a]}]}}
- {name: b, maxReplicas: 1, requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [b]}]}}
scheduleStrategy: {whenFull: Wait, binding: Gated%s}`
)

func TestAPickHasItsSlotBeforeAnyPodAsks(t *testing.T) {
	for name, first := range map[string]bool{"the pods are seen first": false, "the spread is seen first": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 3)
			if first {
				w.spread(1, fmt.Sprintf(gatedOneEach, ""))
			}
			gatedPod, picked := withGate(podOf("rs-uid", "p0")), opened(podOf("rs-uid", "p1"), "a")
			w.see(gatedPod)
			w.see(picked)
			if !first {
				w.spread(1, fmt.Sprintf(gatedOneEach, ""))
			}
			w.expectKept("a=1 b=0")
			w.expectChoice(gatedPod, "b")
			w.expectChoice(picked, "a")
		})
	}
}

func TestAPickForAFullSubsetWaitsForItsSlotAlone(t *testing.T) {
	w := newWorld(t, 3)
	w.spread(1, fmt.Sprintf(gatedOneEach, ""))
	bound, picked := podOf("rs-uid", "p0"), opened(podOf("rs-uid", "p1"), "a")
	w.seeBound(bound, "node-a", "a")
	w.see(picked)
	if got := w.ask(picked); got.Decision != nil || got.Reason != "AdmittedSubsetFull" {
		t.Errorf("got %+v, want that the subset is full, although b has room", got)
	}
	w.expectKept("a=1 b=0")
	w.delete(bound)
	w.expectChoice(picked, "a")
}

func TestAPodWhoseGateIsOpenedElsewhereMovesItsClaim(t *testing.T) {
	w := newWorld(t, 3)
	w.spread(1, fmt.Sprintf(gatedOneEach, ""))
	pod := withGate(podOf("rs-uid", "p0"))
	w.see(pod)
	w.expectChoice(pod, "a")
	w.see(opened(pod, "b"))
	w.expectAwake("p0")
	w.expectKept("a=0 b=1")
	w.see(pod) // an old event closes no gate
	w.expectKept("a=0 b=1")
}

// TestAPodWaitsForANodeOnceItsCycleHasFoundNone: the gate of a pod that may still go on to another subset must not be opened in this one.
func TestAPodWaitsForANodeOnceItsCycleHasFoundNone(t *testing.T) {
	for name, tc := range map[string]struct {
		strategy string
		next     Step
	}{"Fixed": {"", Preempt}, "Adaptive": {", type: Adaptive", GoOn}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 3)
			w.spread(1, fmt.Sprintf(gatedOneEach, tc.strategy))
			pod := withGate(podOf("rs-uid", "p0"))
			w.see(pod)
			d := w.ask(pod).Decision
			expect := func(want bool) {
				t.Helper()
				if got, divided := w.ledger.WaitsForNode(pod.UID); !divided || got != nil != want {
					t.Errorf("waits for a node: %t, want %t", got != nil, want)
				}
			}
			expect(false)
			if next := w.apply(NoNodeFound{UID: pod.UID, Decision: d}).Next; next != tc.next {
				t.Fatalf("next %v, want %v", next, tc.next)
			}
			expect(false)
			w.apply(Preempted{UID: pod.UID, Decision: d})
			expect(tc.next == Preempt)
			w.ask(pod)
			expect(false)
		})
	}
}

func TestTwoExhaustedPodsDoNotWaitForTheSameSlot(t *testing.T) {
	w := newWorld(t, 3)
	w.spread(1, fmt.Sprintf(gatedOneEach, ", type: Adaptive"))
	for i, kept := range []string{"a=0 b=1", "a=1 b=1", "a=1 b=1"} {
		pod := withGate(podOf("rs-uid", fmt.Sprintf("p%d", i)))
		w.see(pod)
		switch i { // the third pod has not asked
		case 0:
			w.exhaust(pod, "a", "b")
		case 1:
			w.exhaust(pod, "a")
		}
		w.apply(PodWaits{UID: pod.UID})
		w.expectKept(kept)
		d, divided := w.ledger.WaitsForNode(pod.UID)
		if waits := d != nil; !divided || waits != (i < 2) {
			t.Errorf("p%d waits for a node: %t", i, waits)
		}
	}
}

// A pod with an open gate stays in its subset, so without a limit it waits in the last one, which it would come to with a closed gate.
func TestExhaustedPodsThatAreReplacedAfterAWaitTryTheSubsetsInOrder(t *testing.T) {
	const limited = ", type: Adaptive, adaptive: {rescheduleCriticalSeconds: 60, unschedulableLastSeconds: 300}"
	for name, tc := range map[string]struct {
		strategy string
		ofJob    bool
		waited   time.Duration
		want     string
	}{
		"nobody has waited":           {limited, false, 0, "a"},
		"a pod ended before its time": {limited, false, 59 * time.Second, "a"},
		"a pod has waited in vain":    {limited, false, 60 * time.Second, "b"},
		"it was long ago":             {limited, false, -1, "a"},
		"pods are not replaced":       {", type: Adaptive", false, 0, "b"},
		"pods of a Job":               {limited, true, 0, "b"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 3)
			pod, spread := withGate(podOf("rs-uid", "p")), spreadObject(t, "web", 1, "Deployment", "web", fmt.Sprintf(gatedOneEach, tc.strategy))
			if tc.ofJob {
				job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "job", UID: "job-uid"}, Spec: batchv1.JobSpec{Parallelism: ptr.To[int32](3)}}
				w.apply(OwnerSeen{Kind: schema.GroupKind{Group: "batch", Kind: "Job"}, Object: job})
				spread.Spec.TargetReference = v1beta1.TargetReference{APIVersion: "batch/v1", Kind: "Job", Name: "job"}
				pod.OwnerReferences[0] = metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", Name: "job", UID: "job-uid", Controller: ptr.To(true)}
			}
			w.apply(SpreadSeen{Spread: spread})
			first := opened(podOf("rs-uid", "first"), "a")
			w.see(first)
			switch {
			case tc.waited < 0:
				w.step(time.Minute)
				w.delete(first)
				w.step(5 * time.Minute)
			default:
				w.step(tc.waited)
				w.see(terminating(first))
			}
			w.see(pod)
			w.exhaust(pod, "a", "b")
			w.apply(PodWaits{UID: pod.UID})
			if d, _ := w.ledger.WaitsForNode(pod.UID); d == nil || d.Name() != tc.want {
				t.Errorf("waits in %v, want %s", d, tc.want)
			}
		})
	}
}

func TestAPodBeyondAllQuotasWaitsForAnyNode(t *testing.T) {
	for _, strategy := range []string{"Fixed", "Adaptive"} {
		w := newWorld(t, 3)
		w.spread(1, strings.Replace(fmt.Sprintf(gatedOneEach, ", type: "+strategy), "Wait", "Schedule", 1))
		for _, name := range []string{"p0", "p1"} {
			pod := withGate(podOf("rs-uid", name))
			w.see(pod)
			w.schedule(pod)
		}
		pod := withGate(podOf("rs-uid", "p2"))
		w.see(pod)
		d := w.ask(pod).Decision
		if d == nil || d.Subset != subset.None {
			t.Fatalf("%s: got %+v, want no subset", strategy, d)
		}
		expect := func(when string, want bool) {
			t.Helper()
			if waits, divided := w.ledger.WaitsForNode(pod.UID); !divided || (waits != nil) != want {
				t.Errorf("%s, %s: it waits for a node: %+v, divided: %t", strategy, when, waits, divided)
			}
		}
		expect("in its cycle", false)
		w.apply(Preempted{UID: pod.UID, Decision: d, Nominated: true})
		expect("nominated", false)
		w.apply(Preempted{UID: pod.UID, Decision: d})
		expect("without a node", true)
	}
}
