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
	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/panics"
)

const (
	// maxGroup is the maximum number of requests in one round of decisions.
	maxGroup = 64
	// firstBackoff and maxBackoff bound the wait after a conflict. Each wait is random, up to a limit that doubles from firstBackoff to maxBackoff.
	firstBackoff = 5 * time.Millisecond
	maxBackoff   = 80 * time.Millisecond
)

// lines has one line of waiting requests for each budget. It runs at most one round of decisions at a time for each. Requests that arrive while a round
// counts join it, and those that arrive later are decided together in the next one. So a request on an idle budget does not wait, and hundreds of
// requests share a few writes.
type lines struct {
	store *store
	// timeout is how long a request waits for an answer before it is refused as Contended.
	timeout time.Duration

	mu      sync.Mutex
	waiting map[types.NamespacedName][]*ticket
	// kept is the knowledge of lines that have ended, for as long as it may be valid.
	kept *cache.Expiring
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

// verdict is the answer of a budget.
type verdict struct {
	budget.Verdict
	// covers is true if the pod is one of the budget's, whether the budget allows the operation or not.
	covers bool
	// by is the budget that refuses, nil if none does.
	by *corev1.ObjectReference
}

func newLines(store *store, timeout time.Duration) *lines {
	return &lines{store: store, timeout: timeout, waiting: map[types.NamespacedName][]*ticket{}, kept: cache.NewExpiring()}
}

// ask queues the request and waits for the budget's answer, or for the context to end.
func (l *lines) ask(ctx context.Context, name types.NamespacedName, request Request) (verdict, error) {
	t := &ticket{ctx: ctx, request: request, deadline: l.store.clock.Now().Add(l.timeout), answer: make(chan answer, 1)}
	l.mu.Lock()
	_, going := l.waiting[name]
	l.waiting[name] = append(l.waiting[name], t)
	l.mu.Unlock()
	if !going {
		// The round serves other requests too, so it must outlive the request that started it.
		go l.serve(context.WithoutCancel(ctx), name)
	}
	select {
	case a := <-t.answer:
		return a.verdict, a.err
	case <-ctx.Done():
		return verdict{}, context.Cause(ctx)
	}
}

// isBusy is true if a request to the budget has to wait for others.
func (l *lines) isBusy(name types.NamespacedName) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, busy := l.waiting[name]
	return busy
}

// serve runs rounds until the line is empty. A budget has a key in waiting exactly as long as a goroutine serves it. If a round panics, only its own
// requests fail. The next round runs as usual.
func (l *lines) serve(ctx context.Context, name types.NamespacedName) {
	backoff := firstBackoff
	var group []*ticket
	k := &knowledge{}
	if left, found := l.kept.Get(name); found {
		l.kept.Delete(name) // it belongs to one line
		k = left.(*knowledge)
	}
	for {
		group = l.next(name, group, k)
		if len(group) == 0 {
			return
		}
		_, _ = l.round(ctx, group, func(round context.Context, requests []Request) error {
			return l.store.countAhead(round, name, requests, k)
		})
		if group = l.next(name, group, k); len(group) == 0 { // with the requests that have arrived during the count
			return
		}
		var verdicts []verdict
		timedOut, err := l.round(ctx, group, func(round context.Context, requests []Request) (err error) {
			verdicts, err = l.store.decideOnce(round, name, requests, k)
			return err
		})
		if errors.Is(err, errChanged) {
			time.Sleep(rand.N(backoff)) //nolint:forbidigo // others write the same budget, and nothing tells when they are done
			backoff = min(2*backoff, maxBackoff)
			k.contested = true
			continue // with the same group, and the requests that have arrived meanwhile
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

// round runs a step of the group's decision. No read or write may outlast the last request that waits for it. timedOut is true if one did.
func (l *lines) round(ctx context.Context, group []*ticket, step func(context.Context, []Request) error) (timedOut bool, err error) {
	requests := make([]Request, len(group))
	last := group[0].deadline
	for i, t := range group {
		requests[i] = t.request
		if t.deadline.After(last) {
			last = t.deadline
		}
	}
	round, cancel := context.WithTimeout(ctx, last.Sub(l.store.clock.Now()))
	defer cancel()
	err = panics.ToError(round, func() error { return step(round, requests) })
	return round.Err() != nil, err
}

// next returns the next group: the requests that must be decided again, and those at the head of the line. It answers Contended to a request that has
// waited too long, and drops a request whose client waits no more. An empty group ends the line, and next keeps what the line knows.
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
		l.kept.Set(name, k, oldestSnapshot)
	}
	return group
}

func contended(name types.NamespacedName) verdict {
	return verdict{Verdict: budget.Verdict{
		Reason:  v1beta1.ReasonContended,
		Message: "PodUnavailableBudget " + name.Name + " gets more requests than it can answer in time; try again",
	}}
}

func (s *store) now() metav1.Time { return metav1.NewTime(s.clock.Now()) }
