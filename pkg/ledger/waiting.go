package ledger

import (
	"cmp"
	"slices"
	"time"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
)

// waitlist holds the pods of a quota scope that would take a slot that comes free, and those that were woken; or the exhausted pods of one class. The pod that
// came first is served first.
type waitlist struct {
	account *account
	class   podClass
	// pods in the order in which they came.
	pods []*entry

	// exhausted is true for a waitlist of exhausted pods. probes is how many of them have left it to be tried.
	exhausted bool
	probes    int
	// backoff is how long the waitlist waited before its last retry without an event. retryAt is when the next retry is due.
	backoff time.Duration
	retryAt time.Time
}

// podClass is what exhausted pods have in common if one of them finds room where another does. The waitlist of a scope has neither shape nor rules.
type podClass struct{ scope, shape, rules string }

func byOrder(a, b *entry) int { return cmp.Compare(a.order, b.order) }

func (w *waitlist) add(e *entry) {
	at, _ := slices.BinarySearchFunc(w.pods, e, byOrder)
	w.pods, e.list = slices.Insert(w.pods, at, e), w
}

// line is the waitlist of a quota scope.
func (a *account) line(scope string) *waitlist {
	w := a.waiting[scope]
	if w == nil {
		w = &waitlist{account: a, class: podClass{scope: scope}}
		a.waiting[scope] = w
	}
	return w
}

// enqueue puts a claimed or waiting pod into its waitlist. It does nothing for a pod that is in one, or to which no other slot is of use.
func (l *Ledger) enqueue(e *entry) {
	a := e.account
	if e.list != nil || a == nil || a.policy == nil || e.wait == forNews {
		return
	}
	if e.wait != forAnyNode {
		if !l.isContent(e) {
			a.line(e.scope).add(e)
		}
		return
	}
	k := e.class()
	w := a.exhausted[k]
	if w == nil {
		w = &waitlist{account: a, class: k, exhausted: true}
		a.exhausted[k] = w
	}
	w.add(e)
	e.endProbe()
}

// isContent is true for a pod that would take no other slot: an early-bound pod that has its claim or was let go, a pod that is nominated to a node where it has its claim, and a
// pod of a StatefulSet at home.
func (l *Ledger) isContent(e *entry) bool {
	a, claim := e.account, e.index()
	if within, early := a.policy.AdmittedTo(subset.AdmittedOf(e.pod), a.active().Name); early {
		return claim != subset.None || within == subset.None
	}
	if claim != subset.None && l.nominatedTo(e).Has(claim) {
		return true // it would be woken for an earlier slot again and again
	}
	home, known := a.policy.SubsetAt(&a.plan, e.position())
	if known && home == subset.None {
		return claim != subset.None || a.policy.WhenFull == v1beta1.WhenFullSchedule
	}
	return known && home == claim
}

// dequeue removes a pod from its waitlist, if it is in one.
func (l *Ledger) dequeue(e *entry) {
	if w := e.list; w != nil {
		at, _ := slices.BinarySearchFunc(w.pods, e, byOrder)
		w.pods, e.list = slices.Delete(w.pods, at, at+1), nil
		w.forgetIfEmpty()
	}
}

// forgetIfEmpty drops a waitlist without pods, so that old revisions leave nothing behind.
func (w *waitlist) forgetIfEmpty() {
	if len(w.pods) > 0 || w.probes > 0 {
		return
	}
	switch a := w.account; {
	case !w.exhausted && a.waiting[w.class.scope] == w:
		delete(a.waiting, w.class.scope)
	case w.exhausted && a.exhausted[w.class] == w:
		delete(a.exhausted, w.class)
	}
}

// wake has the pod tried soon. Until its cycle a slot is kept for it, if there is one that it would take.
func (l *Ledger) wake(e *entry) {
	if e.stage > stageClaimed {
		return
	}
	l.endWaitForNews(e)
	l.startProbe(e)
	if a := e.account; a != nil && a.policy != nil {
		e.woken = true
		if e.list == nil {
			a.line(e.scope).add(e)
		}
	}
	if e.wait != forNextSubset {
		e.wait = forCycle
	}
	l.effects.Wake = append(l.effects.Wake, e.pod)
}

