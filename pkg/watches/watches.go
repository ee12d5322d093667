// Package watches tells when a watch of a kind is interrupted. When the definition of a kind changes, as when Berth is
// installed, API servers end all watches of the kind and refuse new ones for a moment. A reflector tries again within a
// minute. Until then nobody learns of a new object.
package watches

import (
	"context"
	"reflect"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// Tell returns a function that begins watches like begin, and tells when each watch begins and when it ends.
func Tell(begin cache.WatchFuncWithContext, tell func(open bool)) cache.WatchFuncWithContext {
	return func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
		w, err := begin(ctx, options)
		if err != nil {
			return nil, err
		}
		tell(true)
		return endingWatch{w, tell}, nil
	}
}

// endingWatch tells when the watch is stopped. A reflector stops each watch, also one that the API server has ended.
type endingWatch struct {
	watch.Interface
	tell func(open bool)
}

func (w endingWatch) Stop() {
	w.Interface.Stop()
	w.tell(false)
}

// CatchUp is how long a new watch has to show what happened before it began. The API server sends that first.
const CatchUp = 500 * time.Millisecond

// State says whether a watch is interrupted. It is not before the first watch has begun.
type State struct {
	clock clock.PassiveClock

	mu          sync.Mutex
	open, ended bool
	since       time.Time
}

// NewState returns the state of a watch that has not begun.
func NewState(clock clock.PassiveClock) *State { return &State{clock: clock} }

// Tell says that the watch has begun or ended.
func (s *State) Tell(open bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open, s.ended, s.since = open, s.ended || !open, s.clock.Now()
}

// Interrupted is true from the end of a watch until the next one has had time to catch up.
func (s *State) Interrupted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended && (!s.open || s.clock.Since(s.since) < CatchUp)
}

// NewInformer is for the options of a cache: the state is that of its watch of this kind.
func (s *State) NewInformer(kind runtime.Object) func(cache.ListerWatcher, runtime.Object, time.Duration, cache.Indexers) cache.SharedIndexInformer {
	return func(from cache.ListerWatcher, object runtime.Object, resync time.Duration, indexers cache.Indexers) cache.SharedIndexInformer {
		if reflect.TypeOf(object) == reflect.TypeOf(kind) {
			listWatch := from.(*cache.ListWatch) // of controller-runtime
			listWatch.WatchFuncWithContext = Tell(listWatch.WatchFuncWithContext, s.Tell)
		}
		return cache.NewSharedIndexInformer(from, object, resync, indexers)
	}
}
