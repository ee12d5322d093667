package ledger

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
)

// together is a group of pods that wait until a subset has slots for them at once. Between two cycles such pods hold no slot, so no group keeps another
// one from completing.
type together struct {
	group   types.NamespacedName
	version string
	// needs is how many slots must be free.
	needs int32
	// with are the other pods of the group. The subset must be theirs.
	with []types.UID
}

// candidateFor is a pod as one of those that wait together.
func (l *Ledger) candidateFor(t *together, e *entry) subset.Candidate {
	c := l.candidate(e)
	c.Together, c.HasHome = t.needs, false
	if in := l.subsetOf(e, t.with); in != subset.None {
		c.Admitted, c.Within = true, in
	}
	return c
}

// together are the pods of the waitlist that wait together.
func (w *waitlist) together(t *together) (pods []*entry) {
	for _, e := range w.pods {
		if e.together == t {
			pods = append(pods, e)
		}
	}
	return pods
}

// wakeTogether wakes a pod, and those that wait together with it: the queue tries the pods of a group at once, or none of them.
func (l *Ledger) wakeTogether(e *entry) {
	if e.together == nil || e.list == nil {
		l.wake(e)
		return
	}
	for _, e := range e.list.together(e.together) {
		l.wake(e)
	}
}

func (ev GroupChanged) apply(l *Ledger) {
	for of, a := range l.accounts {
		if of.Namespace != ev.Group.Namespace {
			continue
		}
		for _, w := range a.waiting {
			for _, e := range slices.Clone(w.pods) {
				if e.together != nil && e.together.group == ev.Group {
					l.wake(e)
				}
			}
		}
	}
}

func (ev GroupAsks) apply(l *Ledger) {
	pods, t, answer := l.asGroup(&ev)
	if pods == nil {
		l.effects.Answer = answer
		return
	}
	first := pods[0]
	if answer.Reason == "" {
		for _, in := range l.places(pods, t) {
			l.effects.Places = append(l.effects.Places, first.decide(in))
		}
		answer = l.describe(first, v1beta1.ReasonSubsetsFull)
		answer.Message = fmt.Sprintf("no subset has room for the %d pods of the group %q that must run together. %s", t.needs, ev.Group.Name, answer.Describe(nil))
	}
	if len(l.effects.Places) > 0 {
		l.takeTurn(pods...)
		return
	}
	for _, e := range pods {
		l.startCycle(e)
		e.together = t
		l.answer(e, answer)
	}
}

func (ev GroupWaits) apply(l *Ledger) {
	asks := GroupAsks(ev)
	pods, t, refusal := l.asGroup(&asks)
	if refusal.Reason != "" || int(ev.AtLeast) > len(ev.Pods) {
		return // others have still to come
	}
	in, letGo := subset.None, false
	if pods != nil {
		places := l.places(pods, t)
		in, letGo = l.waitsAmong(pods[0], places), slices.Contains(places, subset.None)
	}
	for _, pod := range ev.Pods {
		e := l.pods[pod.UID]
		switch {
		case e == nil || e.policy() == nil || !subset.IsGated(e.pod) || e.stage > stageClaimed || e.forGroup:
		case letGo && e.index() == subset.None:
			l.dequeue(e)
			e.stage, e.wait, e.stays = stageClaimed, forNode, true
		case e.stage == stageClaimed && l.mayWaitIn(e, e.index()):
			e.wait, e.stays = forNode, true
		case e.stage == stageClaimed:
			l.release(e, false) // the quota was lowered
		case pods == nil && l.held(e).Reason == "":
			l.claimWaiting(e, l.waitsIn(e))
		case l.mayWaitIn(e, in):
			l.claimWaiting(e, in)
		}
	}
}

// mayWaitIn is true if a pod with a gate may wait for a node in this subset.
func (l *Ledger) mayWaitIn(e *entry, in int) bool {
	return in != subset.None && e.policy().HasRoom(&e.account.plan, e.account.tally.Kept(e.scope), in, l.candidate(e))
}

// places are the subsets that the pods may try together, in this order.
func (l *Ledger) places(pods []*entry, t *together) []int {
	first := pods[0]
	candidate := l.candidateFor(t, first)
	candidate.Together = int32(len(pods)) //nolint:gosec // a group has some hundred pods
	return first.policy().Places(&first.account.plan, first.account.tally.Kept(first.scope), candidate, t.needs)
}

