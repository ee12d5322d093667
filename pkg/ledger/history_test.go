package ledger

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/test/testkit/worlds"
)

// slotsWorld has a spread of three subsets with six slots. Events come twice, late or not at all. The test
// compares the tally with an independent recount. It also compares it with the binds that the API server may have done or may still do. If a pod
// waits for a slot, no such slot may be free.
const slotsWorld = "events twice, late or never"

func TestNoHistoryLosesOrInventsASlot(t *testing.T) { worlds.Check(t, slotsWorld, 1000, slotHistory) }

// slotSteps are what may happen, as often as they are there.
var slotSteps = slices.Concat(slices.Repeat([]string{"ask"}, 7), slices.Repeat([]string{"create"}, 6),
	[]string{"give back", "send", "refuse", "no answer", "a second passes for", "show", "delete", "edit", "another plugin refuses", "relabel", "audit"})

func slotHistory(t rapid.TB, h *worlds.History) {
	const late = `{subsets: [{name: a, maxReplicas: 2}, {name: b, maxReplicas: 3}, {name: c, maxReplicas: 1}], scheduleStrategy: {whenFull: Wait}}`
	const doubt = time.Second
	names, quota := []string{"a", "b", "c"}, []int32{2, 3, 1}
	w := newWorld(t, 10)
	spec, picks := late, []string{"anywhere"}
	if h.Pick("late", "early") == "early" {
		spec, picks = strings.Replace(late, "{whenFull", "{binding: Early, whenFull", 1), []string{"anywhere", "in none", "in a", "in b", "in c", "in c"}
	}
	updates := h.Yes("updates", 4) // updates in place may put a revision of a Deployment over its quota
	target := deploymentKind
	ofCloneSet := updates && h.Yes("of a CloneSet", 2)
	if ofCloneSet {
		target = schema.GroupKind{Group: v1beta1.GroupVersion.Group, Kind: "CloneSet"}
		w.apply(OwnerSeen{Kind: target, Object: &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "clone-uid"}}})
		rs := replicaSet("rs-uid")
		rs.OwnerReferences = []metav1.OwnerReference{{APIVersion: v1beta1.GroupVersion.String(), Kind: target.Kind, Name: "web", UID: "clone-uid", Controller: ptr.To(true)}}
		w.apply(OwnerSeen{Kind: replicaSetKind, Object: rs})
	}
	seeSpread := func(generation int64, spec string) {
		object := spreadObject(t, "web", generation, target.Kind, "web", spec)
		object.Spec.TargetReference.APIVersion = target.Group + "/v1"
		w.apply(SpreadSeen{Spread: object})
	}
	withoutA := strings.Replace(spec, "{name: a, maxReplicas: 2}, ", "", 1)
	generation := int64(1)
	seeSpread(generation, spec)
	var pods []*corev1.Pod
	decided := map[types.UID]*Decision{}
	shown := map[types.UID]bool{} // an event has shown the pod on its node
	told := map[types.UID]bool{}  // the last cycle of the pod found no slot
	// These are each pod's binds by subset: the one that was sent, those without an answer, and the one that has happened.
	sent, doubted, happened := map[types.UID]string{}, map[types.UID]map[string]bool{}, map[types.UID]string{}
	mayBeIn := func(pod *corev1.Pod, name string) bool {
		if in, isBound := happened[pod.UID]; isBound {
			return in == name
		}
		return sent[pod.UID] == name || doubted[pod.UID][name]
	}
	for step := range h.Steps(200) {
		kind := "create"
		if len(pods) > 0 {
			kind = h.Pick(slotSteps...)
		}
		if kind == "create" {
			if len(pods) < 16 {
				if name, in := fmt.Sprintf("p%d", step), h.Pick(picks...); in == "anywhere" {
					pods = append(pods, w.pod(name))
				} else {
					pods = append(pods, w.admitted(name, strings.TrimPrefix(strings.TrimPrefix(in, "in "), "none")))
				}
			}
			continue
		}
		i := 0
		if kind != "edit" && kind != "audit" {
			names := make([]string, len(pods))
			for i := range pods {
				names[i] = pods[i].Name
			}
			i = slices.Index(names, h.Pick(names...))
		}
		pod := pods[i]
		_, isBound := happened[pod.UID]
		switch kind {
		case "give back":
			w.unreserve(pod)
		case "send":
			if w.startBind(pod, decided[pod.UID]) {
				sent[pod.UID] = decided[pod.UID].Name()
			}
		case "refuse":
			w.bindRefused(pod)
			delete(sent, pod.UID)
		case "no answer":
			w.bindUncertain(pod, doubt)
			if in, out := sent[pod.UID]; out {
				delete(sent, pod.UID)
				if doubted[pod.UID] == nil {
					doubted[pod.UID] = map[string]bool{}
				}
				doubted[pod.UID][in] = true
			}
		case "a second passes for":
			w.step(doubt)
			if !isBound {
				w.bindSettled(pod, w.now)
				delete(doubted, pod.UID)
			}
		case "show":
			switch late := h.Yes("late", 2); {
			case isBound && late && !shown[pod.UID]:
				w.see(pod)
			case isBound:
				w.seeBound(pod, "node-a", happened[pod.UID])
				shown[pod.UID] = true
			default:
				for _, in := range names {
					if !mayBeIn(pod, in) {
						continue
					}
					if late && w.ledger.pods[pod.UID] != nil {
						w.apply(PodRead{Pod: onNode(pod, "node-a", in)}) // a read shows it before the event
					} else {
						w.seeBound(pod, "node-a", in)
						shown[pod.UID] = true
					}
					happened[pod.UID] = in
					break
				}
			}
		case "delete":
			w.delete(pod)
			pods = append(pods[:i], pods[i+1:]...)
		case "edit":
			generation++
			switch a := w.ledger.byName[spreadKey]; {
			case a == nil || a.policy == nil || len(a.policy.Subsets) < len(names):
				seeSpread(generation, map[string]string{"as it was": spec, "without a": withoutA}[h.Pick("as it was", "as it was", "without a")])
			case !h.Yes("really", 20): // so that some pods wait
			default:
				switch h.Pick("deleted", "without a", "broken") {
				case "deleted":
					w.spreadGone()
				case "without a":
					seeSpread(generation, withoutA)
				default:
					seeSpread(generation, `subsets: [{name: a, maxReplicas: -1}]`)
				}
			}
		case "another plugin refuses":
			w.apply(PodRefused{UID: pod.UID})
		case "relabel":
			if updates {
				pods[i] = inRevision(pod, h.Pick("v1", "v2"))
				if in, isBound := happened[pod.UID]; isBound && shown[pod.UID] {
					w.seeBound(pods[i], "node-a", in)
				} else if !isBound {
					w.see(pods[i])
				}
			}
		case "audit":
			before := len(w.awake)
			if w.apply(Audit{}); w.missed > 0 {
				t.Fatalf("step %d: an audit found %v, for whom an event had to wake them", step, w.awake[before:])
			}
		default:
			answer := w.ask(pod)
			told[pod.UID] = answer.Reason == v1beta1.ReasonSubsetsFull || answer.Reason == v1beta1.ReasonAdmittedSubsetFull
			if d := answer.Decision; d != nil && w.reserve(pod, d) {
				decided[pod.UID] = d
			}
		}
		a := w.ledger.byName[spreadKey]
		if a == nil || a.policy == nil || len(a.policy.Subsets) < len(names) {
			continue
		}
		counted := map[string][]int32{"": make([]int32, len(names)), "v1": make([]int32, len(names)), "v2": make([]int32, len(names))}
		for _, e := range w.ledger.pods {
			for i := range names {
				if e.holds().Has(i) {
					counted[e.scope][i]++
				}
			}
		}
		for i, name := range names {
			for scope, count := range counted {
				if got := a.tally.Kept(scope).At(i); got != count[i] || got > quota[i] && (ofCloneSet || !updates) {
					t.Fatalf("step %d: subset %s tallies %d of %s, holds %d, quota %d", step, name, got, scope, count[i], quota[i])
				}
			}
			for _, pod := range pods {
				if e := w.ledger.pods[pod.UID]; mayBeIn(pod, name) && (e == nil || !e.holds().Has(i)) {
					t.Fatalf("step %d: %s may be in %s, and its slot is free", step, pod.Name, name)
				}
			}
		}
		for _, pod := range pods {
			e := w.ledger.pods[pod.UID]
			if !told[pod.UID] || e.search == nil || e.list == nil || e.woken {
				continue
			}
			candidate, free, onTheirWay := w.ledger.candidate(e), 0, 0
			for _, other := range e.list.pods {
				if c := w.ledger.candidate(other); other.woken && (!candidate.Admitted || !c.Admitted || c.Within == candidate.Within) {
					onTheirWay++
				}
			}
			for i := range quota {
				if !candidate.Admitted || candidate.Within == i {
					free += max(int(quota[i]-counted[e.scope][i]), 0)
				}
			}
			if free > onTheirWay {
				t.Fatalf("step %d: %s waits for %d slots to which %d others are on their way", step, pod.Name, free, onTheirWay)
			}
		}
	}
	seeSpread(generation+1, spec)
	for _, pod := range pods {
		w.delete(pod)
	}
	a := w.ledger.byName[spreadKey]
	if len(w.ledger.pods) != 0 || len(a.members) != 0 || len(a.live) != 0 || !a.nobodyWaits() || len(a.tally.Scopes()) != 0 || w.ledger.Counts() != (podCounts{}) {
		t.Errorf("something is left of pods that are gone: %d pods, %d members, %v live, %d lines, scopes %v, counts %v",
			len(w.ledger.pods), len(a.members), a.live, len(a.waiting), a.tally.Scopes(), w.ledger.Counts())
	}
}
