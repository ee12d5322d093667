package lineage

import (
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// windowKept is how long an owner that did not arrive is remembered, so that its next pods do not wait again.
const windowKept = time.Minute

// arrivals lets requests wait until an owner is in the cache.
type arrivals struct {
	clock clock.WithTicker
	// open is the number of windows. While it is 0, events of owners cost next to nothing.
	open atomic.Int64

	mu      sync.Mutex
	windows map[types.UID]*window
	// swept is when expired windows were last removed.
	swept time.Time
}

// window is the time in which pods wait for an owner, or for a spread.
type window struct {
	closes time.Time
	// news is closed when it is seen, or when there is another reason to look again.
	news chan struct{}
}

// expect opens a window for the owner, or joins an open one. left is 0 or less if its window is over.
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

// sweep forgets owners that did not arrive. It runs only now and then: anybody can name owners that do not exist, a new one for each pod.
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

// lookAgain makes all waiting requests look again, because a kind can be read now, or is known to be unreadable.
func (a *arrivals) lookAgain() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range a.windows {
		close(w.news)
		w.news = make(chan struct{})
	}
}
