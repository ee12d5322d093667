package workloadspread

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	testingclock "k8s.io/utils/clock/testing"

	"github.com/berth-project/berth/test/testkit/worlds"
)

const (
	// instant is the step of time in the model. All times of the model are multiples of it. Steps in the same instant may come in any order.
	instant = defaultBindTimeout / 5
	// leaseDuration is shorter than anybody would make it, so that there are few states. No step depends on its length.
	leaseDuration = 3 * instant
)

// barrier is a model of a take-over: process a leads and sends a bind for the last slot. Process b takes over at the earliest time that the lease
// allows, waits, reads the bound pods, and gives out the slot if the read shows it free. The leases of both processes are the real ones.
//
// A bind has less than bindTimeout to arrive at the API server, from the moment before process a checked its lease, and again less than bindTimeout to
// be committed. So the last instant in which it may be committed is two instants before the barrier ends. Any step may take any time: a process may be
// suspended anywhere. Once in a history the clocks of process a disagree: the monotonic clock stands still because the virtual machine is paused, or somebody sets the wall clock
// back. The machine is not paused between the check of the lease and the answer to the bind: nothing could stop that bind.
type barrier struct {
	clock *testingclock.FakeClock
	now   int
	// onA are the clocks of process a, and nowOnA what its monotonic clock shows.
	onA    *strayClock
	nowOnA int
	// paused is true while the machine of process a is. strayed is true once its clocks have disagreed.
	paused, strayed bool
	a, b            *lease
	// holder of the stored lease, and when it was last written.
	holder  string
	written int
	// began is when process a began the renewal that is under way. Zero is none. renewed is true once the renewal is stored.
	began   time.Time
	renewed bool
	// mayRenew is false after a renewal: one is enough.
	mayRenew bool
	bind     bindStep
	// started is when the bind was started, by the monotonic clock of process a, and arrived when the API server got it.
	started, arrived int
	// waits is true as long as process a waits for the answer.
	waits   bool
	crashed bool
	// given is true once process b has given out the slot.
	given bool
}

// bindStep is how far the bind of process a is.
type bindStep int

const (
	notStarted bindStep = iota
	started
	checked
	sent
	underWay
	committed
	over
)

// strayClock has a wall clock that is ahead of its monotonic clock, or behind.
type strayClock struct {
	*testingclock.FakeClock
	ahead time.Duration
}

func (c *strayClock) Now() time.Time { return laterOnTheWall(c.FakeClock.Now(), c.ahead) }

func newBarrier(period time.Duration) *barrier {
	epoch := time.Now() // with a reading of the monotonic clock
	w := &barrier{clock: testingclock.NewFakeClock(epoch), onA: &strayClock{FakeClock: testingclock.NewFakeClock(epoch)}, holder: "a", mayRenew: true}
	w.a = &lease{clock: w.onA, uncertainPeriod: period, elected: true}
	w.b = &lease{clock: w.clock, uncertainPeriod: period, elected: true}
	w.a.lead("", true)
	w.a.confirmFirst(true)
	w.a.renewed(w.onA.Now(), leaseDuration)
	return w
}

// elapsed is true if as much time has passed since an instant.
func (w *barrier) elapsed(since int, d time.Duration) bool {
	return time.Duration(w.now-since)*instant >= d
}

// timedOut is true if process a has waited for its bind for bindTimeout.
func (w *barrier) timedOut() bool {
	return time.Duration(w.nowOnA-w.started)*instant >= defaultBindTimeout
}

// Moves implements worlds.World.
func (w *barrier) Moves() (moves []step) {
	add := func(can bool, move step) {
		if can {
			moves = append(moves, move)
		}
	}
	if w.bind == over || w.bind == committed && !w.waits {
		return nil // the slot is taken before any read, or stays free
	}
	acts, leads := !w.crashed && !w.paused, w.b.leads
	runs := acts && !w.a.isStopped()
	add(true, "time passes")
	add(acts && !w.strayed && !w.waits, "the machine of a is paused")
	add(w.paused, "the machine of a goes on")
	add(acts && !w.strayed, "the wall clock of a is set back")
	add(runs && w.mayRenew, "a begins to renew its lease")
	add(!w.began.IsZero() && !w.renewed && w.holder == "a", "the renewal is stored")
	add(acts && w.renewed, "a learns of its renewal")
	add(runs && w.bind == notStarted, "a starts a bind")
	add(acts && w.bind == started, "a checks its lease")
	add(acts && w.bind == checked, "a sends the bind")
	add(w.bind == sent, "the bind arrives")
	add(w.bind == underWay, "the bind is committed")
	add(acts && w.waits && w.bind == committed, "a hears of the bind")
	add(acts && w.waits && w.bind > checked && w.timedOut(), "a gives the bind up")
	add(runs && w.holder == "a", "a stops in order")
	add(!w.crashed, "a crashes")
	add(!leads && (w.holder != "a" || w.elapsed(w.written, leaseDuration)), "b takes the lease")
	add(leads && !w.given && w.b.uncertainFor() <= 0, "b reads the pods")
	return moves
}

