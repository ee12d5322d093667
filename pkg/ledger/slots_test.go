package ledger

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

func TestPendingPodsHoldClaims(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, twoThenAny)
	pods := w.podsNamed("p", 4)
	// None of the pods finds a node, but the third goes to the second subset.
	for i, want := range []string{"a", "a", "b", "b"} {
		w.expectChoice(pods[i], want)
	}
	w.expectKept("a=2 b=2")
	// A second cycle of the same pod takes no second slot.
	w.expectChoice(pods[0], "a")
	w.expectKept("a=2 b=2")
	// A released claim goes to the oldest pod of a later subset.
	w.delete(pods[1])
	w.expectAwake("p2")
	w.expectChoice(pods[2], "a")
	w.expectKept("a=2 b=1")
}

func TestAClaimWhoseSlotAnAdoptedPodTakesGoesToTheNextSubset(t *testing.T) {
	adopted := podOf("rs-uid", "adopted")
	elsewhere := podOf("rs-uid", "adopted")
	elsewhere.OwnerReferences[0].Name, elsewhere.OwnerReferences[0].UID = "other", "other-uid"
	for name, adopt := range map[string]func(*world){
		"bound by another scheduler": func(w *world) { w.seeBound(adopted, "node-a", "-") },
		"to a node that is seen late": func(w *world) {
			w.seeBound(adopted, "node-new", "-")
			w.expectAwake()
			w.seeNode("node-new", "a")
		},
		"given to the workload later": func(w *world) {
			w.seeBound(elsewhere, "node-a", "-")
			w.expectAwake()
			w.seeBound(adopted, "node-a", "-")
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 4)
			w.spread(1, twoThenAny)
			first, second := w.pod("first"), w.pod("second")
			w.expectChoice(first, "a")
			w.preempt(second, false) // there is no node
			adopt(w)
			w.expectAwake("first", "second") // the one that came first keeps its claim
			w.expectChoice(second, "b")
			w.expectChoice(first, "a")
			w.expectKept("a=2 b=1")
		})
	}
}

func TestASlotGoesThroughEveryState(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, twoThenAny)
	pod := w.pod("p")
	d := w.ask(pod).Decision
	w.expectKept("a=1 b=0")
	if !w.reserve(pod, d) {
		t.Fatal("reserve")
	}
	w.unreserve(pod)
	w.unreserve(pod)
	w.expectKept("a=1 b=0") // the claim stays
	w.schedule(pod)
	w.unreserve(pod) // the scheduler does this after every bind error
	w.bindRefused(pod)
	w.expectKept("a=1 b=0")
	w.schedule(pod)
	w.seeBound(pod, "node-a", "a")
	w.seeBound(pod, "node-a", "a") // informers repeat events
	w.unreserve(pod)
	w.bindRefused(pod)
	w.expectKept("a=1 b=0")
	w.delete(pod)
	w.delete(pod)
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
		w.bindUncertain(pod, doubt)
		w.unreserve(pod)
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
		w.seeBound(pod, "node-a", "a") // the first bind has happened
		w.expectKept("a=1 b=0")
	})
	t.Run("until the pod is gone", func(t *testing.T) {
		w, pod := uncertain(t)
		w.delete(pod)
		w.expectKept("a=0 b=0")
	})
	t.Run("until a read after all doubt shows that it did not happen", func(t *testing.T) {
		w, pod := uncertain(t)
		w.bindSettled(pod, w.now.Add(doubt-1))
		w.expectKept("a=1 b=0")
		w.bindSettled(pod, w.now.Add(doubt))
		w.expectKept("a=0 b=0")
	})
	t.Run("and a second uncertain bind prolongs the doubt", func(t *testing.T) {
		w, pod := uncertain(t)
		w.step(doubt - 1)
		w.schedule(pod)
		w.bindUncertain(pod, doubt)
		w.bindSettled(pod, w.now.Add(1))
		w.expectKept("a=1 b=0")
	})
}

