package ledger

import (
	"slices"
	"time"

	"github.com/berth-project/berth/pkg/subset"
)

func (ev NodeFound) apply(l *Ledger) {
	e, d := l.pods[ev.UID], ev.Decision
	if e == nil || d.tries && !l.claimFor(e, d) || e.stage != stageClaimed || !l.stillHolds(e, d) {
		return
	}
	a := e.account
	e.stage = stageReserved
	d.Ordinal = a.tally.Kept(e.scope).At(d.Subset)
	wasWoken := e.woken
	l.unwake(e)
	l.dequeue(e)
	e.nominated = false
	if wasWoken {
		l.wakeNext(a, e.scope) // it was woken in the middle of this cycle, and takes no other slot
	}
	l.passProbe(e.search)
	l.wakeUnplaced(a, e.scope, e.holds())
	a.announced = a.announced && !a.nobodyWaits()
	l.effects.OK = true
}

// stillHolds is true if the pod may still take its decision's subset: the spread has not changed, and the quota has room for the pod.
func (l *Ledger) stillHolds(e *entry, d *Decision) bool {
	if e.policy() != d.Policy || d.Policy == nil || e.index() != d.Subset {
		return false
	}
	return d.Subset == subset.None || d.Policy.HasRoom(&e.account.plan, e.account.tally.Kept(e.scope), d.Subset, l.candidate(e))
}

func (ev NodeLost) apply(l *Ledger) {
	e := l.pods[ev.UID]
	if e != nil && e.stage == stageReserved {
		l.nodeFailed(e)
	}
}

// A pod of strategy Adaptive goes on to the next subset if it has lost the nodes that it found in one, so often and for so long. A zone may have no storage left, or a policy may
// refuse its binds. While the API server is down for a moment, the pod stays.
const (
	mostFailures  = 3
	failingPeriod = 30 * time.Second
)

// nodeFailed is for a pod that cannot be bound to the node that it has found. The scheduler tries it again by itself.
func (l *Ledger) nodeFailed(e *entry) {
	if e.forGroup && e.account != nil {
		l.release(e, false)
		e.wait = forCycle
		return
	}
	l.claimAgain(e)
	if e.stage != stageClaimed || e.index() == subset.None || l.isFixed(e) {
		return
	}
	if e.failing.in != e.slot {
		e.failing = failing{in: e.slot, since: l.now}
	}
	if e.failing.times++; e.failing.times < mostFailures || l.now.Before(e.failing.since.Add(failingPeriod)) {
		return
	}
	e.failing = failing{}
	in := e.index()
	e.tried, e.unbindable = e.tried.With(in), e.unbindable.With(in)
	l.release(e, false)
	e.wait = forNextSubset
	l.wake(e)
}

// claimAgain returns a pod to its claim, if its account still has the subset. The scheduler tries the pod again by itself.
func (l *Ledger) claimAgain(e *entry) {
	if e.account == nil || e.slot != "" && e.index() == subset.None {
		l.setSlots(e, "", e.uncertain)
		e.stage = stageWaiting
		return
	}
	e.stage = stageClaimed
	e.wait = forCycle
	l.enqueue(e)
	l.wakeNext(e.account, e.scope) // a slot of an earlier subset may be free by now
	l.claimPick(e)                 // its gate may have been opened elsewhere
}

// Between NodeFound and BindSent the pod may have waited for other plugins, and its spread may have changed.
func (ev BindSent) apply(l *Ledger) {
	if e := l.pods[ev.UID]; e != nil && e.stage == stageReserved && l.stillHolds(e, ev.Decision) {
		e.stage = stageBinding
		l.effects.OK = true
	}
}

func (ev BindRefused) apply(l *Ledger) {
	if e := l.pods[ev.UID]; e != nil && e.stage == stageBinding {
		l.nodeFailed(e)
	}
}

func (ev BindUnknown) apply(l *Ledger) {
	e := l.pods[ev.UID]
	if e == nil || e.stage != stageBinding {
		return
	}
	uncertain := e.uncertain
	if e.slot != "" {
		uncertain = append(slices.Clone(uncertain), uncertainBind{e.slot, ev.Until})
	}
	e.stage = stageWaiting
	l.setSlots(e, "", uncertain)
	e.wait = forCycle // the scheduler tries it again after an error
	l.claimPick(e)    // it keeps this slot even if it is not bound
}

func (ev BindDisproved) apply(l *Ledger) {
	e := l.pods[ev.UID]
	if e == nil || e.stage == stageBound || len(e.uncertain) == 0 {
		return
	}
	rest := slices.DeleteFunc(slices.Clone(e.uncertain), func(d uncertainBind) bool { return !ev.ReadAt.Before(d.until) })
	freed := l.setSlots(e, e.slot, rest)
	if e.account != nil {
		l.wakeFor(e.account, e.scope, freed)
	}
}
