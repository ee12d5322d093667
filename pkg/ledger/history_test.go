package ledger

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

var histories = flag.Uint("histories", 300, "how many random histories of a ledger to run")

// TestNoHistoryLosesOrInventsASlot runs random histories of all events of pods and their spread. Events come twice, late or not at all. The test
// compares the tally with an independent recount. It also compares it with the binds that the API server may have done or may still do. If a pod
// waits for a slot, no such slot may be free.
func TestNoHistoryLosesOrInventsASlot(t *testing.T) {
	const late = `{subsets: [{name: a, maxReplicas: 2}, {name: b, maxReplicas: 3}, {name: c, maxReplicas: 1}], scheduleStrategy: {whenFull: Wait}}`
	const doubt = time.Second
	names, quota := []string{"a", "b", "c"}, []int32{2, 3, 1}
	for seed := range uint64(*histories) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 2))
			w := newWorld(t, 10)
			spec, picks := late, []string{"any"}
			if seed%2 == 1 {
				spec, picks = strings.Replace(late, "{whenFull", "{binding: Early, whenFull", 1), []string{"any", "", "a", "b", "c", "c"}
			}
			updates := seed%4 == 3 // updates in place may put a revision over its quota
			withoutA := strings.Replace(spec, "{name: a, maxReplicas: 2}, ", "", 1)
			generation := int64(1)
			w.spread(generation, spec)
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
					w.unreserve(pod)
				case 1:
					if w.startBind(pod, decided[pod.UID]) {
						sent[pod.UID] = decided[pod.UID].Name()
					}
				case 2:
					w.bindRefused(pod)
					delete(sent, pod.UID)
				case 3:
					w.bindUncertain(pod, doubt)
					if in, out := sent[pod.UID]; out {
						delete(sent, pod.UID)
						if doubted[pod.UID] == nil {
							doubted[pod.UID] = map[string]bool{}
						}
						doubted[pod.UID][in] = true
					}
				case 4:
					w.step(doubt)
					if !isBound {
						w.bindSettled(pod, w.now)
						delete(doubted, pod.UID)
					}
				case 5:
					switch late := r.IntN(2) == 0; {
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
				case 6:
					w.delete(pod)
					pods = append(pods[:i], pods[i+1:]...)
				case 7:
					generation++
					switch a := w.ledger.byName[spreadKey]; {
					case a == nil || a.policy == nil || len(a.policy.Subsets) < len(names):
						w.spread(generation, []string{spec, spec, withoutA}[r.IntN(3)])
					case r.IntN(20) > 0: // so that some pods wait
					case r.IntN(3) == 0:
						w.spreadGone()
					case r.IntN(2) == 0:
						w.spread(generation, withoutA)
					default:
						w.spread(generation, `subsets: [{name: a, maxReplicas: -1}]`)
					}
				case 8:
					w.apply(PodRefused{UID: pod.UID})
				case 10:
					if updates {
						pods[i] = inRevision(pod, []string{"v1", "v2"}[r.IntN(2)])
						if in, isBound := happened[pod.UID]; isBound && shown[pod.UID] {
							w.seeBound(pods[i], "node-a", in)
						} else if !isBound {
							w.see(pods[i])
						}
					}
				case 9:
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
				counted := map[string][]int32{"v1": make([]int32, len(names)), "v2": make([]int32, len(names))}
				for _, e := range w.ledger.pods {
					for i := range names {
						if e.holds().Has(i) {
							counted[e.scope][i]++
						}
					}
				}
				for i, name := range names {
					for scope, count := range counted {
						if got := a.tally.Kept(scope).At(i); got != count[i] || got > quota[i] && !updates {
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
					if !told[pod.UID] || e.search == nil || e.place.list == nil {
						continue
					}
					candidate, free, onTheirWay := w.ledger.candidate(e), 0, e.place.list.woken
					for i, n := range e.place.list.wokenFor {
						onTheirWay -= n
						if !candidate.Admitted || candidate.Within == i {
							free += max(int(quota[i]-counted[e.scope][i])-n, 0)
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
			a := w.ledger.byName[spreadKey]
			if len(w.ledger.pods) != 0 || len(a.members) != 0 || len(a.live) != 0 || !a.nobodyWaits() || len(a.tally.Scopes()) != 0 || w.ledger.counts != (Counts{}) {
				t.Errorf("something is left of pods that are gone: %d pods, %d members, %v live, %d lines, scopes %v, counts %v",
					len(w.ledger.pods), len(a.members), a.live, len(a.waiting), a.tally.Scopes(), w.ledger.counts)
			}
		})
	}
}
