package lineage

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// announcementKept is how long a spread that was announced is expected. It may never come: others may refuse it, or its name is taken.
const announcementKept = 2 * time.Second

// Announce tells of a spread that is being created. A workload that is applied together with it may have its first pods before the watch tells of
// the spread; pods of the namespace wait for it in AwaitAnnounced. Whoever is asked about the spread before it is stored can know of it, and that
// is one replica of several, so that this narrows the gap where there are several, and closes it where there is one.
func (l *Lineage) Announce(namespace string, spread types.UID) { l.announced.add(namespace, spread) }

// AwaitAnnounced waits until the announced spreads of the namespace are known, at most Patience. Without any it costs next to nothing.
func (l *Lineage) AwaitAnnounced(ctx context.Context, namespace string) {
	known, expected := l.announced.next(namespace)
	if !expected {
		return
	}
	timer := l.announced.clock.NewTimer(Patience)
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

// announcements are spreads that are on their way into the cache.
type announcements struct {
	clock clock.WithTicker
	// namespaces is how many have any, so that all other pods need no lock.
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

// seen ends the wait for a spread that is known now, or gone already.
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

// next is any of the spreads that the namespace expects. Those that did not come in time are forgotten.
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
