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

// namespaces knows which of them are being deleted. It is asked about every refusal, of which there may be hundreds at a time, and reads once for all
// of them.
type namespaces struct {
	live    client.Reader
	clock   clock.PassiveClock
	reading singleflight.Group

	mu sync.Mutex
	// there says when a namespace was read last and was not being deleted.
	there map[string]time.Time
	swept time.Time
}

// thereFor is how long a namespace needs not be read again. A refusal that comes too late by that is tried again by whoever empties the namespace.
const thereFor = 500 * time.Millisecond

func newNamespaces(live client.Reader, clock clock.PassiveClock) *namespaces {
	return &namespaces{live: live, clock: clock, there: map[string]time.Time{}, swept: clock.Now()}
}

func (n *namespaces) isTerminating(ctx context.Context, name string) (bool, error) {
	if n.wasThere(name) {
		return false, nil
	}
	reading := n.reading.DoChan(name, func() (any, error) {
		if n.wasThere(name) { // somebody's reading ended just before this one
			return false, nil
		}
		// Others wait for it too, so it does not end with the request that has begun it.
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
