package ledger

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/pkg/subset"
)

// claimPick gives an unbound pod the slot of the subset that was picked for it when its gate was opened. It does nothing for any other pod.
//
// Such a pod requires the nodes of that subset for good. So it has its slot as soon as it is seen, as a bound pod does, and before any other pod asks:
// after a restart the next process would give the slot to another pod otherwise. The pod may then be above the quota, if another process gave its slot
// away before it saw the pick. NodeFound then refuses the pod.
func (l *Ledger) claimPick(e *entry) {
	a := e.account
	picked, counts := e.picked()
	if e.stage > Claimed || !counts {
		return
	}
	if e.gang != nil {
		l.leaveGang(e)
		l.wakeNext(a, e.scope)
	}
	if picked == subset.None || picked == e.index() {
		return
	}
	l.dequeue(e)
	l.setStage(e, Claimed)
	freed := l.setSlots(e, a.policy.Subsets[picked].Name, e.uncertain)
	e.tried, e.preempted, e.lent, e.nominated, e.since = 0, 0, false, false, nil
	l.wakeNext(a, e.scope)
	l.wakeExhausted(a, e.scope, freed)
	if quota := a.plan.Quota[picked]; quota == subset.NoLimit || a.tally.Kept(e.scope).At(picked) <= quota {
		return
	}
	for _, other := range a.members { // one of them has no slot any more
		if other != e && other.stage == Claimed && other.scope == e.scope && other.slot == e.slot {
			l.wake(other)
		}
	}
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
	if e == nil || e.account == nil || e.stage != Waiting || e.wait != ForAnyNode || e.gang != nil {
		return
	}
	a := e.account
	kept, candidate := a.tally.Kept(e.scope), l.candidate(e)
	for i := len(a.policy.Subsets) - 1; i >= 0; i-- {
		if !a.policy.HasRoom(&a.plan, kept, i, candidate) {
			continue
		}
		l.dequeue(e)
		l.setStage(e, Claimed)
		l.setSlots(e, a.policy.Subsets[i].Name, e.uncertain)
		e.wait, e.stays = ForNode, true
		l.enqueue(e)
		return
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
	case e.stage != Claimed || e.wait != ForNode || !e.stays || e.policy() == nil:
		return nil, true
	}
	return &Decision{Spread: e.account.active(), Policy: e.policy(), Subset: e.index(), Own: e.own}, true
}
