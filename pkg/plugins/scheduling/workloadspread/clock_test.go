package workloadspread

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"
	"unsafe"

	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"
)

// grantedLock grants every write of a lease.
type grantedLock struct{ resourcelock.Interface }

func (grantedLock) Create(context.Context, resourcelock.LeaderElectionRecord) error { return nil }

// TestALeaseGoesByTheMonotonicClock: a process must not believe in its lease for longer because the wall clock jumps back, nor give out slots before the barrier because it jumps ahead.
func TestALeaseGoesByTheMonotonicClock(t *testing.T) {
	l := &lease{clock: clock.RealClock{}, uncertainPeriod: time.Minute}
	if err := l.observe(grantedLock{}).Create(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "me", LeaseDurationSeconds: 15}); err != nil {
		t.Fatal(err)
	}
	for name, at := range map[string]time.Time{"the end of the lease": l.until, "the end of the barrier": l.uncertainUntil} {
		if !strings.Contains(at.String(), " m=") {
			t.Errorf("%s is %s, without a reading of the monotonic clock", name, at)
		}
	}
	if !l.startBind() {
		t.Error("a process that holds its lease may not bind")
	}
}

// TestALeaseEndsWhileAVirtualMachineIsPaused: the monotonic clock stands still meanwhile, and others hold the lease.
func TestALeaseEndsWhileAVirtualMachineIsPaused(t *testing.T) {
	l := &lease{clock: clock.RealClock{}, uncertainPeriod: time.Minute}
	if err := l.observe(grantedLock{}).Create(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "me", LeaseDurationSeconds: 15}); err != nil {
		t.Fatal(err)
	}
	until := l.until
	l.until = laterOnTheWall(until, -time.Minute)
	if shift := until.Round(0).Sub(l.until.Round(0)); shift != time.Minute || !l.until.Equal(until) {
		t.Fatalf("%s is %s with another wall clock", l.until, until)
	}
	if l.startBind() {
		t.Error("a process whose lease ended a minute ago may bind")
	}
}

// laterOnTheWall changes the wall clock's reading of a time by whole seconds, and not that of the monotonic clock. Package time has no function for that: only clocks that disagree do it.
func laterOnTheWall(at time.Time, by time.Duration) time.Time {
	const secondsAt = 30 // of the first word of a time with both readings, which begins with nanoseconds
	*(*uint64)(unsafe.Pointer(&at)) += uint64(by/time.Second) << secondsAt
	return at
}

// TestADoubtAboutABindGoesByTheMonotonicClock: a slot must not be free while its bind may still happen because the wall clock jumps ahead.
func TestADoubtAboutABindGoesByTheMonotonicClock(t *testing.T) {
	h := newHarbour(t, time.Second)
	h.answer = func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	h.expectUncertain(h.bind())
	if until := h.book.ledger.UncertainUntil(h.pod.UID); !strings.Contains(until.String(), " m=") {
		t.Errorf("the doubt ends at %s, without a reading of the monotonic clock", until)
	}
}