func TestABindThatMayYetHappenKeepsItsSlotWhateverBecomesOfTheSpread(t *testing.T) {
	const doubt = 10 * time.Second
	const withoutA = `{subsets: [{name: c, maxReplicas: 1}, {name: b, maxReplicas: 1}], scheduleStrategy: {whenFull: Wait}}`
	// Each change of the spread has two halves. Between them the spread cannot be used, or not for this bind.
	changes := map[string]struct{ begin, end func(*world) }{
		"it is deleted and created again": {
			func(w *world) { w.spreadGone() },
			func(w *world) { w.spread(1, twoAndOneWait) },
		},
		"it is invalid for a while": {
			func(w *world) { w.spread(2, `subsets: [{name: a, maxReplicas: -1}]`) },
			func(w *world) { w.spread(3, twoAndOneWait) },
		},
		"it is invalid, deleted and created again": {
			func(w *world) { w.spread(2, `subsets: [{name: a, maxReplicas: -1}]`); w.spreadGone() },
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
			func(w *world) { w.spread(2, withoutA); w.spreadGone() },
			func(w *world) { w.spread(1, twoAndOneWait) },
		},
	}
	settled := func(w *world, pod *corev1.Pod) {
		w.step(doubt)
		w.bindSettled(pod, w.now)
	}
	// The bind was sent before the change. Its result comes before the first half, between the halves, or afterwards.
	tests := map[string]struct {
		before, between, after func(*world, *corev1.Pod)
		want, wantAfter        string
	}{
		"sent, and it happens": {
			after: func(w *world, pod *corev1.Pod) { w.seeBound(pod, "node-a", "a") },
			want:  "a=1 b=0", wantAfter: "a=1 b=0",
		},
		"sent, and it is refused": {
			after: func(w *world, pod *corev1.Pod) { w.bindRefused(pod) },
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
			between: func(w *world, pod *corev1.Pod) { w.bindRefused(pod) },
			want:    "a=0 b=0", wantAfter: "a=0 b=0",
		},
		"the pod ends between": {
			between: func(w *world, pod *corev1.Pod) { w.delete(pod) },
			want:    "a=0 b=0", wantAfter: "a=0 b=0",
		},
		"it becomes uncertain between": {
			between: func(w *world, pod *corev1.Pod) { w.bindUncertain(pod, doubt) },
			after:   settled, want: "a=1 b=0", wantAfter: "a=0 b=0",
		},
		"it was uncertain": {
			before: func(w *world, pod *corev1.Pod) { w.bindUncertain(pod, doubt) },
			after:  settled, want: "a=1 b=0", wantAfter: "a=0 b=0",
		},
		"it was uncertain, and is read too early": {
			before:  func(w *world, pod *corev1.Pod) { w.bindUncertain(pod, doubt) },
			between: func(w *world, pod *corev1.Pod) { w.bindSettled(pod, w.now) },
			want:    "a=1 b=0", wantAfter: "a=1 b=0",
		},
		"it was uncertain, and is settled between": {
			before:  func(w *world, pod *corev1.Pod) { w.bindUncertain(pod, doubt) },
			between: settled, want: "a=0 b=0", wantAfter: "a=0 b=0",
		},
		"it was uncertain, and a read has shown that it happened": {
			before: func(w *world, pod *corev1.Pod) {
				w.bindUncertain(pod, doubt)
				w.apply(PodRead{Pod: onNode(pod, "node-a", "a")})
			},
			after: func(w *world, pod *corev1.Pod) { w.seeBound(pod, "node-a", "a") },
			want:  "a=1 b=0", wantAfter: "a=1 b=0",
		},
		"it was uncertain, and a read shows between that it happened": {
			before:  func(w *world, pod *corev1.Pod) { w.bindUncertain(pod, doubt) },
			between: func(w *world, pod *corev1.Pod) { w.apply(PodRead{Pod: onNode(pod, "node-a", "a")}) },
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
			})
		}
	}
	t.Run("next to that of another bind to a subset that is still there", func(t *testing.T) {
		w := newWorld(t, 4)
		w.spread(1, twoAndOneWait)
		pod := w.pod("p")
		w.schedule(pod)
		w.bindUncertain(pod, doubt)
		w.step(doubt / 2)
		w.spread(2, `{subsets: [{name: b, maxReplicas: 1}], scheduleStrategy: {whenFull: Wait}}`)
		w.schedule(pod)
		w.spread(3, twoAndOneWait)
		w.expectKept("a=1 b=1")
		w.spread(4, `{subsets: [{name: b, maxReplicas: 1}], scheduleStrategy: {whenFull: Wait}}`)
		w.bindUncertain(pod, doubt)
		w.expectKept("b=1")
		w.step(doubt / 2)
		w.bindSettled(pod, w.now) // the bind to b is still uncertain
		w.spread(5, twoAndOneWait)
		w.expectKept("a=0 b=1")
		w.step(doubt / 2)
		w.bindSettled(pod, w.now)
		w.expectKept("a=0 b=0")
	})
	t.Run("but one that is not sent yet is not sent", func(t *testing.T) {
		for how, change := range changes {
			w := newWorld(t, 4)
			w.spread(1, twoAndOneWait)
			pod := w.pod("p")
			d := w.ask(pod).Decision
			if !w.reserve(pod, d) {
				t.Fatal("reserve")
			}
			change.begin(w)
			if w.startBind(pod, d) {
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
	// p3 has not had its cycle: the ledger keeps the slot of b for it, and the slot of a for the next pod.
	w.delete(pods[0])
	w.expectAwake("p4")
	w.expectChoice(pods[3], "a")
	w.expectChoice(pods[4], "b")
	w.expectAwake()
	// A woken pod that is deleted leaves its slot to the next pod.
	w.seeBound(pods[1], "node-a", "a")
	w.delete(pods[1])
	w.awake = nil
	w.delete(pods[5])
	w.expectChoice(pods[6], "a")
	w.expectKept("a=2 b=1")
	// A higher quota wakes all waiting pods.
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
		w.bindUncertain(second, doubt)
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
		w.bindUncertain(pod, doubt)
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
		w.expectChoice(pod, "b") // pods behind it in b make no room in a, which other pods fill
		w.expectKept("a=3 b=4")
	})
}

func TestAReservationDoesNotOutliveItsPolicy(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, twoThenAny)
	pod := w.pod("p")
	d := w.ask(pod).Decision
	w.spread(2, `subsets: [{name: b}, {name: a, maxReplicas: 2}]`)
	if w.reserve(pod, d) {
		t.Error("reserved by a decision of the policy before")
	}
	w.expectKept("b=0 a=1") // the claim keeps the name of its subset, not the position
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
- {name: b, requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [b]}]}}
- {name: c, requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [a]}]}}`)
	// p0 is on a node that c now selects. p1's bind to a is under way, but a no longer exists. p2 stays in b.
	w.expectKept("b=1 c=1")
	w.seeBound(pods[1], "node-a", "a")
	w.expectKept("b=1 c=2")
}

func TestForgedRecordsNeitherFreeNorTakeQuota(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, twoThenAny)
	pending := podOf("rs-uid", "pending")
	pending.Annotations = map[string]string{v1beta1.MatchedAnnotation: `{"name":"web","subset":"b","uid":"pending-uid"}`}
	w.see(pending)
	w.expectChoice(pending, "a")
	pod := w.pod("p")
	w.schedule(pod)
	w.seeBound(pod, "node-a", "a")
	w.expectKept("a=2 b=0")
	w.seeBound(pod, "node-a", "b") // a client has changed the record of a bound pod
	w.expectKept("a=2 b=0")
	foreign := onNode(podOf("rs-uid", "foreign"), "node-b", "-")
	foreign.Annotations = map[string]string{v1beta1.MatchedAnnotation: `{"name":"web","subset":"a","uid":"p-uid"}`}
	w.see(foreign)
	w.expectKept("a=2 b=1") // by its node
}

func TestAfterARestartTheBoundPodsAreCountedByTheirRecords(t *testing.T) {
	w := newWorld(t, 6)
	for i, in := range []string{"a", "b", "-", ""} {
		w.seeBound(podOf("rs-uid", fmt.Sprintf("p%d", i)), "node-b", in)
	}
	w.seeBound(podOf("rs-uid", "early"), "node-new", "-")
	w.spread(1, twoThenAny)
	w.expectKept("a=1 b=2")
	// The ledger may see the node of an adopted pod after the pod.
	w.seeNode("node-new", "a")
	w.expectKept("a=2 b=2")
	w.expectChoice(w.pod("next"), "b")
}

func TestAnAdoptedPodCountsByTheRecordThatItGets(t *testing.T) {
	w := newWorld(t, 6)
	w.spread(1, twoThenAny)
	pod := podOf("rs-uid", "p")
	w.see(onNode(pod, "node-b", "-"))
	w.expectKept("a=0 b=1")
	w.see(onNode(pod, "node-b", "a")) // the controller saw other labels of the node
	w.expectKept("a=1 b=0")
	w.see(onNode(pod, "node-b", "b")) // nobody may change a record
	w.see(onNode(pod, "node-b", "-"))
	w.expectKept("a=1 b=0")
}

func TestAPodThatAReadHasShownOnItsNodeIsThereWhateverTheCacheHas(t *testing.T) {
	for name, in := range map[string]string{"bound by Berth": "a", "bound by somebody else": "-"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 4)
			w.spread(1, twoThenAny)
			pod := w.pod("p")
			w.apply(PodListed{Pod: onNode(pod, "node-a", in)})
			w.expectKept("a=1 b=0")
			w.spreadGone()
			w.see(pod) // an older event, from before the bind
			w.spread(1, twoThenAny)
			w.expectKept("a=1 b=0")
			w.see(pod)
			w.expectKept("a=1 b=0")
			w.seeBound(pod, "node-a", in)
			w.expectKept("a=1 b=0")
			w.apply(PodListed{Pod: onNode(pod, "node-a", in)}) // later than the event
		})
	}
	t.Run("until its end", func(t *testing.T) {
		w := newWorld(t, 4)
		w.spread(1, twoThenAny)
		pod := w.pod("p")
		w.apply(PodListed{Pod: onNode(pod, "node-a", "a")})
		w.spreadGone()
		w.see(terminating(pod)) // as the cache contains it, without a node
		w.spread(1, twoThenAny)
		w.expectKept("a=0 b=0")
	})
}

func TestRelabellingANodeMovesNobody(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, twoThenAny)
	pod := w.pod("p")
	w.seeBound(pod, "node-a", "-")
	w.expectKept("a=1 b=0")
	w.seeNode("node-a", "b")
	w.seeBound(pod, "node-a", "-")
	w.expectKept("a=1 b=0")
}

func TestTerminatingPodsFreeTheirSlot(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, twoThenAny)
	pod := w.pod("p")
	w.schedule(pod)
	w.seeBound(pod, "node-a", "a")
	w.see(terminating(onNode(pod, "node-a", "a")))
	w.expectKept("a=0 b=0")
}

// TestAPodThatIsReplacedFirstKeepsItsSlot: its Deployment controls it meanwhile, and the new pod needs a slot of its own.
func TestAPodThatIsReplacedFirstKeepsItsSlot(t *testing.T) {
	w := newWorld(t, 2)
	w.spread(1, twoThenAny)
	for _, pod := range w.podsNamed("p", 2) {
		w.schedule(pod)
		w.seeBound(pod, "node-a", "a")
	}
	old := onNode(podOf("rs-uid", "p0"), "node-a", "a")
	handed := ownedBy(old, "web", "web-uid")
	handed.OwnerReferences[0].Kind = "Deployment"
	w.see(handed)
	w.expectKept("a=2 b=0")
	w.expectChoice(w.pod("new"), "b")
	w.expectKept("a=2 b=1")
	w.see(old)
	w.expectKept("a=2 b=1")
	w.see(handed)
	w.delete(handed)
	w.expectKept("a=1 b=1")
}

func TestADeletedSpreadLetsItsPodsGo(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, twoAndOneWait)
	pods := w.podsNamed("p", 4)
	for _, pod := range pods {
		w.choose(pod)
	}
	w.awake = nil
	w.spreadGone()
	w.expectAwake("p0", "p1", "p2", "p3")
	w.expectChoice(pods[3], "no spread")
	if len(w.ledger.accounts) != 0 || len(w.ledger.byName) != 0 || len(w.ledger.perNamespace) != 0 || len(w.ledger.unresolved) != 0 || w.ledger.Counts() != (podCounts{}) {
		t.Error("the ledger keeps something of a spread that is gone")
	}
}

func TestTheOlderOfTwoSpreadsForAWorkloadCounts(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, twoThenAny)
	pod := w.pod("p")
	w.expectChoice(pod, "a")
	later := &v1beta1.WorkloadSpread{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web2", UID: "2", Generation: 1, CreationTimestamp: metav1.Time{Time: time.Unix(5, 0)}}}
	later.Spec.TargetReference = v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}
	later.Spec.Subsets = []v1beta1.Subset{{Name: "other"}}
	w.apply(SpreadSeen{Spread: later})
	w.expectChoice(pod, "a")
	w.spreadGone()
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
			w.seeReplicaSet("new-uid")
			pod := podOf("new-uid", "new")
			pod.Labels["pod-template-hash"] = "v2"
			w.see(pod)
			w.expectChoice(pod, want)
		})
	}
}

func TestTargetFilterLeavesOtherPodsAlone(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, `{subsets: [{name: a}], targetFilter: {selector: {matchLabels: {role: worker}}}}`)
	w.expectChoice(w.pod("driver"), "no spread")
	worker := podOf("rs-uid", "worker")
	worker.Labels["role"] = "worker"
	w.see(worker)
	w.expectChoice(worker, "a")
}

func TestAnEarlyBoundPodUsesTheSubsetWhosePatchItCarriesOrNone(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, early)
	first, second, third, other := w.admitted("first", "a"), w.admitted("second", "a"), w.admitted("third", "a"), w.admitted("other", "b")
	w.expectChoice(first, "a")
	w.expectChoice(other, "b") // although b comes later and nothing keeps the pod from a
	for _, pod := range []*corev1.Pod{second, third} {
		answer := w.ask(pod)
		if answer.Reason != v1beta1.ReasonAdmittedSubsetFull || !strings.Contains(answer.Message, `subset "a", whose patch the pod carries, is full now`) {
			t.Fatalf("got %+v", answer)
		}
	}
	w.expectAwake() // b has room, but neither pod can use it
	w.delete(first)
	w.expectAwake("second")
	w.expectChoice(second, "a")
	w.expectKept("a=1 b=1")
}

func TestAPodWithoutAPickOfThisSpreadMayUseAnySubset(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, early)
	w.expectChoice(w.pod("webhook-was-down"), "a")
	w.expectChoice(w.admitted("renamed", "gone"), "b")
	w.expectChoice(w.admitted("let-go", ""), "-")
}

// A licence is in use until the process has ended.
func TestAPodThatTerminatesHoldsItsSlotIfTheSpreadSaysSo(t *testing.T) {
	const two = `{subsets: [{name: a, maxReplicas: 2}], scheduleStrategy: {%s}}`
	for name, tc := range map[string]struct {
		strategy string
		holds    bool
	}{
		"a hard limit, by default":      {"whenFull: Wait, quotaScope: Workload", true},
		"a hard limit, if told not to":  {"whenFull: Wait, quotaScope: Workload, podReplacementPolicy: TerminationStarted", false},
		"a limit for each revision":     {"whenFull: Wait", false},
		"the same, if told so":          {"whenFull: Wait, podReplacementPolicy: TerminationComplete", true},
		"a limit that pods may go over": {"whenFull: Schedule, quotaScope: Workload", false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 2)
			w.spread(1, fmt.Sprintf(two, tc.strategy))
			first, second := onNode(w.pod("first"), "node-a", "a"), onNode(w.pod("second"), "node-a", "a")
			w.see(first)
			w.see(second)
			w.see(terminating(first))
			third := w.pod("third")
			if !tc.holds {
				w.expectChoice(third, "a")
				return
			}
			w.expectChoice(third, string(v1beta1.ReasonSubsetsFull))
			w.awake = nil
			ended := terminating(first)
			ended.Status.Phase = corev1.PodSucceeded
			w.see(ended)
			w.expectAwake("third")
			w.expectChoice(third, "a")
		})
	}
}

// kubectl replace --force and a chart that is installed again delete a workload and make one of the same name. The pods of the first are about to end, and those
// of the second take their slots.
func TestPodsWaitForThoseOfTheDeletedWorkloadOfTheSameName(t *testing.T) {
	w := newWorld(t, 2)
	w.spread(1, twoThenAny)
	old := w.podsNamed("old", 2)
	for _, pod := range old {
		w.see(onNode(pod, "node-a", w.schedule(pod).Name()))
	}
	w.apply(OwnerGone{Kind: deploymentKind, Object: deployment(2)})
	again, set := deployment(2), replicaSet("rs-uid-2")
	again.UID, set.OwnerReferences[0].UID = "web-uid-2", "web-uid-2"
	w.apply(OwnerSeen{Kind: deploymentKind, Object: again})
	w.apply(OwnerSeen{Kind: replicaSetKind, Object: set})
	first, second := podOf("rs-uid-2", "new0"), podOf("rs-uid-2", "new1")
	for _, pod := range []*corev1.Pod{first, second} {
		w.see(pod)
		w.expectChoice(pod, string(v1beta1.ReasonWorkloadNotObserved))
	}
	w.awake = nil
	w.see(terminating(onNode(old[0], "node-a", "a")))
	w.expectChoice(first, string(v1beta1.ReasonWorkloadNotObserved))
	w.awake = nil
	w.see(terminating(onNode(old[1], "node-a", "a")))
	w.expectAwake("new0", "new1")
	w.expectChoice(first, "a")
	w.expectChoice(second, "a")
}

func TestPodsDoNotWaitForEverForADeletedWorkload(t *testing.T) {
	w := newWorld(t, 2)
	w.spread(1, twoThenAny)
	for _, pod := range w.podsNamed("old", 2) { // they stay, because nobody collects them
		w.see(onNode(pod, "node-a", w.schedule(pod).Name()))
	}
	w.apply(OwnerGone{Kind: deploymentKind, Object: deployment(2)})
	again, set := deployment(2), replicaSet("rs-uid-2")
	again.UID, set.OwnerReferences[0].UID = "web-uid-2", "web-uid-2"
	w.apply(OwnerSeen{Kind: deploymentKind, Object: again})
	w.apply(OwnerSeen{Kind: replicaSetKind, Object: set})
	pod := podOf("rs-uid-2", "new")
	w.see(pod)
	w.expectChoice(pod, string(v1beta1.ReasonWorkloadNotObserved))
	w.awake = nil
	w.step(2 * time.Second)
	w.expectAwake("new")
	w.expectChoice(pod, "b")
}
