package members

import (
	"sync"
	"time"
)

const (
	// noiseInterval is how often a member that changes all the time has the hub look at an object, after the first mostNoise times.
	noiseInterval = 2 * time.Second
	mostNoise     = 10
)

// noise bounds how often a member has the hub look at an object. Each look may cost requests to all other members. The zero value has heard nothing. It is safe for concurrent use.
type noise struct {
	mu    sync.Mutex
	heard map[Errand]hearing
	// bound is how many hearings there are before those are dropped that say nothing any more.
	bound int
}

// hearing is what was heard of an object from a member.
type hearing struct {
	// due is when the hub looks next, or has looked last.
	due time.Time
	// paid is until when looks every noiseInterval would take that have been due.
	paid time.Time
}

// after is how long the hub waits before it looks at an object because of a change. It is the delay, unless the member has changed too often.
func (n *noise) after(of Errand, delay time.Duration, now time.Time) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	last := n.heard[of]
	if last.due.After(now) {
		return last.due.Sub(now)
	}
	if last.paid.Before(now) {
		last.paid = now
	}
	last.paid = last.paid.Add(noiseInterval)
	last.due = now.Add(max(delay, last.paid.Sub(now)-mostNoise*noiseInterval))
	if len(n.heard) >= n.bound {
		n.forget(now)
	}
	n.heard[of] = last
	return last.due.Sub(now)
}

// forget drops what says nothing any more. It needs the lock.
func (n *noise) forget(now time.Time) {
	kept := map[Errand]hearing{}
	for of, last := range n.heard {
		if last.paid.After(now) {
			kept[of] = last
		}
	}
	n.heard, n.bound = kept, 2*len(kept)+1000
}
