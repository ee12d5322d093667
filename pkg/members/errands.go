package members

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Defaults of Errands.
const (
	DefaultPatience = 250 * time.Millisecond
	defaultDeadline = 15 * time.Second // a read or a write may be three requests
)

// lateFor is for how long the value of an errand is kept that nobody has waited for.
const lateFor = 5 * time.Second

// Errand names a piece of work: what is done for an object of the hub in a member.
type Errand struct {
	Object types.NamespacedName
	Member string
}

// Errands are pieces of work in members that nobody waits for longer than Patience, all together. One that takes longer goes on by itself until its Deadline. The zero value is ready, with the defaults.
type Errands[V any] struct {
	// Patience is for how long Each waits, and Deadline bounds each errand.
	Patience, Deadline time.Duration
	// Ended is called when an errand ends for which nobody waits any more. Nil means that nobody wants to know. It must not block.
	Ended func(Errand)

	// kept is how many are in all.
	kept atomic.Int32
	mu   sync.Mutex
	all  map[Errand]*late[V]
	// slow are the members whose last errand was late. Nobody waits for them.
	slow map[string]bool
}

// late is an errand for which nobody waits any more. Its value is nil while it goes on.
type late[V any] struct{ value *V }

// Each does an errand for each name, all at the same time, unless one has ended since an earlier call, whose value is not stale. If stale is nil, none is. The result has nil for one that has not ended within
// Patience, or that goes on since an earlier call; see Runs and Late. What do uses must not change afterwards.
func (e *Errands[V]) Each(ctx context.Context, names []Errand, stale func(*V) bool, do func(ctx context.Context, i int) V) []*V {
	patience, deadline := cmp.Or(e.Patience, DefaultPatience), cmp.Or(e.Deadline, defaultDeadline)
	values := make([]*V, len(names))
	ended := make(chan struct{}, len(names))
	waits, over := 0, false // over is true once nobody waits. e.mu guards it and the values.
	e.mu.Lock()
	for i, name := range names {
		if one := e.all[name]; one != nil {
			if one.value == nil {
				continue
			}
			e.drop(name)
			if stale == nil || !stale(one.value) {
				values[i] = one.value
				continue
			}
		}
		waited := !e.slow[name.Member]
		if waited {
			waits++
		}
		go func() {
			began := time.Now() //nolint:forbidigo // how long it takes
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deadline)
			defer cancel()
			value := do(ctx, i)
			e.mu.Lock()
			if time.Since(began) <= patience {
				delete(e.slow, name.Member)
			}
			if !over {
				values[i] = &value
				e.mu.Unlock()
				if waited {
					ended <- struct{}{}
				}
				return
			}
			one := e.all[name]
			one.value = &value
			e.mu.Unlock()
			time.AfterFunc(lateFor, func() {
				e.mu.Lock()
				defer e.mu.Unlock()
				if e.all[name] == one {
					e.drop(name)
				}
			})
			if e.Ended != nil {
				e.Ended(name)
			}
		}()
	}
	e.mu.Unlock()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for range waits {
		select {
		case <-ended:
			continue
		case <-timer.C:
		}
		break
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	over = true
	for i, name := range names {
		if values[i] == nil && e.all[name] == nil {
			if e.all == nil {
				e.all, e.slow = map[Errand]*late[V]{}, map[string]bool{}
			}
			e.all[name], e.slow[name.Member] = &late[V]{}, true
			e.kept.Add(1)
		}
	}
	return values
}

// Runs is true if an errand goes on for which nobody waits any more.
func (e *Errands[V]) Runs(name Errand) bool {
	if e.kept.Load() == 0 { // most of the time, and passes over hundreds of members ask often
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	one := e.all[name]
	return one != nil && one.value == nil
}

// Late takes the value of an errand that ended after Each had returned. It is nil if there is none, or if it is older than lateFor.
func (e *Errands[V]) Late(name Errand) *V {
	if e.kept.Load() == 0 {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	one := e.all[name]
	if one == nil || one.value == nil {
		return nil
	}
	e.drop(name)
	return one.value
}

// drop needs the lock.
func (e *Errands[V]) drop(name Errand) {
	if e.all[name] != nil {
		delete(e.all, name)
		e.kept.Add(-1)
	}
}
