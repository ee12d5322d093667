package ledger

import (
	"cmp"
	"slices"
	"time"
)

// timer wakes a pod that has waited for news, or the first pod of a waitlist. A timer that no longer applies when it is due is ignored.
type timer struct {
	at   time.Time
	pod  *entry
	list *waitlist
}

// remind adds a timer. The first of them is due first.
func (l *Ledger) remind(t timer) {
	at, _ := slices.BinarySearchFunc(l.timers, t, func(a, b timer) int { return cmp.Or(a.at.Compare(b.at), -1) })
	l.timers = slices.Insert(l.timers, at, t)
}

func (TimePassed) apply(l *Ledger) {
	for len(l.timers) > 0 && !l.timers[0].at.After(l.now) {
		due := l.timers[0]
		l.timers = l.timers[1:]
		switch e, w := due.pod, due.list; {
		case e != nil && l.pods[e.pod.UID] == e && e.search != nil && e.newsBy.Equal(due.at):
			l.wake(e)
		case w != nil && w.retryAt.Equal(due.at) && w.account.exhausted[w.class] == w:
			w.retryAt = time.Time{}
			l.wakeFirst(w)
		}
	}
}

// lateForNews is true once the pod has waited for news as long as it should. Before that, news wakes it, or the end of this time.
func (l *Ledger) lateForNews(e *entry) bool { return l.lateAfter(e, l.observation) }

// lateAfter is lateForNews for a pod that waits for so long.
func (l *Ledger) lateAfter(e *entry, wait time.Duration) bool {
	if e.newsBy.IsZero() {
		l.remindAt(e, l.now.Add(wait))
	}
	return !l.now.Before(e.newsBy)
}

// ruledWait is how long a pod waits for the spread that a rule makes: long enough for another process to take over from the one that makes spreads.
const ruledWait = 30 * time.Second

// remindAt wakes the pod at this time, if no news comes before it.
func (l *Ledger) remindAt(e *entry, at time.Time) {
	if !e.newsBy.Equal(at) && at.After(l.now) { // not for each cycle of the pod
		l.remind(timer{at: at, pod: e})
	}
	e.newsBy = at
}

const (
	initialBackoff = time.Second
	maxBackoff     = time.Minute
)

// tryAgainLater is for an exhausted pod if not only nodes refused it in a subset, but also pods elsewhere, volumes or claims. Such a change in the
// middle of the pod's round has no generation, and its event does not come again.
func (l *Ledger) tryAgainLater(w *waitlist) {
	w.backoff = min(max(2*w.backoff, initialBackoff), maxBackoff)
	if at := l.now.Add(w.backoff); w.retryAt.IsZero() || at.Before(w.retryAt) { // the earliest counts
		w.retryAt = at
		l.remind(timer{at: at, list: w})
	}
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
