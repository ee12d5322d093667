package ledger

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// claimPick gives an unbound pod the slot of the subset that was picked for it when its gate was opened. It does nothing for any other pod.
//
// Such a pod requires the nodes of that subset for good. So it has its slot as soon as it is seen, as a bound pod does, and before any other pod asks:
// after a restart the next process would give the slot to another pod otherwise. The pod may then be above the quota, if another process gave its slot
// away before it saw the pick. NodeFound then refuses the pod.
func (l *Ledger) claimPick(e *entry) {
	a := e.account
	picked, _ := e.picked()
	if e.stage > stageClaimed || picked == subset.None || picked == e.index() {
		return
	}
	if !e.woken {
		l.dequeue(e)
	}
	e.stage = stageClaimed
	freed := l.setSlots(e, a.policy.Subsets[picked].Name, e.uncertain)
	e.tried, e.preempted, e.unbindable, e.lent, e.nominated, e.forGroup = 0, 0, 0, false, false, false
	l.wakeFor(a, e.scope, freed)
	l.crowd(e, e.holds())
}

// picked is the subset that was picked for a pod when its gate was opened, or subset.None. It is false if the pod may use any subset.
func (e *entry) picked() (index int, counts bool) {
	admitted := subset.AdmittedOf(e.pod)
	if admitted == nil || !admitted.Opened || e.policy() == nil {
		return subset.None, false
	}
	return e.policy().AdmittedTo(admitted, e.account.active().Name)
}

func (ev PodWaits) apply(l *Ledger) {
	e := l.pods[ev.UID]
	if e != nil && e.account != nil && e.stage == stageWaiting && e.wait == forAnyNode {
		if l.claimWaiting(e, l.waitsIn(e)); e.stage == stageClaimed {
			l.enqueue(e)
		}
	}
}

// claimWaiting gives a pod a slot of the subset in which it waits for a node. It does nothing for subset.None.
func (l *Ledger) claimWaiting(e *entry, in int) {
	if in != subset.None {
		l.dequeue(e)
		e.stage = stageClaimed
		l.setSlots(e, e.policy().Subsets[in].Name, e.uncertain)
		e.wait, e.stays = forNode, true
	}
}

// waitsIn is the subset with room in which a pod waits that none of them has a node for, or subset.None.
func (l *Ledger) waitsIn(e *entry) int {
	a, seen := e.account, subset.Mask(0)
	kept, candidate := a.tally.Kept(e.scope), l.candidate(e)
	var due []int
	for next := a.policy.Next(&a.plan, kept, candidate, seen); next != subset.None; next = a.policy.Next(&a.plan, kept, candidate, seen) {
		due, seen = append(due, next), seen.With(next)
	}
	return l.waitsAmong(e, due)
}

// waitsAmong is the subset in which a pod waits, of those that are due and have no node. It is the last one, because a pod whose gate is open cannot go on.
// If such pods are replaced after Adaptive.Wait, it is the first one in which none has waited in vain of late. It is subset.None if none is due.
func (l *Ledger) waitsAmong(e *entry, due []int) int {
	if e.policy().Adaptive.Wait > 0 && !workload.CountsDeletions(e.owner.kind()) {
		for _, in := range due {
			if in != subset.None && !l.now.Before(e.account.skipUntil[in]) {
				return in
			}
		}
	}
	return slices.Max(append(due, subset.None))
}

// skipAfter makes other pods skip the subset of a pod that ends and has waited there in vain for a node, with its gate open.
func (l *Ledger) skipAfter(e *entry) {
	if e.stage != stageClaimed || e.policy() == nil || !e.account.isAdaptive() {
		return
	}
	in, _ := e.picked()
	if in == subset.None || e.index() != in {
		return
	}
	adaptive := &e.policy().Adaptive
	if since := subset.AdmittedOf(e.pod).Since; adaptive.Wait > 0 && !since.IsZero() && !l.now.Before(since.Add(adaptive.Wait)) {
		e.account.skipUntil[in] = l.now.Add(adaptive.Skip)
	}
}

// WaitsForNode is the subset in which a pod waits for a node, or subset.None if it may use any node. It is nil if the pod waits for something else, and in
// the middle of a cycle, because the pod may still leave the subset. Divided is false if no spread divides the pod, so that it waits for a node wherever it
// may go.
func (l *Ledger) WaitsForNode(uid types.UID) (d *Decision, divided bool) {
	e := l.pods[uid]
	switch {
	case e == nil:
		return nil, false
	case e.account == nil:
		_, missing := l.resolve(e)
		return nil, missing != nil || l.isUnresolved(e)
	case e.stage != stageClaimed || e.wait != forNode || !e.stays || e.policy() == nil:
		return nil, true
	}
	return &Decision{Spread: e.account.active(), Policy: e.policy(), Subset: e.index(), Own: e.own}, true
}