// unwake records that a woken pod has its cycle, or that no slot is meant for it any more.
func (l *Ledger) unwake(e *entry) {
	e.overdue = false
	if e.woken {
		e.woken = false
		l.dequeue(e)
	}
}

// wakeFirst wakes the pod of a waitlist of exhausted pods that has waited longest.
func (l *Ledger) wakeFirst(w *waitlist) {
	if len(w.pods) > 0 {
		l.wake(w.pods[0])
	}
}

// startProbe removes an exhausted pod from its waitlist. It is tried for all pods of its class.
func (l *Ledger) startProbe(e *entry) {
	if w := e.list; w != nil && w.exhausted {
		w.probes++
		e.probeOf = w
		l.dequeue(e)
	}
}

// endProbe ends the probe. The pod has found no room, so no other pod is tried.
func (s *search) endProbe() {
	if w := s.probeOf; w != nil {
		s.probeOf = nil
		w.probes--
		w.forgetIfEmpty()
	}
}

// passProbe has the next pod of a waitlist tried after a probe. If the probe found room, there may be more room; if it never had its cycle, the next
// pod takes its turn.
func (l *Ledger) passProbe(s *search) {
	if s != nil && s.probeOf != nil {
		l.wakeFirst(s.probeOf)
		s.endProbe()
	}
}

// wakeNext wakes the pods that wait for free slots: the oldest first, and no more than there are slots. Each pod in front, also one that was woken before and has had no cycle yet,
// keeps the slot that it would take. It returns how many pods it woke.
//
// With strategy Adaptive a pod that has a claim in a later subset does not need a free slot: it skipped the earlier subset because no node fit. It is
// woken when a pod leaves that subset; see wakeBehind. With shares or minimums the pod is where it belongs, and the slot is for the pod that the workload
// makes in place of the one that ended.
func (l *Ledger) wakeNext(a *account, scope string) (woken int) {
	w := a.waiting[scope]
	if w == nil || a.policy == nil || len(a.spreads) == 0 { // without spreads the account is being dropped, and that wakes all of its pods
		return 0
	}
	kept, free := make(subset.Counts, len(a.plan.Quota)), int32(0)
	copy(kept, a.tally.Kept(scope))
	for i, quota := range a.plan.Quota {
		free += max(subset.Free(quota, kept[i]), 0) // no pod waits for a slot of a subset without limit
	}
	var seen []*together
	for i, e := range w.pods {
		if free <= 0 {
			break
		}
		needs, pods := int32(1), w.pods[i:i+1]
		if e.together != nil {
			if slices.Contains(seen, e.together) {
				continue
			}
			seen = append(seen, e.together)
			needs, pods = e.together.needs, w.together(e.together)
		}
		to := l.wouldTake(e, kept)
		if to == subset.None {
			continue
		}
		kept[to] += needs
		if a.plan.Quota[to] != subset.NoLimit {
			free -= needs
		}
		for _, e := range pods {
			if !e.woken {
				l.wake(e)
				woken++
			}
		}
	}
	return woken
}

// wouldTake is the subset of which a pod takes a slot if it is tried, or subset.None if it stays where it is.
func (l *Ledger) wouldTake(e *entry, kept subset.Counts) int {
	a, claim := e.account, e.index()
	if claim != subset.None && !e.woken && a.isAdaptive() {
		return subset.None
	}
	c := l.candidate(e)
	if e.together != nil {
		c = l.candidateFor(e.together, e)
	}
	if claim != subset.None && !e.woken && a.policy.IsRanked() && !c.HasHome {
		return subset.None
	}
	if to := a.policy.Admit(&a.plan, kept, c).Subset; to != claim {
		return to
	}
	return subset.None
}

func (a *account) isAdaptive() bool { return a.policy.Strategy == v1beta1.AdaptiveScheduleStrategy }

// wakeBehind wakes the oldest pod of strategy Adaptive that may go to a subset that a pod has left: it has a claim in a later one.
func (l *Ledger) wakeBehind(a *account, scope string, left subset.Mask) {
	w := a.waiting[scope]
	if w == nil || a.policy == nil || !a.isAdaptive() || len(a.spreads) == 0 {
		return
	}
	to, kept := left.First(), a.tally.Kept(scope)
	for _, e := range w.pods {
		c, claim := l.candidate(e), e.index()
		// With shares or minimums the pod may have skipped the subset for one in front of it.
		behind := claim == subset.None || claim > to || a.policy.IsRanked() && claim != to
		if c.HasHome {
			behind = a.policy.Next(&a.plan, kept, c, ^subset.Mask(0).With(to).With(claim)) == to
		}
		if !e.woken && behind && e.together == nil && (!c.Admitted || c.Within == to) && a.policy.HasRoom(&a.plan, kept, to, c) {
			l.wake(e)
			return
		}
	}
}

