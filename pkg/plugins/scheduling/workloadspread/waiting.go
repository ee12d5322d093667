package workloadspread

import (
	"container/heap"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	"github.com/berth-project/berth/pkg/subset"
)

// waitlist holds the pods of one quota scope that would take a slot in an earlier subset if one came free: by the subset they have claimed,
// then those that no subset had room for, and then, by subset, early-bound pods that can use that subset only. Each line is served in
// the order of the pods' first cycles.
type waitlist struct {
	lines   []waitline
	subsets int
	// woken pods have neither had their cycle yet, nor found a node, nor passed on what they were woken for. wokenFor are, by subset, those of
	// them that can use that subset only.
	woken    int
	wokenFor []int
	// exhausted: it has one line, of exhausted pods of the kind.
	exhausted bool
	kind      kind
}

// waitplace is where an entry stands in a waitlist.
type waitplace struct {
	list *waitlist
	line int
	pos  int
}

type waitline []*entry

func (w waitline) Len() int           { return len(w) }
func (w waitline) Less(i, j int) bool { return w[i].order < w[j].order }
func (w waitline) Swap(i, j int) {
	w[i], w[j] = w[j], w[i]
	w[i].place.pos, w[j].place.pos = i, j
}
func (w *waitline) Push(x any) {
	e := x.(*entry)
	e.place.pos = len(*w)
	*w = append(*w, e)
}
func (w *waitline) Pop() any {
	last := len(*w) - 1
	e := (*w)[last]
	(*w)[last] = nil
	*w = (*w)[:last]
	return e
}

// next is the line of the oldest pod that would take a slot of a subset, or -1: of those that stand behind the given one, and of those that
// can use no other.
func (w *waitlist) next(index, behind int) int {
	oldest := -1
	consider := func(line int) {
		if len(w.lines[line]) > 0 && (oldest == -1 || w.lines[line][0].order < w.lines[oldest][0].order) {
			oldest = line
		}
	}
	for line := behind + 1; line <= w.subsets; line++ {
		consider(line)
	}
	consider(w.subsets + 1 + index)
	return oldest
}

// wait puts a claimed or waiting pod into the line of its scope. It does nothing for one that stands there, and for an early-bound pod that has
// its claim or was let go: no other slot is of use to it.
func (l *ledger) wait(e *entry) {
	s := e.spread
	if e.place.list != nil || s.policy == nil {
		return
	}
	if e.exhausted {
		kind := e.kind()
		list := s.exhausted[kind]
		if list == nil {
			list = &waitlist{lines: make([]waitline, 1), exhausted: true, kind: kind}
			s.exhausted[kind] = list
		}
		e.place.list = list
		heap.Push(&list.lines[0], e)
		return
	}
	n := len(s.policy.Subsets)
	line := n
	if within, early := s.policy.AdmittedTo(subset.AdmittedOf(e.pod), s.key.Name); early {
		if e.subset != subset.None || within == subset.None {
			return
		}
		line = n + 1 + within
	} else if e.subset != subset.None {
		line = e.subset
	}
	list := s.waiting[e.scope]
	if list == nil {
		list = &waitlist{lines: make([]waitline, 2*n+1), subsets: n, wokenFor: make([]int, n)}
		s.waiting[e.scope] = list
	}
	e.place.list, e.place.line = list, line
	heap.Push(&list.lines[e.place.line], e)
}

// leave takes a pod out of its line, if it stands in one.
func (l *ledger) leave(e *entry) {
	list := e.place.list
	if list == nil {
		return
	}
	heap.Remove(&list.lines[e.place.line], e.place.pos)
	e.place = waitplace{}
	if !list.exhausted {
		l.forgetIfEmpty(e.spread, e.scope)
	} else if len(list.lines[0]) == 0 {
		delete(e.spread.exhausted, list.kind)
	}
}

// forgetIfEmpty drops the waitlist of a scope in which nobody waits, so that old revisions leave nothing behind.
func (l *ledger) forgetIfEmpty(s *spread, scope string) {
	list := s.waiting[scope]
	if list == nil || list.woken > 0 {
		return
	}
	for _, line := range list.lines {
		if len(line) > 0 {
			return
		}
	}
	delete(s.waiting, scope)
}

// wakeNext wakes the pods that free slots are waiting for: the oldest first, and no more than there are slots, counting the pods that were
// woken before and have not had their cycle yet. Nobody waits for a slot of a subset without limit.
//
// With strategy Adaptive a free slot is not what a pod lacks that has a claim further on: it has passed over that subset for want of a node.
// Such a pod is woken when somebody leaves the subset; see wakeBehind.
func (l *ledger) wakeNext(s *spread, scope string) {
	list := s.waiting[scope]
	if list == nil || s.policy == nil {
		return
	}
	kept := s.tally.Kept(scope)
	// Those who were woken for any subset take the first slots there are.
	anywhere := list.woken
	for _, n := range list.wokenFor {
		anywhere -= n
	}
	for i, quota := range s.plan.Quota {
		free := subset.Free(quota, kept.At(i))
		if free == subset.NoLimit {
			continue
		}
		slots := max(int(free)-list.wokenFor[i], 0)
		taken := min(slots, anywhere)
		anywhere -= taken
		behind := i
		if s.policy.Strategy == v1alpha1.AdaptiveScheduleStrategy {
			behind = list.subsets - 1
		}
		for range slots - taken {
			line := list.next(i, behind)
			if line == -1 {
				break
			}
			l.wake(list.lines[line][0])
		}
	}
}

