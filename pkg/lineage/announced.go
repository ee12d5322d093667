package lineage

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// announcementKept is how long pods wait for an announced spread. The spread may never arrive: another webhook may
// refuse it, or its name may be taken.
const announcementKept = 2 * time.Second

// Announce records that a spread is being created. A workload that is applied together with the spread may get its
// first pods before the watch shows the spread. AwaitAnnounced makes the pods of the namespace wait for it. Only the
// webhook replica that admitted the spread knows about it. So this closes the gap with one replica, and only narrows it
// with several.
func (l *Lineage) Announce(namespace string, spread types.UID) { l.announced.add(namespace, spread) }

// AwaitAnnounced waits until the cache has the announced spreads of the namespace, at most for OwnerTimeout. If there
// are none it costs almost nothing.
func (l *Lineage) AwaitAnnounced(ctx context.Context, namespace string) {
	known, expected := l.announced.next(namespace)
	if !expected {
		return
	}
	timer := l.announced.clock.NewTimer(OwnerTimeout)
	defer timer.Stop()
	for expected {
		select {
		case <-known:
		case <-timer.C():
			return
		case <-ctx.Done():
			return
		}
		known, expected = l.announced.next(namespace)
	}
}

// announcements are spreads that have been admitted and are not in the cache yet.
type announcements struct {
	clock clock.WithTicker
	// namespaces is the number of namespaces with announced spreads, so that pods of other namespaces need no lock.
	namespaces atomic.Int64

	mu          sync.Mutex
	byNamespace map[string]map[types.UID]*window
}

func (a *announcements) add(namespace string, spread types.UID) {
	now := a.clock.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	for namespace, spreads := range a.byNamespace {
		for spread, w := range spreads {
			if !now.Before(w.closes) {
				a.drop(namespace, spread)
			}
		}
	}
	if a.byNamespace[namespace] == nil {
		a.byNamespace[namespace] = map[types.UID]*window{}
		a.namespaces.Add(1)
	}
	if a.byNamespace[namespace][spread] == nil {
		a.byNamespace[namespace][spread] = &window{closes: now.Add(announcementKept), news: make(chan struct{})}
	}
}

// seen ends the wait for a spread that is in the cache now, or is deleted already.
func (a *announcements) seen(namespace string, spread types.UID) {
	if a.namespaces.Load() == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if w := a.byNamespace[namespace][spread]; w != nil {
		close(w.news)
		a.drop(namespace, spread)
	}
}

// next returns a channel that is closed once one of the announced spreads of the namespace is known. expected is false
// if there is none. next forgets spreads that did not arrive in time.
func (a *announcements) next(namespace string) (known <-chan struct{}, expected bool) {
	if a.namespaces.Load() == 0 {
		return nil, false
	}
	now := a.clock.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	for spread, w := range a.byNamespace[namespace] {
		if now.Before(w.closes) {
			return w.news, true
		}
		a.drop(namespace, spread)
	}
	return nil, false
}

func (a *announcements) drop(namespace string, spread types.UID) {
	delete(a.byNamespace[namespace], spread)
	if len(a.byNamespace[namespace]) == 0 {
		delete(a.byNamespace, namespace)
		a.namespaces.Add(-1)
	}
}
