package lineage

import (
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// windowKept is how long arrivals remembers an owner that did not arrive, so that its next pods do not wait again.
const windowKept = time.Minute

// arrivals lets requests wait until an owner is in the cache.
type arrivals struct {
	clock clock.WithTicker
	// open is the number of windows. While it is 0, events of owners cost almost nothing.
	open atomic.Int64

	mu      sync.Mutex
	windows map[types.UID]*window
	// swept is when expired windows were last removed.
	swept time.Time
}

// window is the time in which pods wait for an owner, or for a spread.
type window struct {
	closes time.Time
	// news is closed when the owner or spread is in the cache, or when waiting requests should check again for another
	// reason.
	news chan struct{}
}

// expect opens a window for the owner, or joins its existing one. left is 0 or less if that window is over.
func (a *arrivals) expect(owner types.UID) (news <-chan struct{}, left time.Duration) {
	now := a.clock.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	w := a.windows[owner]
	if w == nil {
		a.sweep(now)
		w = &window{closes: now.Add(OwnerTimeout), news: make(chan struct{})}
		a.windows[owner] = w
		a.open.Store(int64(len(a.windows)))
	}
	return w.news, w.closes.Sub(now)
}

// sweep forgets owners that did not arrive. Each pod can name another owner that does not exist, so sweep runs at most
// once a second.
func (a *arrivals) sweep(now time.Time) {
	if now.Sub(a.swept) < time.Second {
		return
	}
	a.swept = now
	for uid, old := range a.windows {
		if now.Sub(old.closes) > windowKept {
			delete(a.windows, uid)
		}
	}
}

// seen ends the wait for an owner that is in the cache now.
func (a *arrivals) seen(owner types.UID) {
	if a.open.Load() == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if w := a.windows[owner]; w != nil {
		close(w.news)
		delete(a.windows, owner)
		a.open.Store(int64(len(a.windows)))
	}
}

// lookAgain makes all waiting requests check again, because a kind is readable now, or is known to be unreadable.
func (a *arrivals) lookAgain() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range a.windows {
		close(w.news)
		w.news = make(chan struct{})
	}
}
