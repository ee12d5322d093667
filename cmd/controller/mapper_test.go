package main

import (
	"errors"
	"fmt"
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
	k := &kinds{below, cache.NewLRUExpireCacheWithClock(mostUnserved, clock)}
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
