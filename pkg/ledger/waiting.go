package ledger

import (
	"container/heap"
	"time"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
)

// waitlist holds the pods of a quota scope that wait for a free slot, or the exhausted pods of one class. The pod that came first is served first.
//
// The waitlist of a quota scope has several queues. First, for each subset, the pods that have claimed it and would take an earlier one. Then the
// pods for which no subset had room. Then, for each subset, the early-bound pods that can use only that subset. Last come the strays: pods of a
// StatefulSet that have a claim elsewhere than in their home. A waitlist of exhausted pods has one queue.
type waitlist struct {
	account *account
	class   podClass
	queues  []queue
	subsets int
	// woken is how many pods were woken that have neither had their cycle, nor found a node, nor passed on their turn. wokenFor counts, by subset,
	// those of them that can use only that subset.
	woken    int
	wokenFor []int

	// exhausted is true for a waitlist of exhausted pods. probes is how many of them have left it to be tried.
	exhausted bool
	probes    int
	// backoff is how long the waitlist waited before its last retry without an event. retryAt is when the next retry is due.
	backoff time.Duration
	retryAt time.Time
}

// podClass is what exhausted pods have in common if one of them finds room where another does, as far as a NodeCheck can tell. The waitlist of a
// scope has no shape.
type podClass struct{ scope, shape string }

// place is the position of a pod in a waitlist.
type place struct {
	list  *waitlist
	queue int
	pos   int
}

type queue []*entry

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].order < q[j].order }
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place.pos, q[j].place.pos = i, j
}
func (q *queue) Push(x any) {
	e := x.(*entry)
	e.place.pos = len(*q)
	*q = append(*q, e)
}
func (q *queue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return e
}

// strays is the last queue.
func (w *waitlist) strays() int { return 2*w.subsets + 1 }

// next is the oldest pod that would take a slot of the subset, or nil. It considers the queues after queue behind, and the pods that can use only this
// subset.
func (w *waitlist) next(index, behind int) (oldest *entry) {
	consider := func(queue int) {
		if len(w.queues[queue]) > 0 && (oldest == nil || w.queues[queue][0].order < oldest.order) {
			oldest = w.queues[queue][0]
		}
	}
	for queue := behind + 1; queue <= w.subsets; queue++ {
		consider(queue)
	}
	consider(w.subsets + 1 + index)
	return oldest
}

// nextOrStray is next with the strays that would rather be in the subset.
func (w *waitlist) nextOrStray(l *Ledger, index, behind int) *entry {
	oldest := w.next(index, behind)
	for _, e := range w.queues[w.strays()] {
		if (oldest == nil || e.order < oldest.order) && l.ratherIn(e, index) {
			oldest = e
		}
	}
	return oldest
}

// ratherIn is true if the pod would give up its claim for a slot of the subset.
func (l *Ledger) ratherIn(e *entry, index int) bool {
	a, claim := e.account, e.index()
	if len(a.spreads) == 0 {
		return false // the account is being dropped, and that wakes all of its pods
	}
	return index != claim && a.policy.Next(&a.plan, a.tally.Kept(e.scope), l.candidate(e), ^subset.Mask(0).With(index).With(claim)) == index
}

