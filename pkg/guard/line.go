package guard

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/crd/policy/v1alpha1"
	"github.com/berth-project/berth/pkg/panics"
)

const (
	// maxGroup is how many requests are decided together at most.
	maxGroup = 64
	// firstBackoff and maxBackoff bound the wait after a conflict. The wait is random up to its bound, which doubles.
	firstBackoff = 5 * time.Millisecond
	maxBackoff   = 80 * time.Millisecond
)

// lines has one line of waiting requests for each budget, and at most one round of decisions going for each: what arrives during a round is
// decided together in the next. So a request on an idle budget does not wait, and hundreds share a few writes.
type lines struct {
	store *store
	// timeout is how long a request waits for an answer before it is refused as Contended.
	timeout time.Duration

	mu      sync.Mutex
	waiting map[types.NamespacedName][]*ticket
	// kept is what lines that have ended know, for as long as it may serve.
	kept map[types.NamespacedName]*knowledge
}

// ticket is a request in line.
type ticket struct {
	ctx      context.Context
	request  Request
	deadline time.Time
	answer   chan answer
}

type answer struct {
	verdict verdict
	err     error
}

// verdict is what a budget says.
type verdict struct {
	budget.Verdict
	// covers is true if the pod is one of the budget's, whatever it says to the operation.
	covers bool
	// by is the budget that refuses, nil if none does.
	by *corev1.ObjectReference
}

func newLines(store *store, timeout time.Duration) *lines {
	return &lines{store: store, timeout: timeout, waiting: map[types.NamespacedName][]*ticket{}, kept: map[types.NamespacedName]*knowledge{}}
}

// ask waits for the budget's answer.
func (l *lines) ask(ctx context.Context, name types.NamespacedName, request Request) (verdict, error) {
	t := &ticket{ctx: ctx, request: request, deadline: l.store.clock.Now().Add(l.timeout), answer: make(chan answer, 1)}
	l.mu.Lock()
	_, going := l.waiting[name]
	l.waiting[name] = append(l.waiting[name], t)
	l.mu.Unlock()
	if !going {
		// The round serves others too, so it does not end with the request that has begun it.
		go l.serve(context.WithoutCancel(ctx), name)
	}
	select {
	case a := <-t.answer:
		return a.verdict, a.err
	case <-ctx.Done():
		return verdict{}, context.Cause(ctx)
	}
}

// serve decides until nobody is in line. A budget has a key in waiting exactly as long as somebody serves it. A round that panics fails for those who
// are in it, and the next one is decided as if nothing had happened.
func (l *lines) serve(ctx context.Context, name types.NamespacedName) {
	backoff := firstBackoff
	var group []*ticket
	k := l.resume(name)
	for {
		group = l.next(name, group, k)
		if len(group) == 0 {
			return
		}
		requests := make([]Request, len(group))
		last := group[0].deadline
		for i, t := range group {
			requests[i] = t.request
			if t.deadline.After(last) {
				last = t.deadline
			}
		}
		// No read or write may go on for longer than somebody waits for it.
		round, cancel := context.WithTimeout(ctx, last.Sub(l.store.clock.Now()))
		var verdicts []verdict
		err := panics.ToError(round, func() (err error) {
			verdicts, err = l.store.decideOnce(round, name, requests, k)
			return err
		})
		timedOut := round.Err() != nil
		cancel()
		if errors.Is(err, errChanged) {
			conflicts.Inc()
			wait(ctx, rand.N(backoff))
			backoff = min(2*backoff, maxBackoff)
			k.contested = true
			continue // with the same group, and who has come meanwhile
		}
		if backoff, k.contested = firstBackoff, false; err != nil {
			*k = knowledge{}
		}
		for i, t := range group {
			switch {
			case err == nil:
				t.answer <- answer{verdict: verdicts[i]}
			case timedOut:
				t.answer <- answer{verdict: contended(name)}
			default:
				t.answer <- answer{err: err}
			}
		}
		group = nil
	}
}

// next is the next group: the requests that have to be decided again and those at the head of the line. Who has waited too long is told so, and
// who does not wait any more is forgotten. It is empty when the line ends, and what the line knows is kept then.
func (l *lines) next(name types.NamespacedName, again []*ticket, k *knowledge) []*ticket {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.store.clock.Now()
	var group []*ticket
	take := func(tickets []*ticket) (rest []*ticket) {
		for i, t := range tickets {
			switch {
			case len(group) == maxGroup:
				return tickets[i:]
			case t.ctx.Err() != nil:
			case !now.Before(t.deadline):
				t.answer <- answer{verdict: contended(name)}
			default:
				group = append(group, t)
			}
		}
		return nil
	}
	take(again)
	l.waiting[name] = take(l.waiting[name])
	if len(group) == 0 {
		delete(l.waiting, name)
		l.keep(name, k)
	}
	return group
}

// keep is called with the lock held. Nothing is left of a budget that nobody asks any more.
func (l *lines) keep(name types.NamespacedName, k *knowledge) {
	l.kept[name] = k
	time.AfterFunc(oldestSnapshot, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.kept[name] == k {
			delete(l.kept, name)
		}
	})
}

// resume takes over what the budget's last line has left, or begins with nothing.
func (l *lines) resume(name types.NamespacedName) *knowledge {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.kept[name]
	if k == nil {
		return &knowledge{}
	}
	delete(l.kept, name)
	return k
}

func contended(name types.NamespacedName) verdict {
	return verdict{Verdict: budget.Verdict{
		Reason:  v1alpha1.ReasonContended,
		Message: "PodUnavailableBudget " + name.Name + " gets more requests than it can answer in time; try again",
	}}
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (s *store) now() metav1.Time { return metav1.NewTime(s.clock.Now()) }