// asGroup are the pods that want their slots in one subset, and a refusal if they must wait for news. A pod that has its slot stays there, and the others go to
// it. They are nil if each pod asks by itself, or if the refusal is not about their workload.
func (l *Ledger) asGroup(ev *GroupAsks) (pods []*entry, t *together, refusal Answer) {
	t = &together{group: ev.Group, version: ev.Version, needs: ev.AtLeast, with: slices.Clone(ev.With)}
	var all []*entry
	for _, pod := range ev.Pods {
		e := l.pods[pod.UID]
		if e == nil {
			return nil, nil, Answer{} // no spread divides it
		}
		if e.account == nil {
			return nil, nil, l.answerUndivided(e)
		}
		if len(all) > 0 && (e.account != all[0].account || e.scope != all[0].scope) {
			return nil, nil, Answer{}
		}
		all = append(all, e)
	}
	for _, e := range all {
		if e.stage > stageClaimed {
			return nil, nil, Answer{Reason: v1beta1.ReasonWorkloadNotObserved, Message: "a pod of the group is being bound already"}
		}
		if refusal = l.held(e); refusal.Reason != "" {
			return all, t, refusal
		}
		switch {
		case e.stage == stageClaimed && e.index() != subset.None:
			t.with, t.needs = append(t.with, e.pod.UID), max(t.needs-1, 1)
		case l.candidate(e).Admitted:
			return nil, nil, Answer{}
		default:
			pods = append(pods, e)
		}
	}
	if len(t.with) > len(ev.With) && l.subsetOf(all[0], t.with) == subset.None {
		return nil, nil, Answer{} // they have slots in several subsets
	}
	return pods, t, Answer{}
}

// subsetOf is the subset where all of these pods are that are in one. It is subset.None if there is none, or more than one.
func (l *Ledger) subsetOf(like *entry, pods []types.UID) int {
	in := subset.None
	for _, uid := range pods {
		e := l.pods[uid]
		if e == nil || e.account != like.account || e.scope != like.scope || e.index() == subset.None {
			continue
		}
		if in != subset.None && in != e.index() {
			return subset.None
		}
		in = e.index()
	}
	return in
}

// takeTurn begins a cycle in which the pods take no slot yet. So the slots that were meant for them are meant for others too.
func (l *Ledger) takeTurn(pods ...*entry) {
	woken := false
	for _, e := range pods {
		woken = woken || e.woken
		l.startCycle(e)
		l.unwake(e)
		l.dequeue(e)
		l.passProbe(e.search)
		e.together, e.wait = nil, forCycle
	}
	if woken {
		l.wakeNext(pods[0].account, pods[0].scope)
	}
}

// try is the answer to a pod of a group in a cycle that may be thrown away.
func (l *Ledger) try(e *entry, ev *PodAsks) {
	a, candidate := e.account, l.candidate(e)
	if e.stage == stageClaimed && e.index() != subset.None {
		candidate.Admitted, candidate.Within = true, e.index() // its gate is open there, or about to be
	} else if ev.Place != nil {
		if ev.Place.Policy != a.policy {
			l.effects.Answer = Answer{Reason: v1beta1.ReasonWorkloadNotObserved, Message: "the WorkloadSpread changed while the group was being scheduled"}
			return
		}
		candidate.Admitted, candidate.Within = true, ev.Place.Subset
	}
	e.asked = e.position()
	_, closed, check := l.checkSubsets(e, candidate, &ev.Results)
	if check != nil {
		l.effects.Check = check
		return
	}
	l.takeTurn(e)
	candidate.Closed = closed
	verdict := a.policy.Admit(&a.plan, a.tally.Kept(e.scope), candidate)
	if !verdict.Allowed() {
		if ev.Place != nil {
			verdict.Reason = v1beta1.ReasonSubsetsFull
		}
		l.effects.Answer = l.describe(e, verdict.Reason)
		return
	}
	d := e.decide(verdict.Subset)
	d.tries, d.lent = true, verdict.Lent
	l.effects.Answer = Answer{Decision: d}
}

// claimFor gives a pod the slot of a decision that it has tried, if there is still room.
func (l *Ledger) claimFor(e *entry, d *Decision) bool {
	if e.stage != stageWaiting || e.policy() == nil || e.policy() != d.Policy {
		return e.stage == stageClaimed && e.policy() == d.Policy && e.index() == d.Subset // picked for it before
	}
	a, candidate := e.account, l.candidate(e)
	candidate.Lent = d.lent
	if d.Subset != subset.None && !a.policy.HasRoom(&a.plan, a.tally.Kept(e.scope), d.Subset, candidate) {
		return false
	}
	woken := e.woken
	l.unwake(e)
	l.dequeue(e)
	e.stage, e.wait, e.lent, e.forGroup = stageClaimed, forCycle, d.lent, true
	l.setSlots(e, d.Name(), e.uncertain)
	if woken { // in the middle of the cycle
		l.wakeNext(a, e.scope)
	}
	return true
}

func (ev SlotTried) apply(l *Ledger) {
	e := l.pods[ev.UID]
	l.effects.OK = e != nil && l.claimFor(e, ev.Decision)
}

func (ev SlotReturned) apply(l *Ledger) {
	e := l.pods[ev.UID]
	if e == nil || e.stage != stageClaimed || !e.forGroup || e.account == nil {
		return
	}
	woken := e.woken
	l.unwake(e)
	l.release(e, true)
	if woken { // in the middle of the cycle
		l.wake(e)
	}
}