// enqueue puts a claimed or waiting pod into its waitlist. It does nothing for a pod that is in one. It does nothing either for an early-bound pod
// that has its claim or was let go: no other slot is of use to it.
func (l *Ledger) enqueue(e *entry) {
	a := e.account
	if e.place.list != nil || a == nil || a.policy == nil || e.wait == ForNews {
		return
	}
	if e.wait == ForAnyNode {
		k := e.class()
		w := a.exhausted[k]
		if w == nil {
			w = &waitlist{account: a, class: k, queues: make([]queue, 1), exhausted: true}
			a.exhausted[k] = w
		}
		e.place = place{list: w}
		heap.Push(&w.queues[0], e)
		l.endProbe(e)
		return
	}
	n := len(a.policy.Subsets)
	at, claim := n, e.index()
	if within, early := a.policy.AdmittedTo(subset.AdmittedOf(e.pod), a.active().Name); early {
		if claim != subset.None || within == subset.None {
			return
		}
		at = n + 1 + within
	} else if claim != subset.None {
		if l.nominatedTo(e).Has(claim) {
			return // it stays there, and would be woken for an earlier slot again and again
		}
		at = claim
	}
	if home, known := a.policy.SubsetAt(&a.plan, e.position()); known && at <= n {
		switch {
		case home == subset.None && (claim != subset.None || a.policy.WhenFull == v1beta1.WhenFullSchedule), home != subset.None && home == claim:
			return // no other slot is better
		case claim != subset.None:
			at = 2*n + 1
		}
	}
	w := a.waiting[e.scope]
	if w == nil {
		w = &waitlist{account: a, class: podClass{scope: e.scope}, queues: make([]queue, 2*n+2), subsets: n, wokenFor: make([]int, n)}
		a.waiting[e.scope] = w
	}
	e.place = place{list: w, queue: at}
	heap.Push(&w.queues[at], e)
}

// dequeue removes a pod from its waitlist, if it is in one.
func (l *Ledger) dequeue(e *entry) {
	if w := e.place.list; w != nil {
		heap.Remove(&w.queues[e.place.queue], e.place.pos)
		e.place = place{}
		w.forgetIfEmpty()
	}
}

// forgetIfEmpty drops a waitlist without pods, so that old revisions leave nothing behind.
func (w *waitlist) forgetIfEmpty() {
	if w.woken > 0 || w.probes > 0 {
		return
	}
	for _, q := range w.queues {
		if len(q) > 0 {
			return
		}
	}
	switch a := w.account; {
	case !w.exhausted && a.waiting[w.class.scope] == w:
		delete(a.waiting, w.class.scope)
	case w.exhausted && a.exhausted[w.class] == w:
		delete(a.exhausted, w.class)
	}
}

// wake has the pod tried soon. The pod leaves its waitlist until that cycle.
func (l *Ledger) wake(e *entry) {
	if e.stage > Claimed {
		return
	}
	l.endWaitForNews(e)
	if e.account == nil {
		// no slot is meant for it
	} else if w := e.account.waiting[e.scope]; w != nil && e.wokenForSlot == noSlot {
		e.wokenForSlot = anySlot
		w.woken++
		if e.place.list == w && e.place.queue > w.subsets && e.place.queue < w.strays() {
			e.wokenForSlot = e.place.queue - w.subsets - 1
			w.wokenFor[e.wokenForSlot]++
		}
	}
	l.startProbe(e)
	l.dequeue(e)
	if e.wait != ForNextSubset {
		e.wait = ForCycle
	}
	l.effects.Wake = append(l.effects.Wake, e.pod)
}

// unwake records that a woken pod has its cycle, or that no slot is meant for it any more.
func (l *Ledger) unwake(e *entry) {
	e.overdue = false
	if e.wokenForSlot == noSlot {
		return
	}
	if w := e.account.waiting[e.scope]; w != nil {
		w.woken--
		if e.wokenForSlot != anySlot {
			w.wokenFor[e.wokenForSlot]--
		}
		w.forgetIfEmpty()
	}
	e.wokenForSlot = noSlot
}

// wakeFirst wakes the pod of a waitlist of exhausted pods that has waited longest.
func (l *Ledger) wakeFirst(w *waitlist) {
	if len(w.queues[0]) > 0 {
		l.wake(w.queues[0][0])
	}
}

// startProbe removes an exhausted pod from its waitlist. It is tried for all pods of its class.
func (l *Ledger) startProbe(e *entry) {
	if w := e.place.list; w != nil && w.exhausted {
		w.probes++
		e.probeOf = w
		l.dequeue(e)
	}
}

// endProbe ends the probe. The pod has found no room, so no other pod is tried.
func (l *Ledger) endProbe(e *entry) {
	if w := e.probeOf; w != nil {
		e.probeOf = nil
		w.probes--
		w.forgetIfEmpty()
	}
}

