package workloadspread

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"
)

const testUncertainPeriod = 10 * time.Second

// leaseServer serves one lease as the API server does: it refuses an update of an outdated version.
type leaseServer struct {
	t      *testing.T
	client *fake.Clientset
	// lease is the stored lease. Nil if there is none.
	lease   *coordinationv1.Lease
	version int
}

func newLeaseServer(t *testing.T) *leaseServer {
	t.Helper()
	s := &leaseServer{t: t, client: fake.NewClientset()}
	resource := coordinationv1.Resource("leases")
	s.client.PrependReactor("*", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
		switch action := action.(type) {
		case clienttesting.CreateAction: // an update is one too
			lease := action.GetObject().(*coordinationv1.Lease)
			_, isUpdate := action.(clienttesting.UpdateActionImpl)
			switch {
			case isUpdate && (s.lease == nil || lease.ResourceVersion != s.lease.ResourceVersion):
				return true, nil, apierrors.NewConflict(resource, lease.Name, errors.New("outdated"))
			case !isUpdate && s.lease != nil:
				return true, nil, apierrors.NewAlreadyExists(resource, lease.Name)
			}
			s.store(lease)
			return true, s.lease.DeepCopy(), nil
		default:
			if s.lease == nil {
				return true, nil, apierrors.NewNotFound(resource, "berth")
			}
			return true, s.lease.DeepCopy(), nil
		}
	})
	return s
}

func (s *leaseServer) store(lease *coordinationv1.Lease) {
	s.version++
	s.lease = lease.DeepCopy()
	s.lease.ResourceVersion = strconv.Itoa(s.version)
}

// holder returns the holder that the lease names. Empty if there is none.
func (s *leaseServer) holder() string {
	if s.lease == nil {
		return ""
	}
	return *s.lease.Spec.HolderIdentity
}

// connection is a process's connection to the lease. While it hangs, requests wait. A mute connection carries out an update but sends no answer.
type connection struct {
	resourcelock.Interface
	hangs, mute bool
}

func (c *connection) pass(ctx context.Context) error {
	for c.hangs {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (c *connection) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	if err := c.pass(ctx); err != nil {
		return nil, nil, err
	}
	return c.Interface.Get(ctx)
}

func (c *connection) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if err := c.pass(ctx); err != nil {
		return err
	}
	return c.Interface.Create(ctx, record)
}

func (c *connection) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if err := c.pass(ctx); err != nil {
		return err
	}
	// LeaseLock remembers the version of the answer. So an update without a version comes from another lock.
	if c.mute {
		c.mute = false
		lost := *c.Interface.(*resourcelock.LeaseLock)
		if err := lost.Update(ctx, record); err != nil {
			return err
		}
		return errors.New("the answer is lost")
	}
	return c.Interface.Update(ctx, record)
}

// process takes part in the leader election as kube-scheduler does.
type process struct {
	*lease
	connection *connection
	// terminate asks the process to end. ended is closed when its leader election has ended.
	terminate context.CancelFunc
	ended     chan struct{}
	// began is the start time. led is when the process began to lead. Zero before that.
	began, led time.Time
}

func (s *leaseServer) process(identity string) *process {
	s.t.Helper()
	return s.processOn(s.connect(identity))
}

func (s *leaseServer) processOn(c *connection) *process {
	s.t.Helper()
	p := &process{connection: c, lease: &lease{clock: clock.RealClock{}, uncertainPeriod: testUncertainPeriod}}
	p.run(s.t, p.observe(c))
	return p
}

func (s *leaseServer) connect(identity string) *connection {
	return &connection{Interface: &resourcelock.LeaseLock{LeaseMeta: metav1.ObjectMeta{Namespace: "berth-system", Name: "berth"},
		Client: s.client.CoordinationV1(), LockConfig: resourcelock.ResourceLockConfig{Identity: identity}}}
}

func (p *process) run(t *testing.T, lock resourcelock.Interface) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	p.terminate, p.ended, p.began = cancel, make(chan struct{}), time.Now()
	go func() {
		defer close(p.ended)
		leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{Lock: lock, ReleaseOnCancel: true,
			LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
			Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) { p.led = time.Now() }, OnStoppedLeading: func() {}}})
	}()
	synctest.Wait()
}

func (p *process) end() {
	p.terminate()
	<-p.ended
}

// awaitLead returns how long after its start the process began to lead.
func (p *process) awaitLead(t *testing.T) time.Duration {
	t.Helper()
	for range 600 {
		if synctest.Wait(); !p.led.IsZero() {
			return p.led.Sub(p.began)
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatal("does not lead after a minute")
	return 0
}

func (p *process) awaitEnd(t *testing.T) {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(time.Minute):
		t.Error("goes on for a minute")
		p.end()
	}
}

// Call expectDoubt within 100 ms after the process began to lead.
func (p *process) expectDoubt(t *testing.T, want time.Duration) {
	t.Helper()
	if got := max(p.uncertainFor(), 0); got > want || got < want-100*time.Millisecond {
		t.Errorf("a bind may still happen for %s, want %s", got, want)
	}
}

func (p *process) expectBind(t *testing.T, want bool) {
	t.Helper()
	got := p.startBind()
	if got {
		p.endBind(true)
	}
	if got != want {
		t.Errorf("may bind is %t, want %t", got, want)
	}
}

func inElection(t *testing.T, name string, test func(*leaseServer)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { test(newLeaseServer(t)) })
	})
}

