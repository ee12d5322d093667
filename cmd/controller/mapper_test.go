package main

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/cache"
	clocktesting "k8s.io/utils/clock/testing"
)

// asked is a mapper that counts questions.
type asked struct {
	meta.RESTMapper
	times int
	err   error
}

func (a *asked) RESTMapping(kind schema.GroupKind, _ ...string) (*meta.RESTMapping, error) {
	a.times++
	return &meta.RESTMapping{GroupVersionKind: kind.WithVersion("v1")}, a.err
}

func TestAKindThatIsNotServedIsAskedAboutOnceInAWhile(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(1000, 0))
	below := &asked{err: &meta.NoKindMatchError{}}
	k := &kinds{RESTMapper: below, unserved: cache.NewLRUExpireCacheWithClock(mostUnserved, clock)}
	ask := func(kind string, versions ...string) error {
		_, err := k.RESTMapping(schema.GroupKind{Group: "example.com", Kind: kind}, versions...)
		return err
	}
	for range 100 {
		if err := ask("None", "v1"); !meta.IsNoMatchError(err) {
			t.Fatalf("got %v", err)
		}
	}
	if below.times != 1 {
		t.Errorf("the API server was asked %d times", below.times)
	}
	if _ = ask("None", "v2"); below.times != 2 {
		t.Error("another version is another question")
	}
	clock.Step(unservedFor + time.Second)
	below.err = nil
	if err := ask("None", "v1"); err != nil {
		t.Errorf("it is served now: %v", err)
	}
	below.times, below.err = 0, errors.New("the API server is away")
	for range 2 {
		_ = ask("Other") // what it answers does not matter
	}
	if below.times != 2 {
		t.Error("an error is no answer to remember")
	}
	below.err = &meta.NoKindMatchError{}
	for i := range 2 * mostUnserved {
		_ = ask(fmt.Sprint(i)) // what it answers does not matter
	}
	if n := len(k.unserved.Keys()); n > mostUnserved {
		t.Errorf("%d kinds are remembered", n)
	}
}

// busy is a mapper that looks for kinds in group example.com until the end of the test, under the lock that it needs
// for each answer.
type busy struct {
	meta.RESTMapper
	mu       sync.Mutex
	looking  chan struct{}
	finished <-chan struct{}
}

func (b *busy) RESTMapping(kind schema.GroupKind, _ ...string) (*meta.RESTMapping, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if kind.Group == "example.com" {
		close(b.looking)
		<-b.finished
		return nil, &meta.NoKindMatchError{GroupKind: kind}
	}
	return &meta.RESTMapping{GroupVersionKind: kind.WithVersion("v1")}, nil
}

// TestKindsThatAreServedDoNotWaitForOthers: a tenant may name a thousand made-up kinds as the owners of its pods.
func TestKindsThatAreServedDoNotWaitForOthers(t *testing.T) {
	finished := make(chan struct{})
	below := &busy{looking: make(chan struct{}), finished: finished}
	k := &kinds{RESTMapper: below, unserved: cache.NewLRUExpireCache(mostUnserved)}
	ask := func() error {
		mapping, err := k.RESTMapping(schema.GroupKind{Kind: "Pod"}, "v1")
		if err == nil && mapping.GroupVersionKind.Kind != "Pod" {
			return fmt.Errorf("the mapping of %s", mapping.GroupVersionKind)
		}
		return err
	}
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	var looking sync.WaitGroup
	looking.Go(func() { _, _ = k.RESTMapping(schema.GroupKind{Group: "example.com", Kind: "Made-up"}, "v1") })
	<-below.looking
	answered := make(chan error, 1)
	looking.Go(func() { answered <- ask() })
	select {
	case err := <-answered:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("a kind that is served waits until the API server has answered about another")
	}
	close(finished)
	looking.Wait()
}
