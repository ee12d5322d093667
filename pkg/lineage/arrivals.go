package lineage

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// arrivals lets requests wait until an owner, or an announced spread, is in the cache.
type arrivals struct {
	clock clock.WithTicker
	// kept is how long a window is remembered after it has closed, so that later requests do not wait for the same
	// object again.
	kept time.Duration
	// open is the number of windows. While it is 0, events and requests cost almost nothing.
	open atomic.Int64

	mu      sync.Mutex
	windows map[types.UID]*window
	// swept is when windows were last forgotten.
	swept time.Time
}

// window is the time in which requests wait for an object.
type window struct {
	namespace string
	closes    time.Time
	// news is closed when the object is in the cache, or when waiting requests should check again for another reason.
	news chan struct{}
}

func newArrivals(clock clock.WithTicker, kept time.Duration) *arrivals {
	return &arrivals{clock: clock, kept: kept, windows: map[types.UID]*window{}}
}

// expect opens a window for the object, or joins its existing one. left is 0 or less if that window is over.
func (a *arrivals) expect(namespace string, object types.UID, lasts time.Duration) (news <-chan struct{}, left time.Duration) {
	now := a.clock.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	w := a.windows[object]
	if w == nil {
		a.sweep(now)
		w = &window{namespace: namespace, closes: now.Add(lasts), news: make(chan struct{})}
		a.windows[object] = w
		a.open.Store(int64(len(a.windows)))
	}
	return w.news, w.closes.Sub(now)
}

// expected is the news of an object of the namespace that is still expected. It is nil if there is none.
func (a *arrivals) expected(namespace string) <-chan struct{} {
	if a.open.Load() == 0 {
		return nil
	}
	now := a.clock.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sweep(now)
	for _, w := range a.windows {
		if w.namespace == namespace && now.Before(w.closes) {
			return w.news
		}
	}
	return nil
}

// sweep forgets objects that did not arrive. Each pod can name another owner that does not exist, so sweep runs at most
// once a second.
func (a *arrivals) sweep(now time.Time) {
	if now.Sub(a.swept) < time.Second {
		return
	}
	a.swept = now
	maps.DeleteFunc(a.windows, func(_ types.UID, w *window) bool { return now.Sub(w.closes) >= a.kept })
	a.open.Store(int64(len(a.windows)))
}

// seen ends the wait for an object that is in the cache now, or is deleted already.
func (a *arrivals) seen(object types.UID) {
	if a.open.Load() == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if w := a.windows[object]; w != nil {
		close(w.news)
		delete(a.windows, object)
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
