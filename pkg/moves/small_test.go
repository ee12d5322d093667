package moves

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/testkit/worlds"
)

const (
	smallReplicas = 3
	// smallQuota is that of subset a. Subset b has none.
	smallQuota = 2
	// smallPods also counts replacements of evicted pods.
	smallPods = 5
)

// small is a small world: three pods that are in subset b, although a has room for two of them, and two deschedulers whose cycles overlap. The model is
// the API server with compare-and-swap, the workload, the scheduler, and processes that crash. Each descheduler takes the steps of
// pkg/descheduler/cycle, and makes its eviction before its entry in the spread's status is as old as flightTime.
type small struct {
	policy *subset.Policy
	limits ReturnLimits
	// minutes have passed. Crashes, refusals and lost answers may still happen.
	minutes, ticks, crashes, refusals, lost int
	// skew is how many minutes the API server's clock, by which the deschedulers go, is ahead. It may still jump that often.
	skew, jumps int
	pods        [smallPods]smallPod
	memory      []v1beta1.Move
	// revision of the spread.
	revision int
	cycles   [2]cycle
}

type smallPod struct {
	created, gone, ready bool
	in                   string
	// since is the minute in which it was bound.
	since int
	// late is until when an eviction without an answer may still happen.
	late int
}

// cycle is how far a descheduler is.
type cycle struct {
	step cycleStep
	// memory and revision are those of the spread as it was listed.
	memory   []v1beta1.Move
	revision int
	facts    *Facts
	decision *Decision
	// written is when the entries were written, and ahead are the entries.
	written int
	ahead   []v1beta1.Move
	failed  bool
}

type cycleStep int

const (
	idle cycleStep = iota
	listed
	decided
	remembered
	acted
)

const flightMinutes = int(flightTime / time.Minute)

func newSmall(t *testing.T, ticks, crashes, refusals, lost int) *small {
	t.Helper()
	s := &small{policy: policy(t, v1beta1.ScheduleStrategy{}, smallQuota, -1), limits: ReturnLimits{AtMost: 1, Pace: Pace{Base: time.Minute, Longest: time.Minute}},
		ticks: ticks, crashes: crashes, refusals: refusals, lost: lost}
	for i := range smallReplicas {
		s.pods[i] = smallPod{created: true, ready: true, in: "b"}
	}
	return s
}

func (s *small) now() time.Time { return start.Add(time.Duration(s.minutes+s.skew) * time.Minute) }

// facts are those of the pods now, with an earlier read of the spread.
func (s *small) facts(memory []v1beta1.Move) *Facts {
	f := &Facts{Name: "web", Policy: s.policy, Replicas: smallReplicas, Moves: memory, Now: s.now()}
	for i := range s.pods {
		p := &s.pods[i]
		if !p.created || p.gone {
			continue
		}
		name := fmt.Sprintf("p%d", i)
		pod := Pod{Pod: subset.Pod{Name: name, UID: types.UID(name), Active: true, Created: start}}
		if p.in != "" {
			pod = bound(name, p.in, 0)
			pod.BoundSince, pod.Ready = start.Add(time.Duration(p.since)*time.Minute), p.ready
		}
		f.Pods = append(f.Pods, pod)
	}
	return f
}

// decide is what a descheduler does with the facts. Every node has room.
func (s *small) decide(f *Facts) *Decision {
	d := Return(f, s.limits, &rooms{places: map[int]int{0: smallPods, 1: smallPods}})
	return &d
}

const backwards = "the clock goes back an hour"

type smallMove struct {
	kind   string
	number int
}

func (m smallMove) String() string {
	switch m.kind {
	case "a minute passes", "the workload replaces a pod", backwards:
		return m.kind
	case "is bound", "gets ready", "is evicted late":
		return fmt.Sprintf("p%d %s", m.number, m.kind)
	default:
		return fmt.Sprintf("descheduler %d %s", m.number, m.kind)
	}
}

