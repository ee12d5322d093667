package guard

import (
	"context"
	"sync"
	"time"

	"github.com/berth-project/berth/pkg/panics"
)

// shared reads for many. All who ask while a reading goes on share the next one, so that hundreds cost a few, and nobody is answered by one that began
// before he asked.
type shared[K comparable, V any] struct {
	read func(context.Context, K) (V, error)

	mu sync.Mutex
	// readings has a key for each thing that is being read: what those wait for who have asked since it began, nil if nobody has.
	readings map[K]*reading[V]
}

// reading is what was read, once done is closed. It is not changed.
type reading[V any] struct {
	done  chan struct{}
	value V
	err   error
}

func newShared[K comparable, V any](read func(context.Context, K) (V, error)) *shared[K, V] {
	return &shared[K, V]{read: read, readings: map[K]*reading[V]{}}
}

// ask begins to read, or joins a reading that begins later.
func (s *shared[K, V]) ask(ctx context.Context, key K) *reading[V] {
	s.mu.Lock()
	defer s.mu.Unlock()
	next, going := s.readings[key]
	if next == nil {
		next = &reading[V]{done: make(chan struct{})}
	}
	if going {
		s.readings[key] = next
		return next
	}
	s.readings[key] = nil
	go s.serve(context.WithoutCancel(ctx), key, next)
	return next
}

// serve reads until nobody has asked since the last time. What it reads is for all who wait, so it does not end with the request that has begun it.
func (s *shared[K, V]) serve(ctx context.Context, key K, next *reading[V]) {
	for next != nil {
		readCtx, cancel := context.WithTimeout(ctx, readTimeout)
		next.err = panics.ToError(readCtx, func() (err error) {
			next.value, err = s.read(readCtx, key)
			return err
		})
		cancel()
		close(next.done)
		next = s.next(key)
	}
}

func (s *shared[K, V]) next(key K) *reading[V] {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.readings[key]
	if next == nil {
		delete(s.readings, key)
	} else {
		s.readings[key] = nil
	}
	return next
}

// readTimeout is how long a reading may take. Those who wait for it have given up by then.
const readTimeout = DefaultAnswerTimeout + 2*time.Second

// wait returns what was read.
func (r *reading[V]) wait(ctx context.Context) (V, error) {
	select {
	case <-r.done:
		return r.value, r.err
	case <-ctx.Done():
		var none V
		return none, context.Cause(ctx)
	}
}
