package ledger

import (
	"container/heap"
	"time"
)

// agenda is what is due at which time. An item of a line that no longer holds when it is due is passed over. Those of pods are taken out, for they may be
// due after years.
type agenda []*item

// item wakes a pod, or the first pod of a line.
type item struct {
	at   time.Time
	pod  *entry
	line *line
	// pos in the agenda.
	pos int
}

func (a agenda) Len() int           { return len(a) }
func (a agenda) Less(i, j int) bool { return a[i].at.Before(a[j].at) }
func (a agenda) Swap(i, j int) {
	a[i], a[j] = a[j], a[i]
	a[i].pos, a[j].pos = i, j
}
func (a *agenda) Push(x any) {
	it := x.(*item)
	it.pos = len(*a)
	*a = append(*a, it)
}
func (a *agenda) Pop() any {
	last := len(*a) - 1
	it := (*a)[last]
	(*a)[last] = nil
	*a = (*a)[:last]
	return it
}

// next is when the first item is due; zero if there is none.
func (a agenda) next() time.Time {
	if len(a) == 0 {
		return time.Time{}
	}
	return a[0].at
}

// wakeAt wakes a pod at a time, if it has no node by then. A pod has one such time, the earliest.
func (l *Ledger) wakeAt(e *entry, at time.Time) {
	switch {
	case e.alarm == nil:
		e.alarm = &item{at: at, pod: e}
		heap.Push(&l.agenda, e.alarm)
	case at.Before(e.alarm.at):
		e.alarm.at = at
		heap.Fix(&l.agenda, e.alarm.pos)
	}
}

// cancel has a pod not woken at any time.
func (l *Ledger) cancel(e *entry) {
	if e.search != nil && e.alarm != nil {
		heap.Remove(&l.agenda, e.alarm.pos)
		e.alarm = nil
	}
}

// retryAt has the first pod of a line of exhausted pods tried at a time. A line has one such time, the earliest.
func (l *Ledger) retryAt(w *line, at time.Time) {
	if w.retryAt.IsZero() || at.Before(w.retryAt) {
		w.retryAt = at
		heap.Push(&l.agenda, &item{at: at, line: w})
	}
}

func (TimePassed) apply(l *Ledger) {
	for len(l.agenda) > 0 && !l.agenda[0].at.After(l.now) {
		due := heap.Pop(&l.agenda).(*item)
		if w := due.line; w != nil {
			if w.retryAt.Equal(due.at) && w.account.exhausted[w.kind] == w {
				w.retryAt = time.Time{}
				l.wakeFirst(w)
			}
			continue
		}
		due.pod.alarm = nil
		l.wake(due.pod)
	}
}

// lateForNews is true once the pod has waited for news as long as it should. Before that, it is woken by the news or then.
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
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// tryAgainLater is for an exhausted pod of which a subset was refused by more than its nodes: pods elsewhere, volumes, claims. A change there that
// came in the middle of the pod's round has no generation, and no event that comes again.
func (l *Ledger) tryAgainLater(w *line) {
	w.retry = nextRetry(w.retry)
	l.retryAt(w, l.now.Add(w.retry))
}

func nextRetry(last time.Duration) time.Duration { return min(max(2*last, firstRetry), lastRetry) }

// Not every pod that is woken has a cycle: another plugin's PreEnqueue may hold it. And if another plugin's PreFilter refuses it, this plugin's
// PostFilter need not be called.
func (Audit) apply(l *Ledger) {
	for _, a := range l.accounts {
		if a.nobodyWaits() && len(a.gangs) == 0 {
			continue
		}
		for _, e := range a.members {
			switch {
			case !e.isOnItsWay():
			case e.overdue:
				l.passOn(e)
			default:
				e.overdue = true
			}
		}
		for scope := range a.waiting {
			l.fx.Missed += l.wakeNext(a, scope)
		}
		for key := range a.gangs {
			l.fx.Missed += l.wakeGangs(a, key.scope)
		}
	}
}