type step string

func (s step) String() string { return string(s) }

// Do implements worlds.World.
func (w *barrier) Do(move step) error {
	switch move {
	case "time passes":
		w.now++
		w.clock.Step(instant)
		if w.paused {
			w.onA.ahead += instant
		} else {
			w.nowOnA++
			w.onA.Step(instant)
		}
		if w.bind == sent && w.timedOut() || w.bind == underWay && w.elapsed(w.arrived, defaultBindTimeout) {
			w.bind = over
		}
	case "the machine of a is paused":
		w.paused, w.strayed = true, true
	case "the machine of a goes on":
		w.paused = false
	case "the wall clock of a is set back":
		w.onA.ahead, w.strayed = -leaseDuration, true
	case "a begins to renew its lease":
		w.began, w.mayRenew = w.onA.Now(), false
	case "the renewal is stored":
		w.renewed, w.written = true, w.now
	case "a learns of its renewal":
		w.a.renewed(w.began, leaseDuration)
		w.began, w.renewed = time.Time{}, false
	case "a starts a bind":
		w.bind, w.started = started, w.nowOnA
	case "a checks its lease":
		w.bind = over
		if w.a.startBind() {
			w.bind, w.waits = checked, true
		}
	case "a sends the bind":
		w.bind = sent
		if w.timedOut() {
			w.bind = over // the context has ended
		}
	case "the bind arrives":
		w.bind, w.arrived = underWay, w.now
	case "the bind is committed":
		w.bind = committed
	case "a hears of the bind":
		w.waits = false
		w.a.endBind(true)
	case "a gives the bind up":
		w.waits = false
		w.a.endBind(false)
	case "a stops in order":
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		if w.holder, w.written = "", w.now; w.a.stop(ended) {
			w.holder = "a" + stoppedSuffix
		}
	case "a crashes":
		w.crashed = true
	case "b takes the lease":
		w.b.lead(w.holder, false)
		w.holder, w.written = "b", w.now
	case "b reads the pods":
		w.given = w.bind != committed
	}
	if w.given && w.bind == committed {
		return errors.New("the slot is given out twice: process b read the pods before the last bind of process a was committed")
	}
	return nil
}

// Rest implements worlds.World. A take-over has a rule for its steps only.
func (w *barrier) Rest() (bool, error) { return false, nil }

// Spent implements worlds.World.
func (w *barrier) Spent() bool { return false }

// Key implements worlds.World. Times are relative in it, and those that decide nothing any more are left out. So there are finitely many states,
// although time has no end.
func (w *barrier) Key() string {
	ago := func(now, since int, atMost time.Duration) time.Duration {
		return min(time.Duration(now-since)*instant, atMost)
	}
	left := func(until, now time.Time) time.Duration { return max(until.Sub(now), 0) }
	onA := w.onA.Now()
	leftOnA := func(until time.Time) string { // by both clocks
		return fmt.Sprint(left(until, onA), " ", left(until.Round(0), onA.Round(0)))
	}
	key := fmt.Sprint(w.holder, w.renewed, w.mayRenew, w.paused, w.strayed, w.bind, " ", w.waits, w.crashed, w.given, w.a.stopped, w.a.underWay, leftOnA(w.a.until), left(w.a.uncertainUntil, onA),
		w.b.leads, left(w.b.uncertainUntil, w.clock.Now()), ago(w.now, w.written, leaseDuration), ago(w.nowOnA, w.started, defaultBindTimeout))
	if !w.began.IsZero() {
		key += fmt.Sprint(" began ", leftOnA(w.began.Add(leaseDuration)))
	}
	if w.bind == underWay {
		key += fmt.Sprint(" arrived ", ago(w.now, w.arrived, defaultBindTimeout))
	}
	return key
}

// TestTheBarrierOfATakeOverOutlivesEveryBind searches every history of a take-over. The time that process b waits is read from the code. With a shorter
// time the search must find a slot that is given out twice; otherwise it would prove nothing.
func TestTheBarrierOfATakeOverOutlivesEveryBind(t *testing.T) {
	period := uncertainPeriod(defaultBindTimeout)
	world := func(period time.Duration) func() worlds.World[step] {
		return func() worlds.World[step] { return newBarrier(period) }
	}
	result := worlds.Search(world(period), 0)
	if result.Fault != nil {
		t.Fatalf("with a barrier of %s: %v\nafter %s", period, result.Fault, result.History)
	}
	t.Logf("with a barrier of %s: %s", period, result)
	for _, short := range []time.Duration{0, defaultBindTimeout, period - 2*instant} {
		result := worlds.Search(world(short), 0)
		if result.Fault == nil {
			t.Errorf("with a barrier of %s, no slot is given out twice: the model misses something, or the barrier is longer than it must be; %s", short, result)
		}
		t.Logf("with a barrier of %s: %v after %s", short, result.Fault, result.History)
	}
}
