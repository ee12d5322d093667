package lineage

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// announcementKept is how long pods wait for an announced spread. The spread may never arrive: another webhook may
// refuse it, or its name may be taken.
const announcementKept = 2 * time.Second

// Announce records that a spread is being created. A workload that is applied together with the spread may get its
// first pods before the watch shows the spread. AwaitAnnounced makes the pods of the namespace wait for it. Only the
// webhook replica that admitted the spread knows about it. So this closes the gap with one replica, and only narrows it
// with several.
func (l *Lineage) Announce(namespace string, spread types.UID) {
	l.announced.expect(namespace, spread, announcementKept)
}

// AwaitAnnounced waits until the cache has the announced spreads of the namespace, at most for OwnerTimeout. If there
// are none it costs almost nothing.
func (l *Lineage) AwaitAnnounced(ctx context.Context, namespace string) {
	var timeout <-chan time.Time
	for news := l.announced.expected(namespace); news != nil; news = l.announced.expected(namespace) {
		if timeout == nil {
			timeout = l.announced.clock.After(OwnerTimeout)
		}
		select {
		case <-news:
		case <-timeout:
			return
		case <-ctx.Done():
			return
		}
	}
}
