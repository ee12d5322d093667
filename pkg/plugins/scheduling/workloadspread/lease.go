package workloadspread

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"
)

// stoppedSuffix follows the identity of the last holder in a lease that the holder released when none of its binds was under way any more. An empty
// holder, which client-go writes, says only that nobody leads: other versions of the scheduler write it while binds are under way.
const stoppedSuffix = " (stopped, no bind is under way)"

var errNoLease = errors.New("this scheduler process does not hold its lease any more")

// lease says whether this process may bind pods, and until when a bind that was sent earlier may still happen. A process without leader election may
// always bind, and knows nothing about earlier processes.
//
// A process that finds stoppedSuffix in its lease has no bind to wait for. By induction that is true of all processes before the one that wrote it:
// that one held the lease from its first write to its last, had waited for those before it, and sent binds only while it held the lease.
type lease struct {
	clock clock.PassiveClock
	// uncertainPeriod is how long after it was sent a bind may still happen.
	uncertainPeriod time.Duration

	mu sync.Mutex
	// elected is true if the leader election is observed.
	elected bool
	leads   bool
	// stopped is true if this process sends no bind any more.
	stopped bool
	// until is when the lease ends unless it is renewed.
	until time.Time
	// first is true if no lease existed. That is no proof yet that there was no earlier process: somebody may have deleted the lease.
	first bool
	// uncertainUntil is when no uncertain bind can happen any more, of an earlier process or of this one.
	uncertainUntil time.Time
	// underWay are the binds of this process that were sent and have no answer yet.
	underWay int
}

// Observe wraps the lock of the scheduler's leader election. The plugins must have been made before. With it the first pod need not wait for binds of
// a process that stopped in order, and no pod is bound after the lease was lost. Without it, or without leader election, the first pod waits. If no
// profile enables the plugin, Observe returns the lock as it is.
func (f *Family) Observe(lock resourcelock.Interface) resourcelock.Interface {
	c := f.core.Load()
	if c == nil {
		return lock
	}
	return c.lease.observe(lock)
}

func (l *lease) observe(lock resourcelock.Interface) resourcelock.Interface {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.elected = true
	return &observedLock{Interface: lock, lease: l}
}

// lead records that this process leads, if it did not before. Replaced is the holder of the lease before, of which nothing is known if it is empty.
// First is true if no lease existed.
func (l *lease) lead(replaced string, first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leads {
		return
	}
	l.leads, l.first = true, first
	if !strings.HasSuffix(replaced, stoppedSuffix) {
		l.uncertainUntil = l.clock.Now().Add(l.uncertainPeriod)
	}
}

// renewed records a write of the lease that began at that time.
func (l *lease) renewed(began time.Time, duration time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until = began.Add(duration)
}

// lost records that the lease is gone or has another holder. A process that led does not lead again: others may have bound pods meanwhile.
func (l *lease) lost() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = l.stopped || l.leads
}

func (l *lease) isStopped() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stopped
}

// startBind is true if a bind may be sent. The caller must then call endBind.
func (l *lease) startBind() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped || l.elected && l.hasEnded() {
		return false
	}
	l.underWay++
	return true
}

// hasEnded goes by both clocks of the machine: somebody may set the wall clock back, and the monotonic clock stands still while a virtual machine is paused.
func (l *lease) hasEnded() bool {
	now := l.clock.Now()
	return !now.Before(l.until) || !now.Round(0).Before(l.until.Round(0))
}

// endBind records whether the bind has a certain outcome, or may still happen.
func (l *lease) endBind(certain bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.underWay--
	if until := l.clock.Now().Add(l.uncertainPeriod); !certain && until.After(l.uncertainUntil) {
		l.uncertainUntil = until
	}
}

// isFirst is true if no lease existed, until confirmFirst is called or uncertainUntil has passed.
func (l *lease) isFirst() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first && l.clock.Now().Before(l.uncertainUntil)
}

// confirmFirst records whether this is really the first process.
func (l *lease) confirmFirst(first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.first && first {
		l.uncertainUntil = time.Time{}
	}
	l.first = false
}

// uncertainFor is how long an uncertain bind may still happen.
func (l *lease) uncertainFor() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.uncertainUntil.Sub(l.clock.Now())
}

// stop prevents further binds and waits until those under way are answered. It returns false if a bind may still happen, of this process or an
// earlier one.
func (l *lease) stop(ctx context.Context) bool {
	l.mu.Lock()
	l.stopped = true
	l.mu.Unlock()
	return wait.PollUntilContextCancel(ctx, syncPoll, true, func(context.Context) (bool, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.underWay == 0, nil
	}) == nil && l.uncertainFor() <= 0
}

// observedLock tells a lease what the leader election reads and writes. A write replaces exactly what was last read or written, because the API
// server compares the resourceVersion. The leader election calls the methods one after the other.
type observedLock struct {
	resourcelock.Interface
	lease *lease
	// holder of the lease when it was last read or written. Empty if there was none.
	holder string
	// seen is true if a lease has existed.
	seen bool
}

// Get implements resourcelock.Interface. If the holder has stopped, it shows a lease without a holder, so that the lease is taken at once.
func (o *observedLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := o.Interface.Get(ctx)
	switch {
	case err == nil:
		o.holder, o.seen = record.HolderIdentity, true
		if strings.HasSuffix(o.holder, stoppedSuffix) {
			record.HolderIdentity = ""
		}
	case apierrors.IsNotFound(err):
		o.holder = ""
	default:
		return nil, nil, err
	}
	if o.holder != o.Identity() {
		o.lease.lost()
	}
	return record, raw, err
}

// Create implements resourcelock.Interface.
func (o *observedLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return o.take(ctx, record, o.Interface.Create)
}

// Update implements resourcelock.Interface. Client-go releases a lease by an update without a holder.
func (o *observedLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if record.HolderIdentity == "" {
		return o.release(ctx, record)
	}
	return o.take(ctx, record, o.Interface.Update)
}

func (o *observedLock) take(ctx context.Context, record resourcelock.LeaderElectionRecord, write func(context.Context, resourcelock.LeaderElectionRecord) error) error {
	if o.lease.isStopped() {
		return errNoLease
	}
	began := o.lease.clock.Now()
	if err := write(ctx, record); err != nil {
		return err
	}
	o.lease.lead(o.holder, !o.seen)
	o.lease.renewed(began, time.Duration(record.LeaseDurationSeconds)*time.Second)
	o.holder, o.seen = record.HolderIdentity, true
	return nil
}

// release releases the lease. Client-go would also release a lease that somebody else holds by now. The next leader waits for binds of this process
// unless the lease says that there are none.
func (o *observedLock) release(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	// Half of the time is left for the write itself.
	half := ctx
	if deadline, limited := ctx.Deadline(); limited {
		var cancel context.CancelFunc
		half, cancel = context.WithTimeout(ctx, deadline.Sub(o.lease.clock.Now())/2)
		defer cancel()
	}
	settled := o.lease.stop(half)
	if o.holder != o.Identity() {
		return fmt.Errorf("the lease has another holder, %q, and stays as it is", o.holder)
	}
	if settled {
		record.HolderIdentity = o.Identity() + stoppedSuffix
	}
	return o.Interface.Update(ctx, record)
}
