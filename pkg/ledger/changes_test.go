package ledger

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/berth-project/berth/test/testkit/worlds"
)

// inRevision returns the pod as it is after an update in place to a revision.
func inRevision(pod *corev1.Pod, revision string) *corev1.Pod {
	updated := pod.DeepCopy()
	updated.Labels["pod-template-hash"] = revision
	return updated
}

func TestAPodUpdatedInPlaceCountsInItsNewRevision(t *testing.T) {
	const quota = `{subsets: [{name: a, maxReplicas: 2}, {name: b, maxReplicas: 2}], scheduleStrategy: {whenFull: Wait}}`
	t.Run("where it is bound", func(t *testing.T) {
		w := newWorld(t, 10)
		w.spread(1, quota)
		var bound []*corev1.Pod
		for i := range 4 {
			pod := onNode(podOf("rs-uid", fmt.Sprintf("p%d", i)), "node-a", string("aabb"[i]))
			w.see(pod)
			bound = append(bound, pod)
		}
		waits := w.pod("waits")
		w.expectChoice(waits, "SubsetsFull")
		w.awake = nil
		w.see(inRevision(bound[0], "v2"))
		w.expectAwake("waits") // for the slot that became free in the old revision
		w.expectKeptIn("v1", "a=1 b=2")
		w.expectKeptIn("v2", "a=1 b=0")
		w.see(inRevision(bound[1], "v2"))
		w.see(inRevision(bound[1], "v2"))
		next := podOf("rs-uid", "next")
		next.Labels["pod-template-hash"] = "v2"
		w.see(next)
		w.expectChoice(next, "b") // a already has two pods of its revision
	})
	t.Run("and keeps its subset even if its node was relabelled", func(t *testing.T) {
		w := newWorld(t, 10)
		w.spread(1, twoThenAny)
		adopted := onNode(podOf("rs-uid", "p"), "node-a", "-")
		w.see(adopted)
		w.seeNode("node-a", "b")
		w.see(inRevision(adopted, "v2"))
		w.expectKeptIn("v2", "a=1 b=0")
	})
	t.Run("and where it is being bound, but what it has only claimed it must claim again", func(t *testing.T) {
		w := newWorld(t, 10)
		w.spread(1, quota)
		sent, claimed := w.pod("sent"), w.pod("claimed")
		w.schedule(sent)
		d := w.ask(claimed).Decision
		w.see(inRevision(sent, "v2"))
		w.see(inRevision(claimed, "v2"))
		w.expectKeptIn("v1", "a=0 b=0")
		w.expectKeptIn("v2", "a=1 b=0")
		if w.reserve(claimed, d) {
			t.Error("reserved by a decision for another revision")
		}
		w.expectChoice(claimed, "a")
		w.seeBound(inRevision(sent, "v2"), "node-a", "a")
		w.expectKeptIn("v2", "a=2 b=0")
	})
	t.Run("unless the spread counts all revisions together", func(t *testing.T) {
		w := newWorld(t, 10)
		w.spread(1, `{subsets: [{name: a, maxReplicas: 2}], scheduleStrategy: {whenFull: Wait, quotaScope: Workload}}`)
		pod := w.pod("p")
		d := w.ask(pod).Decision
		w.see(inRevision(pod, "v2"))
		w.expectAwake()
		w.expectKeptIn("", "a=1")
		if !w.reserve(pod, d) {
			t.Error("the decision does not hold any more")
		}
	})
}