// wakeBehind wakes the oldest pod of strategy Adaptive with a claim behind subsets that a pod has left.
func (l *ledger) wakeBehind(s *spread, scope string, left subset.Mask) {
	list := s.waiting[scope]
	if list == nil || s.policy == nil || s.policy.Strategy != v1alpha1.AdaptiveScheduleStrategy {
		return
	}
	if line := list.next(left.First(), left.First()); line != -1 {
		l.wake(list.lines[line][0])
	}
}

// wakeExhausted wakes exhausted pods of a scope after slots came free that they may have found taken: of each kind the one that has waited
// longest. If it finds a node, the next like it is woken.
func (l *ledger) wakeExhausted(s *spread, scope string, freed subset.Mask) {
	if freed != 0 {
		l.wakeOfEachKind(s, scope)
	}
}

// wakeUnplaced wakes exhausted pods of a scope after slots were taken for good, if they were the last and pods are let go then. Claims do not
// count: who holds one may find no node either.
func (l *ledger) wakeUnplaced(s *spread, scope string, taken subset.Mask) {
	if taken == 0 || len(s.exhausted) == 0 {
		return
	}
	if s.policy.Admit(&s.plan, s.tally.Kept(scope), subset.Candidate{}).Reason == v1alpha1.ReasonUnplaced {
		l.wakeOfEachKind(s, scope)
	}
}

// wakeOfEachKind wakes of each kind of exhausted pods of a scope the one that has waited longest.
func (l *ledger) wakeOfEachKind(s *spread, scope string) {
	for kind, list := range s.exhausted {
		if kind.scope == scope {
			l.wake(list.lines[0][0])
		}
	}
}

// wakeLike wakes the exhausted pod of the entry's kind that has waited longest.
func (l *ledger) wakeLike(e *entry) {
	if list := e.spread.exhausted[e.kind()]; list != nil {
		l.wake(list.lines[0][0])
	}
}

// wake has a pod tried again soon. It leaves its line until that cycle.
func (l *ledger) wake(e *entry) {
	list := e.spread.waiting[e.scope]
	if list != nil && !e.woken {
		e.woken, e.wokenFor = true, subset.None
		list.woken++
		if e.place.list == list && e.place.line > list.subsets {
			e.wokenFor = e.place.line - list.subsets - 1
			list.wokenFor[e.wokenFor]++
		}
	}
	l.leave(e)
	e.parked = false
	wokenPods.Inc()
	l.awake[string(e.pod.UID)] = e.pod
}

// overdueAfter is how long a pod may be on its way to a cycle: so long at least, and at most twice as long.
const overdueAfter = 30 * time.Second

// passOnOverdue has all pods pass on what they were woken for that have not had their cycle since it was called before. Not every pod that is woken
// has one: another plugin's PreEnqueue may hold it. And if another plugin's PreFilter refuses it, this plugin's PostFilter need not be called: that
// of DynamicResources comes before and fails if its own PreFilter was not called, and then no other is. It is called every overdueAfter.
func (l *ledger) passOnOverdue() {
	l.locked(func() {
		for _, s := range l.spreads.byName {
			if s.nobodyWaits() {
				continue
			}
			for _, e := range s.members {
				switch {
				case !e.isOnItsWay():
				case e.overdue:
					l.passOnLocked(e)
				default:
					e.overdue = true
				}
			}
		}
	})
}

// passOn takes in that a cycle of the pod has ended before it asked for a subset, because another plugin refused it.
func (l *ledger) passOn(pod *corev1.Pod) {
	l.locked(func() {
		if e := l.entries[pod.UID]; e != nil && e.isOnItsWay() {
			l.passOnLocked(e)
		}
	})
}

// isOnItsWay is true if a slot is meant for the pod in its next cycle, or it is to look for a node for others of its kind as well.
func (e *entry) isOnItsWay() bool {
	return e.woken || e.triesForOthers()
}

// triesForOthers is true for an exhausted pod that has left its line to be tried.
func (e *entry) triesForOthers() bool {
	return e.exhausted && e.state == waiting && e.place.list == nil
}

// passOnLocked gives the turn of a pod to the next. It does not stand in line again before it has asked for a subset, or it would be woken first for
// the next slot as well. What keeps it from that wakes it when it ends.
func (l *ledger) passOnLocked(e *entry) {
	triesForOthers := e.triesForOthers()
	wasWoken := e.woken
	l.unwake(e)
	e.exhausted, e.again = false, false
	if wasWoken {
		l.wakeNext(e.spread, e.scope)
	}
	if triesForOthers {
		l.wakeLike(e)
	}
}

// unwake notes that a woken pod has its cycle, or that no slot is meant for it any more.
func (l *ledger) unwake(e *entry) {
	e.overdue = false
	if !e.woken {
		return
	}
	e.woken = false
	if list := e.spread.waiting[e.scope]; list != nil {
		list.woken--
		if e.wokenFor != subset.None {
			list.wokenFor[e.wokenFor]--
		}
		l.forgetIfEmpty(e.spread, e.scope)
	}
}