// passProbe has the next pod of a waitlist tried after a probe. If the probe found room, there may be more room; if it never had its cycle, the next
// pod takes its turn.
func (l *Ledger) passProbe(w *waitlist) {
	if w != nil {
		w.probes--
		l.wakeFirst(w)
		w.forgetIfEmpty()
	}
}

// wakeNext wakes the pods that wait for free slots: the oldest first, and no more than there are slots, including those woken before that have had no
// cycle yet. No pod waits for a slot of a subset without limit. It returns how many pods it woke.
//
// With strategy Adaptive a pod that has a claim in a later subset does not need a free slot: it skipped the earlier subset because no node fit. It is
// woken when a pod leaves that subset; see wakeBehind. With shares or minimums the pod is where it belongs, and the slot is for the pod that the workload
// makes in place of the one that ended.
func (l *Ledger) wakeNext(a *account, scope string) (woken int) {
	w := a.waiting[scope]
	if w == nil || a.policy == nil {
		return 0
	}
	kept := a.tally.Kept(scope)
	// Pods that were woken for any subset take the first free slots.
	anywhere := w.woken
	for _, n := range w.wokenFor {
		anywhere -= n
	}
	for i, quota := range a.plan.Quota {
		free := subset.Free(quota, kept.At(i))
		if free == subset.NoLimit {
			continue
		}
		slots := max(int(free)-w.wokenFor[i], 0)
		taken := min(slots, anywhere)
		anywhere -= taken
		behind := i
		if a.isAdaptive() || a.policy.IsRanked() {
			behind = w.subsets - 1
		}
		for range slots - taken {
			next := w.next(i, behind)
			if !a.isAdaptive() {
				next = w.nextOrStray(l, i, behind)
			}
			if next == nil {
				break
			}
			l.wake(next)
			woken++
		}
	}
	return woken
}

func (a *account) isAdaptive() bool { return a.policy.Strategy == v1beta1.AdaptiveScheduleStrategy }

// wakeBehind wakes the oldest pod of strategy Adaptive with a claim in a subset after those that a pod has left.
func (l *Ledger) wakeBehind(a *account, scope string, left subset.Mask) {
	w := a.waiting[scope]
	if w == nil || a.policy == nil || !a.isAdaptive() {
		return
	}
	behind := left.First()
	if a.policy.IsRanked() {
		behind = -1 // the pod may have skipped it for a subset in front of it
	}
	if next := w.nextOrStray(l, left.First(), behind); next != nil {
		l.wake(next)
	}
}

// wakeExhausted wakes exhausted pods of a scope after slots came free that they may have found taken.
func (l *Ledger) wakeExhausted(a *account, scope string, freed subset.Mask) {
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
	return e.search != nil && e.account != nil && (e.wokenForSlot != noSlot || e.probeOf != nil && e.stage == Waiting && e.place.list == nil)
}

// passTurn gives the turn of a pod to the next pod. The pod joins no waitlist before it has asked for a subset again: otherwise it would be woken
// first for the next slot as well. Whatever keeps it from asking wakes it when that ends.
func (l *Ledger) passTurn(e *entry) {
	wasWokenForSlot, probed := e.wokenForSlot != noSlot, e.probeOf
	l.unwake(e)
	e.probeOf = nil
	if e.wait == ForNextSubset {
		e.wait = ForCycle
	}
	if wasWokenForSlot {
		l.wakeNext(e.account, e.scope)
	}
	l.passProbe(probed)
}

func (ev ClusterChanged) apply(l *Ledger) {
	e := l.pods[ev.UID]
	if e == nil || e.search == nil || e.policy() == nil || e.wait != ForAnyNode && e.probeOf == nil {
		return
	}
	if l.change != ev.Change {
		l.change = ev.Change
		clear(l.served)
	}
	w := e.place.list // nil if it is tried in any case
	if w != nil && l.served[w] || !e.isConcerned(ev) {
		return
	}
	l.effects.OK = true
	if w != nil {
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
	if ev.Node == nil {
		return false
	}
	for i := range e.policy().Subsets {
		if e.policy().Subsets[i].Fits(ev.Node, e.own) == v1beta1.ReasonAdmitted {
			return true
		}
	}
	return false
}