func TestTheLeaseProvesThatNoBindOfAPredecessorIsUnderWay(t *testing.T) {
	inElection(t, "nobody held it, and nobody has bound a pod", func(s *leaseServer) {
		t := s.t
		p := s.process("p")
		p.awaitLead(t)
		p.expectDoubt(t, testUncertainPeriod)
		p.confirmFirst(true)
		p.expectDoubt(t, 0)
		p.end()
	})
	inElection(t, "nobody held it, and somebody has bound pods", func(s *leaseServer) {
		t := s.t
		p := s.process("p")
		p.awaitLead(t)
		p.confirmFirst(false)
		p.confirmFirst(true)
		p.expectDoubt(t, testUncertainPeriod)
		p.end()
	})
	inElection(t, "the holder stopped, and the next process leads at once", func(s *leaseServer) {
		t := s.t
		p := s.process("p")
		p.awaitLead(t)
		p.confirmFirst(true)
		p.expectBind(t, true)
		p.end()
		if got := s.holder(); got != "p"+stoppedSuffix {
			t.Errorf("the holder is %q", got)
		}
		next := s.process("next")
		if took := next.awaitLead(t); took != 0 {
			t.Errorf("led after %s", took)
		}
		next.expectDoubt(t, 0)
		next.end()
	})
	inElection(t, "the holder stopped, and a standby leads within its retry period", func(s *leaseServer) {
		t := s.t
		p, standby := s.process("p"), s.process("standby")
		p.awaitLead(t)
		p.confirmFirst(true)
		time.Sleep(time.Second)
		ended := time.Now()
		p.end()
		standby.awaitLead(t)
		if took := standby.led.Sub(ended); took > 5*time.Second {
			t.Errorf("led %s after the end of the leader", took)
		}
		standby.expectDoubt(t, 0)
		standby.end()
	})
	inElection(t, "the holder was killed", func(s *leaseServer) {
		t := s.t
		p := s.process("p")
		p.awaitLead(t)
		p.confirmFirst(true)
		p.connection.hangs = true
		next := s.process("next")
		if took := next.awaitLead(t); took < 15*time.Second {
			t.Errorf("led after %s", took)
		}
		next.expectDoubt(t, testUncertainPeriod)
		p.awaitEnd(t)
		next.end()
	})
	inElection(t, "the doubt passes while nobody asks", func(s *leaseServer) {
		t := s.t
		p := s.process("p")
		p.awaitLead(t)
		time.Sleep(testUncertainPeriod)
		p.expectDoubt(t, 0)
		p.end()
	})
	inElection(t, "the holder was a scheduler that does not say whether its binds are over", func(s *leaseServer) {
		t := s.t
		other := &process{connection: s.connect("other")}
		other.run(t, other.connection)
		other.end()
		if got := s.holder(); got != "" {
			t.Fatalf("the holder is %q", got)
		}
		next := s.process("next")
		next.awaitLead(t)
		next.expectDoubt(t, testUncertainPeriod)
		next.end()
	})
	inElection(t, "the answer to the first update was lost", func(s *leaseServer) {
		t := s.t
		p := s.process("p")
		p.awaitLead(t)
		p.confirmFirst(true)
		p.end()
		connection := s.connect("next")
		connection.mute = true
		next := s.processOn(connection)
		next.awaitLead(t)
		next.expectDoubt(t, testUncertainPeriod)
		next.expectBind(t, true)
		next.end()
	})
	inElection(t, "two found that the holder had stopped", func(s *leaseServer) {
		t := s.t
		p := s.process("p")
		p.awaitLead(t)
		p.confirmFirst(true)
		p.end()
		first, second := s.connect("first"), &lease{clock: clock.RealClock{}, uncertainPeriod: testUncertainPeriod}
		late := second.observe(s.connect("second"))
		for _, lock := range []resourcelock.Interface{first, late} {
			if _, _, err := lock.Get(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if err := first.Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "first", LeaseDurationSeconds: 15}); err != nil {
			t.Fatal(err)
		}
		if err := late.Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "second", LeaseDurationSeconds: 15}); !apierrors.IsConflict(err) {
			t.Errorf("the second update has error %v", err)
		}
		if second.leads || second.startBind() {
			t.Error("the second leads")
		}
	})
}