// Moves implements worlds.World.
func (s *small) Moves() (moves []smallMove) {
	add := func(can bool, kind string, number int) {
		if can {
			moves = append(moves, smallMove{kind, number})
		}
	}
	live, free := 0, -1
	for i := range s.pods {
		p := &s.pods[i]
		exists := p.created && !p.gone
		if exists {
			live++
		} else if !p.created && free < 0 {
			free = i
		}
		add(exists && p.in == "", "is bound", i)
		add(exists && p.in != "" && !p.ready, "gets ready", i)
		add(exists && p.late > s.minutes, "is evicted late", i)
	}
	add(live < smallReplicas && free >= 0, "the workload replaces a pod", free)
	add(s.ticks > 0, "a minute passes", 0)
	add(s.jumps > 0, backwards, 0)
	for i := range s.cycles {
		c := &s.cycles[i]
		evicts := c.step == remembered && s.minutes-c.written < flightMinutes
		add(c.step == idle, "lists the spread", i)
		add(c.step == listed, "lists the pods and decides", i)
		add(c.step == decided, "writes the spread", i)
		add(evicts, "evicts", i)
		add(evicts && s.refusals > 0, "is refused its eviction", i)
		add(evicts && s.lost > 0, "gets no answer", i)
		add(c.step == acted, "ends its cycle", i)
		add(c.step != idle && (s.crashes > 0 || c.step == remembered && !evicts), "crashes", i)
	}
	return moves
}

// Do implements worlds.World.
func (s *small) Do(m smallMove) error {
	switch m.kind {
	case "a minute passes":
		s.ticks--
		s.minutes++
	case backwards:
		s.jumps--
		s.skew -= 60
	case "the workload replaces a pod":
		s.pods[m.number] = smallPod{created: true}
	case "is bound":
		inA := 0
		for i := range s.pods {
			if p := &s.pods[i]; p.in == "a" && !p.gone {
				inA++
			}
		}
		p := &s.pods[m.number]
		p.in, p.since = "b", s.minutes
		if inA < smallQuota {
			p.in = "a"
		}
	case "gets ready":
		s.pods[m.number].ready = true
	case "is evicted late":
		s.pods[m.number].gone = true
	default:
		s.goOn(m)
	}
	ready := 0
	for i := range s.pods {
		if p := &s.pods[i]; p.created && !p.gone && p.ready {
			ready++
		}
	}
	if ready < smallReplicas-int(s.limits.AtMost) {
		return fmt.Errorf("%d of %d pods are ready, and %d may be moved at a time", ready, smallReplicas, s.limits.AtMost)
	}
	return nil
}

// goOn does a step of a descheduler.
func (s *small) goOn(m smallMove) {
	c := &s.cycles[m.number]
	var pod *smallPod
	if c.decision != nil && len(c.decision.Moves) > 0 {
		pod = &s.pods[c.decision.Moves[0].Pod.Name[1]-'0']
	}
	switch m.kind {
	case "lists the spread":
		*c = cycle{step: listed, memory: s.memory, revision: s.revision}
	case "lists the pods and decides":
		c.facts = s.facts(c.memory)
		if c.decision = s.decide(c.facts); len(c.decision.Moves) == 0 {
			*c = cycle{}
			return
		}
		c.step = decided
	case "writes the spread":
		if c.revision != s.revision {
			*c = cycle{}
			return
		}
		c.ahead = c.facts.Record(c.decision)
		s.write(c)
		c.step, c.written = remembered, s.minutes
	case "evicts":
		pod.gone = true
		c.step = acted
	case "is refused its eviction":
		s.refusals--
		c.step, c.failed = acted, true
	case "gets no answer":
		s.lost--
		pod.late = c.written + flightMinutes
		c.step = acted
	case "ends its cycle":
		if c.failed && c.revision == s.revision {
			c.ahead = c.facts.Retract(c.ahead, c.decision.Moves)
			s.write(c)
		}
		*c = cycle{}
	case "crashes":
		if c.step != remembered || s.minutes-c.written < flightMinutes {
			s.crashes--
		}
		*c = cycle{}
	}
}