func TestABindIsNotSentByTheQuotaOfAPreviousSpec(t *testing.T) {
	tests := map[string]func(w *world){
		"the subset has other nodes": func(w *world) {
			w.spread(2, `subsets: [{name: a, maxReplicas: 1, requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [b]}]}}, {name: b}]`)
		},
		"the subset has a smaller quota": func(w *world) { w.spread(2, `subsets: [{name: a, maxReplicas: 0}, {name: b}]`) },
		"the spread is invalid":          func(w *world) { w.spread(2, `subsets: [{name: a, maxReplicas: -1}]`) },
		"the spread is gone":             func(w *world) { w.spreadGone() },
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 4)
			w.spread(1, twoThenAny)
			pod := w.pod("p")
			d := w.ask(pod).Decision
			if !w.reserve(pod, d) {
				t.Fatal("reserve")
			}
			change(w) // while the pod waits for other plugins
			if w.startBind(pod, d) {
				t.Error("the bind is sent")
			}
			w.unreserve(pod)
		})
	}
	t.Run("nor by percentages of replicas of a while ago", func(t *testing.T) {
		w := newWorld(t, 4)
		w.spread(1, `{subsets: [{name: a, maxReplicas: "50%"}, {name: b}]}`)
		pods := w.podsNamed("p", 2)
		w.schedule(pods[0])
		d := w.ask(pods[1]).Decision
		if !w.reserve(pods[1], d) {
			t.Fatal("reserve")
		}
		w.scale(2) // which leaves one slot in a
		if w.startBind(pods[1], d) {
			t.Error("the bind is sent")
		}
		w.unreserve(pods[1])
		w.expectChoice(pods[1], "b")
	})
}

func TestTheSpreadOfTheNearestOwnerCountsWheneverItIsMade(t *testing.T) {
	const ofReplicaSet = `{subsets: [{name: near, maxReplicas: 1}], scheduleStrategy: {whenFull: Wait}}`
	w := newWorld(t, 4)
	w.spread(1, twoAndOneWait)
	bound, sent, claimed, waits := w.pod("bound"), w.pod("sent"), w.pod("claimed"), w.pod("waits")
	w.seeBound(bound, "node-a", "-")
	w.schedule(sent)
	w.expectChoice(claimed, "b")
	w.expectChoice(waits, "SubsetsFull")
	w.awake = nil
	w.spreadOf("near", 1, "ReplicaSet", "rs", ofReplicaSet)
	w.expectKept("a=0 b=0")
	w.expectAwake("claimed", "waits") // their answers came from another spread
	w.expectChoice(claimed, "SubsetsFull")
	// A new process counts in the same way.
	restarted := newWorld(t, 4)
	restarted.seeBound(bound, "node-a", "-")
	restarted.spreadOf("near", 1, "ReplicaSet", "rs", ofReplicaSet)
	restarted.spread(1, twoAndOneWait)
	restarted.expectKept("a=0 b=0")
	restarted.expectChoice(restarted.pod("waits"), "SubsetsFull")
	// When the nearer spread is deleted, the other spread counts again.
	w.awake = nil
	w.apply(SpreadGone{Key: nameOf(w.ledger.accounts[Workload{"ns", "apps", "ReplicaSet", "rs"}].active())})
	w.expectKept("a=2 b=0")
	w.expectAwake("claimed", "waits")
	w.seeBound(sent, "node-a", "a")
	w.expectKept("a=2 b=0")
}

func TestAPodThatIsNominatedToANodePrefersItsSubset(t *testing.T) {
	for _, strategy := range []string{"Fixed", "Adaptive"} {
		t.Run(strategy, func(t *testing.T) {
			w := newWorld(t, 4)
			w.spread(1, `subsets:
- {name: a, requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [a]}]}}
- {name: b, maxReplicas: 1, requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [b]}]}}
scheduleStrategy: {type: `+strategy+`}`)
			var pods []*corev1.Pod
			for _, node := range []string{"node-b", "node-b", "node-gone"} {
				pod := podOf("rs-uid", fmt.Sprintf("p%d", len(pods)))
				pod.Status.NominatedNodeName = node
				w.see(pod)
				pods = append(pods, pod)
			}
			w.expectChoice(pods[0], "b")
			w.expectChoice(pods[1], "a") // b is full
			w.expectChoice(pods[2], "a")
		})
	}
	t.Run("but one that no node of it fits goes on", func(t *testing.T) {
		w := newWorld(t, 4)
		w.spread(1, adaptive)
		pod := podOf("rs-uid", "p")
		pod.Status.NominatedNodeName = "node-b"
		w.see(pod)
		step, d := w.refuseIn(pod)
		if d.Name() != "b" || step != GoOn {
			t.Fatalf("got step %d in %s", step, d.Name())
		}
		w.expectChoice(pod, "a")
	})
}

