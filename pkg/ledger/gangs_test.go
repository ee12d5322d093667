package ledger

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

// gangOf creates pending pods of one pod group.
func (w *world) gangOf(group string, n int) []*corev1.Pod {
	pods := make([]*corev1.Pod, n)
	for i := range pods {
		pods[i] = podOf("rs-uid", fmt.Sprintf("%s%d", group, i))
		pods[i].Labels[v1beta1.PodGroupLabel] = group
		w.see(pods[i])
	}
	return pods
}

func TestAPodGroupIsNotDivided(t *testing.T) {
	const fiveAndEight = `{subsets: [{name: a, maxReplicas: 5}, {name: b, maxReplicas: 8}], scheduleStrategy: {whenFull: Wait}}`
	t.Run("it goes where there is quota for all of it", func(t *testing.T) {
		w := newWorld(t, 20)
		w.spread(1, fiveAndEight)
		pods := w.gangOf("g", 8)
		w.expectChoice(pods[3], "b")
		w.expectKept("a=0 b=8") // the first pod claims slots for all
		for _, pod := range pods {
			w.schedule(pod)
		}
		w.expectKept("a=0 b=8")
		w.expectChoice(w.pod("single"), "a")
		// A pod that replaces one pod of the gang goes to the same subset.
		w.delete(pods[0])
		late := w.gangOf("late", 1)[0]
		w.delete(late)
		again := podOf("rs-uid", "again")
		again.Labels[v1beta1.PodGroupLabel] = "g"
		w.see(again)
		w.expectChoice(again, "b")
	})
	t.Run("it waits until there is", func(t *testing.T) {
		w := newWorld(t, 20)
		w.spread(1, fiveAndEight)
		single := w.podsNamed("single", 6)
		for _, pod := range single {
			w.schedule(pod)
		}
		w.expectKept("a=5 b=1")
		pods := w.gangOf("g", 8)
		for _, pod := range pods {
			w.expectChoice(pod, "SubsetsFull")
		}
		w.awake = nil
		w.delete(single[0])
		w.expectAwake() // four slots of a and seven of b are free, but neither is enough
		w.expectKept("a=4 b=1")
		w.delete(single[5])
		w.expectAwake("g0", "g1", "g2", "g3", "g4", "g5", "g6", "g7")
		w.expectChoice(pods[5], "b")
		w.expectKept("a=4 b=8")
	})
	t.Run("two do not divide a subset between them", func(t *testing.T) {
		w := newWorld(t, 20)
		w.spread(1, `{subsets: [{name: a, maxReplicas: 4}], scheduleStrategy: {whenFull: Wait}}`)
		first, second := w.gangOf("first", 3), w.gangOf("second", 3)
		w.expectChoice(first[0], "a")
		w.expectChoice(second[0], "SubsetsFull")
		w.expectChoice(first[1], "a")
		w.expectChoice(second[1], "SubsetsFull")
		w.expectKept("a=3")
		w.awake = nil
		for _, pod := range first {
			w.delete(pod)
		}
		w.expectAwake("second0", "second1")
		w.expectChoice(second[2], "a")
		w.expectKept("a=3")
	})
	t.Run("unless the spread says so", func(t *testing.T) {
		w := newWorld(t, 20)
		w.spread(1, strings.Replace(fiveAndEight, "{whenFull", "{podGroups: Divided, whenFull", 1))
		for i, pod := range w.gangOf("g", 8) {
			w.expectChoice(pod, string("aaaaabbb"[i]))
		}
	})
	t.Run("nor let go in part", func(t *testing.T) {
		w := newWorld(t, 20)
		w.spread(1, `{subsets: [{name: a, maxReplicas: 2}]}`)
		pods := w.gangOf("g", 3)
		w.expectChoice(pods[0], "-")
		w.delete(pods[2]) // now two pods would fit
		w.expectChoice(pods[1], "-")
		held := w.gangOf("held", 2)
		w.expectChoice(held[0], "a")
		third := podOf("rs-uid", "third")
		third.Labels[v1beta1.PodGroupLabel] = "held"
		w.see(third)
		w.expectChoice(third, "SubsetsFull")
	})
	t.Run("and the claims of one that cannot complete are given back", func(t *testing.T) {
		w := newWorld(t, 20)
		w.spread(1, fiveAndEight)
		pods := w.gangOf("g", 8)
		var found []*Decision
		for _, pod := range pods[:5] {
			d := w.ask(pod).Decision
			if !w.reserve(pod, d) {
				t.Fatal("reserve")
			}
			found = append(found, d)
		}
		w.expectKept("a=0 b=8")
		// The other three pods find no node, and the timeout of the first five ends.
		for _, pod := range pods[5:] {
			if step := w.refuse(pod); step != Preempt {
				t.Fatalf("got step %d", step)
			}
		}
		w.awake = nil
		for _, pod := range pods[:5] {
			w.unreserve(pod)
		}
		w.expectKept("a=0 b=0")
		if w.reserve(pods[0], found[0]) {
			t.Error("reserved by a decision of a claim that was given back")
		}
		// Pods that wait for the slots come first, whatever changes on the nodes.
		w.expectAwake()
		w.expectChoice(pods[6], "NoNodeFits")
		w.expectKept("a=0 b=0")
		w.step(time.Second)
		w.expectAwake("g0", "g1", "g2", "g3", "g4", "g5", "g6", "g7")
		w.expectChoice(w.pod("single"), "a")
		w.expectChoice(pods[0], "b")
	})
	t.Run("with strategy Adaptive all go on together", func(t *testing.T) {
		w := newWorld(t, 20)
		w.spread(1, adaptive)
		pods := w.gangOf("g", 3)
		d := w.ask(pods[0]).Decision
		w.expectKept("a=3 b=0")
		if !w.reserve(pods[0], d) {
			t.Fatal("reserve")
		}
		if step := w.refuse(pods[1]); step != Stay {
			t.Fatalf("got step %d while another has its node, want to stay", step)
		}
		w.awake = nil
		w.unreserve(pods[0]) // the timeout of its group
		w.expectAwake("g0", "g1", "g2")
		w.expectKept("a=0 b=0")
		if step, d := w.refuseIn(pods[2]); step != GoOn || d.Name() != "b" {
			t.Fatalf("got step %d in %s, want to go on from b", step, d.Name())
		}
		w.expectKept("a=0 b=0")
		w.expectChoice(pods[2], "NoNodeFits")
	})
	t.Run("also if no filter had to say that a subset is full", func(t *testing.T) {
		w := newWorld(t, 20)
		w.spread(1, adaptive)
		pods := []*corev1.Pod{w.important("g0"), w.important("g1"), w.important("g2")}
		for _, pod := range pods {
			pod.Labels[v1beta1.PodGroupLabel] = "g"
			w.see(pod)
		}
		if !w.reserve(pods[0], w.ask(pods[0]).Decision) {
			t.Fatal("reserve")
		}
		results := []CheckResult{Infeasible, Feasible}
		w.result = func(check *NodeCheck) CheckResult { return results[check.Subset] }
		w.expectChoice(pods[1], "NoNodeFits") // it preempts no pod, because another subset is left to try
		w.awake = nil
		w.unreserve(pods[0])
		w.expectAwake("g0", "g1", "g2")
		w.expectKept("a=0 b=0")
		results[0] = FeasibleAgain // because its own pods have released their nodes
		w.expectChoice(pods[2], "b")
		w.expectKept("a=0 b=3")
		// In the last subset it may preempt.
		if !w.reserve(pods[0], w.ask(pods[0]).Decision) {
			t.Fatal("reserve")
		}
		results = []CheckResult{Infeasible, Infeasible}
		w.preempt(pods[1], false)
	})
	t.Run("and whoever has found their slots taken is tried when they give them back", func(t *testing.T) {
		w := newWorld(t, 20)
		w.spread(1, strings.Replace(adaptive, "{name: a,", "{name: a, maxReplicas: 3,", 1))
		pods := w.gangOf("g", 3)
		if !w.reserve(pods[0], w.ask(pods[0]).Decision) {
			t.Fatal("reserve")
		}
		single := w.pod("single")
		w.exhaust(single, "b")
		w.awake = nil
		w.unreserve(pods[0])
		w.expectAwake("single")
	})
}

