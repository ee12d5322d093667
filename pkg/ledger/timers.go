package ledger

import (
	"container/heap"
	"time"
)

// timerHeap has the timer that is due first in front. A timer of a waitlist that no longer applies when it is due is ignored. Timers of pods are
// removed, because they may be due after years.
type timerHeap []*timer

// timer wakes a pod, or the first pod of a waitlist.
type timer struct {
	at   time.Time
	pod  *entry
	list *waitlist
	// pos in the heap.
	pos int
}

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].pos, h[j].pos = i, j
}
func (h *timerHeap) Push(x any) {
	it := x.(*timer)
	it.pos = len(*h)
	*h = append(*h, it)
}
func (h *timerHeap) Pop() any {
	last := len(*h) - 1
	it := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return it
}

// next is when the first timer is due. Zero if there is none.
func (h timerHeap) next() time.Time {
	if len(h) == 0 {
		return time.Time{}
	}
	return h[0].at
}

// wakeAt wakes a pod at a time, if it has no node by then. A pod has one timer, and the earliest time counts.
func (l *Ledger) wakeAt(e *entry, at time.Time) {
	switch {
	case e.timer == nil:
		e.timer = &timer{at: at, pod: e}
		heap.Push(&l.timers, e.timer)
	case at.Before(e.timer.at):
		e.timer.at = at
		heap.Fix(&l.timers, e.timer.pos)
	}
}

// cancel removes the pod's timer.
func (l *Ledger) cancel(e *entry) {
	if e.search != nil && e.timer != nil {
		heap.Remove(&l.timers, e.timer.pos)
		e.timer = nil
	}
}

// retryAt tries the first pod of a waitlist of exhausted pods at a time. A waitlist has one such time, the earliest.
func (l *Ledger) retryAt(w *waitlist, at time.Time) {
	if w.retryAt.IsZero() || at.Before(w.retryAt) {
		w.retryAt = at
		heap.Push(&l.timers, &timer{at: at, list: w})
	}
}

func (TimePassed) apply(l *Ledger) {
	for len(l.timers) > 0 && !l.timers[0].at.After(l.now) {
		due := heap.Pop(&l.timers).(*timer)
		if w := due.list; w != nil {
			if w.retryAt.Equal(due.at) && w.account.exhausted[w.class] == w {
				w.retryAt = time.Time{}
				l.wakeFirst(w)
			}
			continue
		}
		due.pod.timer = nil
		l.wake(due.pod)
	}
}

// lateForNews is true once the pod has waited for news as long as it should. Before that, news wakes it, or the end of this time.
func (l *Ledger) lateForNews(e *entry) bool {
	if e.newsBy.IsZero() {
		e.newsBy = l.now.Add(l.observation)
	}
	if !l.now.Before(e.newsBy) {
		return true
	}
	l.wakeAt(e, e.newsBy)
	return false
}

const (
	initialBackoff = time.Second
	maxBackoff     = time.Minute
)

// tryAgainLater is for an exhausted pod if not only nodes refused it in a subset, but also pods elsewhere, volumes or claims. Such a change in the
// middle of the pod's round has no generation, and its event does not come again.
func (l *Ledger) tryAgainLater(w *waitlist) {
	w.backoff = nextBackoff(w.backoff)
	l.retryAt(w, l.now.Add(w.backoff))
}

func nextBackoff(last time.Duration) time.Duration {
	return min(max(2*last, initialBackoff), maxBackoff)
}

// Not every pod that is woken has a cycle: the PreEnqueue of another plugin may hold it. If the PreFilter of another plugin refuses it, the scheduler
// may not call this plugin's PostFilter.
func (Audit) apply(l *Ledger) {
	for _, a := range l.accounts {
		if a.nobodyWaits() {
			continue
		}
		for _, e := range a.members {
			switch {
			case !e.isOnItsWay():
			case e.overdue:
				l.passTurn(e)
			default:
				e.overdue = true
			}
		}
		for scope := range a.waiting {
			l.effects.Missed += l.wakeNext(a, scope)
		}
	}
}