func TestAPodWhoseNominatedNodeIsGoneIsTriedAgain(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, twoThenAny)
	pod := podOf("rs-uid", "p")
	pod.Status.NominatedNodeName = "node-b"
	w.see(pod)
	if step, d := w.refuseIn(pod); d.Name() != "b" || step != Preempt {
		t.Fatalf("got step %d in %s", step, d.Name())
	}
	w.awake = nil
	w.apply(NodeGone{Name: "node-b"})
	w.expectAwake("p")
	w.expectChoice(pod, "a")
}

func TestAnAuditFindsAMissedWakeUp(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, `{subsets: [{name: a, maxReplicas: 1}], scheduleStrategy: {whenFull: Wait}}`)
	holds, waits := w.pod("holds"), w.pod("waits")
	w.expectChoice(holds, "a")
	w.expectChoice(waits, "SubsetsFull")
	w.apply(Audit{})
	w.expectAwake()
	// This simulates a fault: the slot is released, but no pod is woken.
	e := w.ledger.pods[holds.UID]
	w.ledger.dequeue(e)
	e.stage = stageWaiting
	w.ledger.setSlots(e, "", nil)
	w.apply(Audit{})
	w.expectAwake("waits")
	if w.missed != 1 {
		t.Errorf("%d missed wake-ups, want 1", w.missed)
	}
}

const newsWorld = "news"

func TestTheOrderOfNewsDoesNotMatter(t *testing.T) { worlds.Check(t, newsWorld, 300, newsInAnyOrder) }

// newsInAnyOrder shows the same cluster in random orders. It shows each object several times, and some objects in an older version
// first. The ledger must end with the same counts.
func newsInAnyOrder(t rapid.TB, h *worlds.History) {
	w := emptyWorld(t)
	var news []func()
	say := func(f func()) { news = append(news, f) }
	say(func() { w.scale(6) })
	for _, rs := range []string{"one", "two"} {
		object := replicaSet(types.UID(rs + "-uid"))
		object.Name = rs
		say(func() { w.apply(OwnerSeen{Kind: replicaSetKind, Object: object}) })
		for i := range 3 {
			pod := podOf(object.UID, fmt.Sprintf("%s-%d", rs, i))
			pod.OwnerReferences[0].Name = rs
			bound := onNode(pod, "node-"+string("aba"[i]), []string{"a", "-", "a"}[i])
			last := inRevision(bound, []string{"v1", "v1", "v2"}[i])
			versions := []*corev1.Pod{pod, bound, last} // these always arrive in this order
			for range versions {
				say(func() {
					w.see(versions[0])
					versions = versions[1:]
				})
			}
		}
	}
	say(func() { w.spreadOf("web", 1, "Deployment", "web", twoThenAny) })
	say(func() { w.spreadOf("near", 1, "ReplicaSet", "two", twoThenAny) })
	h.Line()
	for len(news) > 0 {
		next := h.Number("next", len(news))
		news[next]()
		news = slices.Delete(news, next, next+1)
	}
	w.expectKeptIn("v1", "a=1 b=1")
	w.expectKeptIn("v2", "a=1 b=0")
	if near := w.ledger.accounts[Workload{"ns", "apps", "ReplicaSet", "two"}]; len(near.members) != 3 || near.tally.Kept("v1").At(0) != 1 {
		t.Errorf("the nearer spread has %d pods", len(near.members))
	}
	if w.ledger.Counts().stages[stageBound] != 6 {
		t.Errorf("counts %v", w.ledger.Counts())
	}
}

// TestEachRevisionFillsTheSubsetsForItself: however the controller of the workload names its revisions.
func TestEachRevisionFillsTheSubsetsForItself(t *testing.T) {
	for _, label := range []string{"pod-template-hash", "controller-revision-hash", "rollouts-pod-template-hash"} {
		t.Run(label, func(t *testing.T) {
			w := newWorld(t, 4)
			w.spread(1, `{subsets: [{name: a, maxReplicas: 2}, {name: b}]}`)
			for _, revision := range []string{"blue", "green"} {
				for i, want := range []string{"a", "a", "b"} {
					pod := w.pod(fmt.Sprint(revision, i))
					pod.Labels = map[string]string{label: revision}
					w.see(pod)
					d := w.schedule(pod)
					if d.Name() != want {
						t.Errorf("%s is in %q, want %q", pod.Name, d.Name(), want)
					}
					w.see(onNode(pod, "node-a", d.Name()))
				}
			}
		})
	}
}
