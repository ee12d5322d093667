package guard

import (
	"context"
	"sync"
	"time"

	"github.com/berth-project/berth/pkg/panics"
)

// shared lets many requests share reads. All requests that ask during a read share the next one. So hundreds of requests cost a few reads, and no
// request gets the result of a read that began before it asked.
type shared[K comparable, V any] struct {
	read func(context.Context, K) (V, error)

	mu sync.Mutex
	// readings has a key for each thing that is being read. The value is the next read, for requests that have asked since the current one began. It is
	// nil if there are none.
	readings map[K]*reading[V]
}

// reading has the result of a read once done is closed. Nobody changes it afterwards.
type reading[V any] struct {
	done  chan struct{}
	value V
	err   error
}

func newShared[K comparable, V any](read func(context.Context, K) (V, error)) *shared[K, V] {
	return &shared[K, V]{read: read, readings: map[K]*reading[V]{}}
}

// ask starts a read, or joins one that starts later.
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

// serve reads until nobody has asked during the last read. All requests that wait share the result, so a read must outlive the request that started it.
func (s *shared[K, V]) serve(ctx context.Context, key K, next *reading[V]) {
	for next != nil {
		readCtx, cancel := context.WithTimeout(ctx, readTimeout)
		next.err = panics.ToError(readCtx, func() (err error) {
			next.value, err = s.read(readCtx, key)
			return err
		})
		cancel()
		close(next.done)
		s.mu.Lock()
		if next = s.readings[key]; next == nil {
			delete(s.readings, key)
		} else {
			s.readings[key] = nil
		}
		s.mu.Unlock()
	}
}

// readTimeout is how long one read may take. By then, the requests that wait for it have given up.
const readTimeout = defaultAnswerTimeout + 2*time.Second

// wait returns the result of the read, or an error if the context ends first.
func (r *reading[V]) wait(ctx context.Context) (V, error) {
	select {
	case <-r.done:
		return r.value, r.err
	case <-ctx.Done():
		var none V
		return none, context.Cause(ctx)
	}
}
