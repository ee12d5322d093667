package guard

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// namespaces knows which namespaces are being deleted. The guard asks it about every refusal. There may be hundreds at a time, and one read serves them
// all.
type namespaces struct {
	live    client.Reader
	clock   clock.PassiveClock
	reading singleflight.Group

	mu sync.Mutex
	// there has the time at which a namespace was last read and was not being deleted.
	there map[string]time.Time
	swept time.Time
}

// thereFor is how long one read of a namespace is valid. If the guard refuses by a read that is outdated by then, the client that empties the namespace
// tries again.
const thereFor = 500 * time.Millisecond

func newNamespaces(live client.Reader, clock clock.PassiveClock) *namespaces {
	return &namespaces{live: live, clock: clock, there: map[string]time.Time{}, swept: clock.Now()}
}

func (n *namespaces) isTerminating(ctx context.Context, name string) (bool, error) {
	if n.wasThere(name) {
		return false, nil
	}
	reading := n.reading.DoChan(name, func() (any, error) {
		if n.wasThere(name) { // another read ended just before this one
			return false, nil
		}
		// Other requests wait for this read too, so it must outlive the request that started it.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), DefaultAnswerTimeout)
		defer cancel()
		var namespace corev1.Namespace
		err := n.live.Get(ctx, types.NamespacedName{Name: name}, &namespace)
		switch {
		case apierrors.IsNotFound(err):
			return true, nil
		case err != nil:
			return false, fmt.Errorf("reading namespace %s: %w", name, err)
		case namespace.DeletionTimestamp != nil:
			return true, nil
		}
		n.isThere(name)
		return false, nil
	})
	select {
	case read := <-reading:
		if read.Err != nil {
			return false, read.Err
		}
		return read.Val.(bool), nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

func (n *namespaces) wasThere(name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	at, known := n.there[name]
	return known && n.clock.Since(at) < thereFor
}

func (n *namespaces) isThere(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.clock.Now()
	n.there[name] = now
	if now.Sub(n.swept) < thereFor {
		return
	}
	n.swept = now
	for name, at := range n.there {
		if now.Sub(at) >= thereFor {
			delete(n.there, name)
		}
	}
}
