package members

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/cache"
)

const (
	// noiseInterval is how often a member that changes all the time has the hub look at an object, after the first mostNoise times.
	noiseInterval = 2 * time.Second
	mostNoise     = 10
)

// noise bounds how often a member has the hub look at an object. Each look may cost requests to all other members. It is safe for concurrent use.
type noise struct {
	mu sync.Mutex
	// heard are hearings by Errand, as long as they say anything.
	heard *cache.Expiring
}

// hearing is what was heard of an object from a member.
type hearing struct {
	// due is when the hub looks next, or has looked last.
	due time.Time
	// paid is until when looks every noiseInterval would take that have been due.
	paid time.Time
}

// after is how long the hub waits before it looks at an object because of a change. It is the delay, unless the member has changed too often.
func (n *noise) after(of Errand, delay time.Duration) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	heard, _ := n.heard.Get(of)
	last, _ := heard.(hearing)
	if last.due.After(now) {
		return last.due.Sub(now)
	}
	if last.paid.Before(now) {
		last.paid = now
	}
	last.paid = last.paid.Add(noiseInterval)
	last.due = now.Add(max(delay, last.paid.Sub(now)-mostNoise*noiseInterval))
	n.heard.Set(of, last, last.paid.Sub(now))
	return last.due.Sub(now)
}