func (s *small) write(c *cycle) {
	s.revision++
	s.memory, c.revision = c.ahead, s.revision
}

// Rest implements worlds.World. Once everything is over, a pod returns exactly if subset a has room and there is a pod in b.
func (s *small) Rest() error {
	in := map[string]int{}
	for i := range s.pods {
		if p := &s.pods[i]; p.created && !p.gone {
			if !p.ready {
				return nil
			}
			in[p.in]++
		}
	}
	if in["a"]+in["b"] < smallReplicas {
		return nil
	}
	s.minutes += 24 * 60
	d := s.decide(s.facts(s.memory))
	if may := in["a"] < smallQuota && in["b"] > 0; may != (len(d.Moves) > 0) {
		return errors.New(fmt.Sprint("with pods ", in, " the decision at rest is ", d))
	}
	return nil
}

// Key implements worlds.World. Minutes are counted from the start, because there are few.
func (s *small) Key() string {
	var b strings.Builder
	fmt.Fprint(&b, s.minutes, " ", s.skew, " ", s.crashes, s.refusals, s.lost, s.pods)
	entries := func(moves []v1beta1.Move) {
		for i := range moves {
			m := &moves[i]
			fmt.Fprint(&b, m.From, m.To, m.Round, m.Remaining, m.Time.Sub(start))
			for _, pod := range m.InFlight {
				fmt.Fprint(&b, pod.UID, pod.Time.Sub(start))
			}
		}
		b.WriteByte('|')
	}
	entries(s.memory)
	world := b.String()
	var each []string // sorted, because the deschedulers differ by what they know only
	for i := range s.cycles {
		b.Reset()
		c := &s.cycles[i]
		fmt.Fprint(&b, c.step, c.revision == s.revision, c.written, c.failed)
		entries(c.memory)
		entries(c.ahead)
		if c.decision != nil {
			fmt.Fprint(&b, names(*c.decision))
			for j := range c.facts.Pods {
				fmt.Fprint(&b, c.facts.Pods[j].Name, c.facts.Pods[j].Record, c.facts.Pods[j].Ready)
			}
			fmt.Fprint(&b, c.facts.Now.Sub(start))
		}
		each = append(each, b.String())
	}
	slices.Sort(each)
	return world + strings.Join(each, "\n")
}

// TestEveryHistoryOfASmallWorld lets the cycles of two deschedulers overlap in every order, with one kind of trouble at a time.
func TestEveryHistoryOfASmallWorld(t *testing.T) {
	for name, start := range smallWorlds(t) {
		t.Run(name, func(t *testing.T) { worlds.Test(t, name, start, 0) })
	}
}

func smallWorlds(t *testing.T) map[string]func() worlds.World[smallMove] {
	t.Helper()
	return map[string]func() worlds.World[smallMove]{
		"a crash":            func() worlds.World[smallMove] { return newSmall(t, 2, 1, 0, 0) },
		"a refused eviction": func() worlds.World[smallMove] { return newSmall(t, 2, 0, 1, 0) },
		"a clock that goes back": func() worlds.World[smallMove] {
			s := newSmall(t, 1, 0, 0, 0)
			s.jumps = 1
			return s
		},
		"an eviction without answer": func() worlds.World[smallMove] { return newSmall(t, 2, 0, 0, 1) },
	}
}

// TestRandomHistoriesOfALargerWorld tries some histories of a world in which all kinds of trouble happen.
func TestRandomHistoriesOfALargerWorld(t *testing.T) {
	worlds.Check(t, "everything", 300, worlds.Walk(func() worlds.World[smallMove] { return newSmall(t, 4, 2, 2, 2) }))
}
