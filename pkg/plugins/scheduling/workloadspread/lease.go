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

// stoppedSuffix follows the identity of the last holder in a lease that it has given up when none of its binds was under way any more. An empty
// holder, which is what client-go leaves, says only that nobody leads: other versions of the scheduler leave it while binds are under way.
const stoppedSuffix = " (stopped, no bind is under way)"

var errNoLease = errors.New("this scheduler process does not hold its lease any more")

// lease says whether this process may bind pods, and until when a bind may happen that was sent before. A process without leader election may always
// bind, and knows nothing of the processes before it.
//
// A process that finds stoppedSuffix in its lease has no bind to wait for. By induction that is true of all processes before the one that wrote it:
// that one held the lease from its first write to its last, had waited for those before it, and sent binds only while it held the lease.
type lease struct {
	clock clock.PassiveClock
	// doubt is how long after it was sent a bind may still happen.
	uncertainPeriod time.Duration

	mu sync.Mutex
	// elected: the leader election is observed.
	elected bool
	leads   bool
	// over: no bind is sent any more.
	stopped bool
	// until is when the lease ends unless it is renewed.
	until time.Time
	// first: there was no lease before. Somebody may have deleted it, so that is no proof yet.
	first bool
	// uncertainUntil is when no bind can happen any more that a process before this one sent, or this one without a certain answer.
	uncertainUntil time.Time
	// underWay are the binds of this process that have been sent and have no answer yet.
	underWay int
}

// Observe returns the lock for the leader election of the scheduler that runs the plugins, which must have been made before. With it the first pod need
// not wait for binds of a process that stopped in order, and no pod is bound after the lease was lost. Without it, and without leader election, the
// first pod waits. If no profile enables the plugin, the lock is returned as it is.
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

// lead takes in that this process leads, if it did not before: after the holder of the lease that the process replaced, of which nothing is known if
// it is empty; or first, if there was no lease.
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

// renewed takes in a write of the lease that began at that time.
func (l *lease) renewed(began time.Time, duration time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until = began.Add(duration)
}

// lost takes in that somebody else holds the lease, or that it is gone. A process that led does not lead again: others may have bound pods meanwhile.
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

// startBind is true if a bind may be sent. Then endBind must be called.
func (l *lease) startBind() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped || l.elected && !l.clock.Now().Before(l.until) {
		return false
	}
	l.underWay++
	return true
}

// endBind takes in that a bind has a certain outcome, or that it may still happen.
func (l *lease) endBind(certain bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.underWay--
	if until := l.clock.Now().Add(l.uncertainPeriod); !certain && until.After(l.uncertainUntil) {
		l.uncertainUntil = until
	}
}

// isFirst is true if there was no lease, until confirmFirst or until it makes no difference.
func (l *lease) isFirst() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first && l.clock.Now().Before(l.uncertainUntil)
}

// confirmFirst says whether there really was no process before this one.
func (l *lease) confirmFirst(first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.first && first {
		l.uncertainUntil = time.Time{}
	}
	l.first = false
}

// doubtful is how long a bind may still happen of which this process does not know what will become.
func (l *lease) uncertainFor() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.uncertainUntil.Sub(l.clock.Now())
}

// stop keeps binds from being sent, and waits until those under way are answered. False if one may still happen, of this process or of one before.
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

// observedLock tells a lease what the leader election reads and writes. Every write replaces what was last read or written and nothing else, because
// the API server compares the resourceVersion. The leader election calls its methods one after the other.
type observedLock struct {
	resourcelock.Interface
	lease *lease
	// holder that the lease had when it was last read or written, empty if there was none.
	holder string
	// seen: there was a lease once.
	seen bool
}

// Get implements resourcelock.Interface. It shows a lease whose holder has stopped as one without a holder, so that it is taken at once.
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

// Update implements resourcelock.Interface. Client-go gives a lease up by an update without a holder.
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

// release gives the lease up. Client-go would also do that to a lease that somebody else holds by now. Whoever leads next waits for binds of this process
// unless it finds that there are none.
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
