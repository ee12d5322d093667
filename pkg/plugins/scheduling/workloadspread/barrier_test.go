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
// suspended anywhere.
type barrier struct {
	clock *testingclock.FakeClock
	now   int
	a, b  *lease
	// holder of the stored lease, and when it was last written.
	holder  string
	written int
	// began is when process a began the renewal that is under way. -1 is none. renewed is true once the renewal is stored.
	began   int
	renewed bool
	// mayRenew is false after a renewal: one is enough.
	mayRenew bool
	bind     bindStep
	// started is when the bind was started, and arrived when the API server got it.
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

var epoch = time.Unix(1000, 0)

func newBarrier(period time.Duration) *barrier {
	w := &barrier{clock: testingclock.NewFakeClock(epoch), holder: "a", began: -1, mayRenew: true}
	w.a = &lease{clock: w.clock, uncertainPeriod: period, elected: true}
	w.b = &lease{clock: w.clock, uncertainPeriod: period, elected: true}
	w.a.lead("", true)
	w.a.confirmFirst(true)
	w.a.renewed(epoch, leaseDuration)
	return w
}

// elapsed is true if as much time has passed since an instant.
func (w *barrier) elapsed(since int, d time.Duration) bool {
	return time.Duration(w.now-since)*instant >= d
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
	runs, leads := !w.crashed && !w.a.isStopped(), w.b.leads
	add(true, "time passes")
	add(runs && w.mayRenew, "a begins to renew its lease")
	add(w.began >= 0 && !w.renewed && w.holder == "a", "the renewal is stored")
	add(!w.crashed && w.renewed, "a learns of its renewal")
	add(runs && w.bind == notStarted, "a starts a bind")
	add(!w.crashed && w.bind == started, "a checks its lease")
	add(!w.crashed && w.bind == checked, "a sends the bind")
	add(w.bind == sent, "the bind arrives")
	add(w.bind == underWay, "the bind is committed")
	add(!w.crashed && w.waits && w.bind == committed, "a hears of the bind")
	add(!w.crashed && w.waits && w.bind > checked && w.elapsed(w.started, defaultBindTimeout), "a gives the bind up")
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
		if w.bind == sent && w.elapsed(w.started, defaultBindTimeout) || w.bind == underWay && w.elapsed(w.arrived, defaultBindTimeout) {
			w.bind = over
		}
	case "a begins to renew its lease":
		w.began, w.mayRenew = w.now, false
	case "the renewal is stored":
		w.renewed, w.written = true, w.now
	case "a learns of its renewal":
		w.a.renewed(epoch.Add(time.Duration(w.began)*instant), leaseDuration)
		w.began, w.renewed = -1, false
	case "a starts a bind":
		w.bind, w.started = started, w.now
	case "a checks its lease":
		w.bind = over
		if w.a.startBind() {
			w.bind, w.waits = checked, true
		}
	case "a sends the bind":
		w.bind = sent
		if w.elapsed(w.started, defaultBindTimeout) {
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
	now := w.clock.Now()
	ago := func(since int, atMost time.Duration) time.Duration {
		return min(time.Duration(w.now-since)*instant, atMost)
	}
	left := func(until time.Time) time.Duration { return max(until.Sub(now), 0) }
	key := fmt.Sprint(w.holder, w.renewed, w.mayRenew, w.bind, " ", w.waits, w.crashed, w.given, w.a.stopped, w.a.underWay, left(w.a.until), left(w.a.uncertainUntil),
		w.b.leads, left(w.b.uncertainUntil), ago(w.written, leaseDuration), ago(w.started, defaultBindTimeout))
	if w.began >= 0 {
		key += fmt.Sprint(" began ", ago(w.began, leaseDuration))
	}
	if w.bind == underWay {
		key += fmt.Sprint(" arrived ", ago(w.arrived, defaultBindTimeout))
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