func TestALeaseIsGivenUpAsSettledOnlyIfItIs(t *testing.T) {
	// lead starts a process that leads. The binds of its predecessors are settled.
	lead := func(t *testing.T, s *leaseServer) *process {
		t.Helper()
		p := s.process("p")
		p.awaitLead(t)
		p.confirmFirst(true)
		return p
	}
	expectHolder := func(t *testing.T, s *leaseServer, want string) {
		t.Helper()
		if got := s.holder(); got != want {
			t.Errorf("the holder is %q, want %q", got, want)
		}
	}
	inElection(t, "after the last bind has its answer", func(s *leaseServer) {
		t := s.t
		p := lead(t, s)
		if !p.startBind() {
			t.Fatal("may not bind")
		}
		p.terminate()
		time.Sleep(3 * time.Second)
		expectHolder(t, s, "p")
		p.expectBind(t, false)
		p.endBind(true)
		p.awaitEnd(t)
		expectHolder(t, s, "p"+stoppedSuffix)
	})
	inElection(t, "not if a bind ended without a certain answer", func(s *leaseServer) {
		t := s.t
		p := lead(t, s)
		p.startBind()
		p.endBind(false)
		time.Sleep(testUncertainPeriod / 2)
		p.end()
		expectHolder(t, s, "")
		next := s.process("next")
		next.awaitLead(t)
		next.expectDoubt(t, testUncertainPeriod)
		next.end()
	})
	inElection(t, "but when it cannot happen any more", func(s *leaseServer) {
		t := s.t
		p := lead(t, s)
		p.startBind()
		p.endBind(false)
		time.Sleep(testUncertainPeriod)
		p.end()
		expectHolder(t, s, "p"+stoppedSuffix)
	})
	inElection(t, "not if a bind has no answer for long", func(s *leaseServer) {
		t := s.t
		p := lead(t, s)
		p.startBind()
		began := time.Now()
		p.end()
		expectHolder(t, s, "")
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("ended after %s", took)
		}
	})
	inElection(t, "not while a bind of a predecessor may happen", func(s *leaseServer) {
		t := s.t
		killed := lead(t, s)
		killed.connection.hangs = true
		p := s.process("next")
		p.awaitLead(t)
		time.Sleep(testUncertainPeriod / 2)
		p.end()
		expectHolder(t, s, "")
		<-killed.ended
	})
	inElection(t, "not by one that holds it no longer", func(s *leaseServer) {
		t := s.t
		p := lead(t, s)
		p.connection.hangs = true // from now on it cannot renew the lease
		next := s.process("next")
		next.awaitLead(t)
		// The process is in the middle of releasing the lease, and reads it now. Client-go would write it.
		p.connection.hangs = false
		p.awaitEnd(t)
		expectHolder(t, s, "next")
		next.end()
	})
}

func TestNoPodIsBoundWithoutTheLease(t *testing.T) {
	inElection(t, "by a process that waits for it", func(s *leaseServer) {
		t := s.t
		p, standby := s.process("p"), s.process("standby")
		standby.expectBind(t, false)
		standby.end()
		p.end()
	})
	inElection(t, "by one that could not renew it", func(s *leaseServer) {
		t := s.t
		p := s.process("p")
		p.awaitLead(t)
		p.connection.hangs = true
		next := s.process("next")
		for next.led.IsZero() {
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
			if p.startBind() {
				if p.endBind(true); !next.led.IsZero() {
					t.Fatal("two processes bind")
				}
			}
		}
		p.awaitEnd(t)
		next.end()
	})
	inElection(t, "by one that finds somebody else's name in it", func(s *leaseServer) {
		t := s.t
		p := s.process("p")
		p.awaitLead(t)
		other := s.lease.DeepCopy()
		*other.Spec.HolderIdentity = "other"
		s.store(other)
		time.Sleep(3 * time.Second)
		p.expectBind(t, false)
		p.awaitEnd(t)
	})
	inElection(t, "nor is it taken again when the other has stopped", func(s *leaseServer) {
		t := s.t
		p := s.process("p")
		p.awaitLead(t)
		other := s.lease.DeepCopy()
		*other.Spec.HolderIdentity = "other" + stoppedSuffix
		s.store(other)
		p.awaitEnd(t)
		p.expectBind(t, false)
		if got := s.holder(); got != *other.Spec.HolderIdentity {
			t.Errorf("the holder is %q", got)
		}
	})
	inElection(t, "by a leader whose lease was deleted, and a standby that had seen it waits", func(s *leaseServer) {
		t := s.t
		p, standby := s.process("p"), s.process("standby")
		p.awaitLead(t)
		s.lease = nil
		standby.awaitLead(t)
		standby.confirmFirst(true)
		if rest := standby.uncertainFor(); rest <= 0 {
			t.Errorf("takes the lease for new, and waits %s", rest)
		}
		p.awaitEnd(t)
		p.expectBind(t, false)
		standby.end()
	})
	t.Run("unless there is no leader election", func(t *testing.T) {
		l := lease{clock: clock.RealClock{}}
		if !l.startBind() {
			t.Error("may not bind")
		}
	})
}

func TestTheLockIsObservedOnceThePluginsAreThere(t *testing.T) {
	lock := &connection{}
	var plugins Family
	if got := plugins.Observe(lock); got != resourcelock.Interface(lock) {
		t.Error("it is observed without plugins")
	}
	l := &lease{clock: clock.RealClock{}}
	plugins.core.Store(&core{lease: l})
	if got, ok := plugins.Observe(lock).(*observedLock); !ok || got.lease != l || !l.elected {
		t.Errorf("the lock is %+v", got)
	}
}
