package panics

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
)

func TestAPanicIsAnError(t *testing.T) {
	if err := ToError(t.Context(), func() error { panic("no such pod") }); err == nil || !strings.Contains(err.Error(), "no such pod") {
		t.Errorf("got %v", err)
	}
	failure := errors.New("failure")
	if err := ToError(t.Context(), func() error { return failure }); !errors.Is(err, failure) {
		t.Errorf("got %v", err)
	}
	var group errgroup.Group
	Go(t.Context(), &group, func() error { panic("no such pod") })
	Go(t.Context(), &group, func() error { return nil })
	if err := group.Wait(); err == nil || !strings.Contains(err.Error(), "no such pod") {
		t.Errorf("got %v", err)
	}
}