func TestAPodGroupIsTriedAgainWhereItsNewMemberRuns(t *testing.T) {
	for name, arrives := range map[string]func(w *world, member *corev1.Pod){
		"it comes from another revision": func(w *world, member *corev1.Pod) {
			member.Labels["pod-template-hash"] = "v2"
			w.seeBound(member, "node-a", "a")
			w.awake = nil
			member.Labels["pod-template-hash"] = "v1"
			w.seeBound(member, "node-a", "a")
		},
		"another scheduler has bound it": func(w *world, member *corev1.Pod) {
			w.see(member)
			w.awake = nil
			w.seeBound(member, "node-a", "-")
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 4)
			w.spread(1, adaptive)
			pod := w.gangOf("g", 1)[0]
			w.exhaust(pod, "a", "b")
			member := podOf("rs-uid", "member")
			member.Labels[v1beta1.PodGroupLabel] = "g"
			arrives(w, member)
			w.expectAwake("g0")
			w.expectChoice(pod, "a")
		})
	}
}

func TestAPodWithANodeThatLeavesItsGroupWaitsForNothing(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, twoAndOneWait)
	singles := w.podsNamed("single", 2)
	for _, pod := range singles {
		w.expectChoice(pod, "a")
	}
	pod := w.gangOf("g", 1)[0]
	if d := w.ask(pod).Decision; d.Name() != "b" || !w.reserve(pod, d) {
		t.Fatalf("it got no node in b, but %s", d.Name())
	}
	alone := pod.DeepCopy()
	delete(alone.Labels, v1beta1.PodGroupLabel)
	w.see(alone)
	w.delete(singles[0])
	if w.apply(Audit{}); w.missed > 0 {
		t.Errorf("the free slot is for a pod that waits, and %d were found", w.missed)
	}
}