// wakeFor wakes pods of a scope after slots of these subsets came free: those that wait for one, and exhausted pods, which may have found them taken.
func (l *Ledger) wakeFor(a *account, scope string, freed subset.Mask) {
	l.wakeNext(a, scope)
	if freed != 0 {
		l.wakeOfEachClass(a, scope)
	}
}

// wakeUnplaced wakes exhausted pods of a scope after the last slots were taken for good. They are then let go, or wait for a slot and no longer for a
// node, and their messages should say so. Claims do not count: a pod with a claim may find no node either.
func (l *Ledger) wakeUnplaced(a *account, scope string, taken subset.Mask) {
	if taken == 0 || len(a.exhausted) == 0 {
		return
	}
	if a.policy.Admit(&a.plan, a.tally.Kept(scope), subset.Candidate{}).Reason != v1beta1.ReasonAdmitted {
		l.wakeOfEachClass(a, scope)
	}
}

// crowd wakes the pods that have a claim where a pod has taken a slot above the quota: one of them has no slot any more. Another process, or another scheduler, has put the pod there.
func (l *Ledger) crowd(e *entry, taken subset.Mask) {
	a := e.account
	for i := range a.plan.Quota {
		if quota := a.plan.Quota[i]; !taken.Has(i) || quota == subset.NoLimit || a.tally.Kept(e.scope).At(i) <= quota {
			continue
		}
		for _, other := range a.members {
			if other != e && other.stage == stageClaimed && other.scope == e.scope && other.index() == i {
				l.wake(other)
			}
		}
	}
}

// wakeOfEachClass wakes the pod that has waited longest in each class of exhausted pods of a scope. If it finds a node, the next of its class is
// woken.
func (l *Ledger) wakeOfEachClass(a *account, scope string) {
	for k, w := range a.exhausted {
		if k.scope == scope {
			l.wakeFirst(w)
		}
	}
}

func (ev PodRefused) apply(l *Ledger) {
	if e := l.pods[ev.UID]; e != nil && e.isOnItsWay() {
		l.passTurn(e)
	}
}

// isOnItsWay is true if a slot is meant for the pod in its next cycle, or if the pod is a probe of its class.
func (e *entry) isOnItsWay() bool {
	return e.search != nil && e.account != nil && (e.woken || e.probeOf != nil && e.stage == stageWaiting && e.list == nil)
}

// passTurn gives the turn of a pod to the next pod. The pod joins no waitlist before it has asked for a subset again: otherwise it would be woken
// first for the next slot as well. Whatever keeps it from asking wakes it when that ends.
func (l *Ledger) passTurn(e *entry) {
	wasWoken := e.woken
	l.unwake(e)
	if e.wait == forNextSubset {
		e.wait = forCycle
	}
	if wasWoken {
		l.wakeNext(e.account, e.scope)
	}
	l.passProbe(e.search)
}

func (ev ClusterChanged) apply(l *Ledger) {
	e := l.pods[ev.UID]
	if e == nil || e.search == nil || e.policy() == nil || e.wait != forAnyNode && e.probeOf == nil {
		return
	}
	if l.change != ev.Change {
		l.change = ev.Change
		clear(l.served)
	}
	w := e.list
	waits := w != nil && w.exhausted // else it is tried in any case
	if waits && l.served[w] || !e.isConcerned(ev) {
		return
	}
	l.effects.OK = true
	if waits {
		l.served[w] = true
		w.backoff = 0 // a change in the middle of the round leaves no trace, so the pod is tried again soon
		l.startProbe(e)
	}
}

// isConcerned is true if the change may have made room for the pod.
func (e *entry) isConcerned(ev ClusterChanged) bool {
	if !ev.OnNode {
		return ev.Filters || e.tried != 0 // not only nodes have refused it
	}
	return e.firstWith(ev.Node) != subset.None
}
