package moves

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/test/testkit/worlds"
)

const (
	smallReplicas = 3
	// smallPods also counts replacements of evicted pods.
	smallPods = 5
	// mostAway is how many pods a strategy may make unready at a time.
	mostAway = 1
)

// small is a small world: three pods, and two deschedulers whose cycles overlap. The model is the API server with
// compare-and-swap, the workload, admission, the scheduler, and processes that crash. Each descheduler takes the steps
// of pkg/descheduler/cycle, and makes its evictions before its entry in the spread's status is as old as flightTime.
type small struct {
	smallStrategy
	policy *subset.Policy
	// lowered is the policy after the edit.
	lowered *subset.Policy
	// quota is that of subset a. The model does not ask the product for it.
	quota int
	// minutes have passed. Crashes, refusals and lost answers may still happen.
	minutes, ticks, crashes, refusals, lost int
	// skew is how many minutes the API server's clock, by which the deschedulers go, is ahead. It may still jump that
	// often.
	skew, jumps int
	// edits of the quota and new labels of nodes may still happen, and so many nodes may still come to subset a.
	edits, labels, nodes int
	// places are how many pods the nodes of each subset take.
	places map[string]int
	// disturbed is the minute after the first edit or new label, 0 if there was none.
	disturbed int
	pods      [smallPods]smallPod
	memory    smallMemory
	// revision of the spread.
	revision int
	cycles   [2]cycle
}

// smallStrategy is one of the decisions of the package, with the rules of its own.
type smallStrategy struct {
	decide func(*Facts, Cluster) Decision
	// wrong is why the pod of a move must not be evicted. Nil if it may.
	wrong func(*small, *Move) error
	// should is true if a pod must be moved when nothing happens any more.
	should func(s *small) bool
}

// smallMemory is what the status of the spread says.
type smallMemory struct {
	moves     []v1beta1.Move
	misplaced *v1beta1.Misplaced
}

type smallPod struct {
	created, gone, ready bool
	in                   string
	// since is the minute in which it was bound.
	since int
	// outside is true if its node is not one of subset in any more.
	outside bool
	// admitted is the subset that admission has picked, and unschedulable the minute after the scheduler has found no
	// node in it. 0 if it has not.
	admitted      string
	unschedulable int
	// late is until when an eviction without an answer may still happen.
	late int
}

// cycle is how far a descheduler is.
type cycle struct {
	step cycleStep
	// policy, memory and revision are those of the spread as it was listed.
	policy   *subset.Policy
	memory   smallMemory
	revision int
	facts    *Facts
	decision *Decision
	// next is the move whose eviction is next.
	next int
	// written is when the entries were written, and ahead are the entries.
	written int
	ahead   smallMemory
	failed  []Move
}

type cycleStep int

const (
	idle cycleStep = iota
	listed
	decided
	remembered
	acted
)

// loweredQuota is that of subset a after the edit.
const loweredQuota = 1

const flightMinutes = int(flightTime / time.Minute)

// smallPolicies are compiled once for all histories.
type smallPolicies struct{ returns, trims, lowered, leaves *subset.Policy }

func newSmallPolicies(t *testing.T) *smallPolicies {
	t.Helper()
	fixed := v1beta1.ScheduleStrategy{}
	return &smallPolicies{returns: policy(t, fixed, 2, -1), trims: policy(t, fixed, smallReplicas, -1), lowered: policy(t, fixed, loweredQuota, -1), leaves: policy(t, early, 2, 1, 1)}
}

// newReturn is the world of Return: the pods are in subset b, although a has room for two of them.
func (p *smallPolicies) newReturn(ticks, crashes, refusals, lost int) *small {
	limits := ReturnLimits{AtMost: intstr.FromInt32(mostAway), Pace: smallPace}
	s := &small{policy: p.returns, quota: 2, places: map[string]int{"a": smallPods, "b": smallPods}, ticks: ticks, crashes: crashes, refusals: refusals, lost: lost}
	s.smallStrategy = smallStrategy{
		decide: func(f *Facts, cluster Cluster) Decision { return Return(f, limits, cluster) },
		wrong:  func(*small, *Move) error { return nil },
		should: func(s *small) bool { return s.count("a") < s.quota && s.count("b") > 0 },
	}
	for i := range smallReplicas {
		s.pods[i] = smallPod{created: true, ready: true, in: "b"}
	}
	return s
}

var smallPace = Pace{Base: time.Minute, Longest: time.Minute}

// newTrim is the world of Trim: the pods are in subset a, whose quota may be lowered from three to one. Their nodes may
// get other labels.
func (p *smallPolicies) newTrim(ticks, crashes, refusals, lost int) *small {
	limits := TrimLimits{Settle: time.Minute, MaxUnavailable: intstr.FromInt32(mostAway), Pace: smallPace}
	s := p.newReturn(ticks, crashes, refusals, lost)
	s.policy, s.lowered, s.quota = p.trims, p.lowered, smallReplicas
	s.smallStrategy = smallStrategy{
		decide: func(f *Facts, cluster Cluster) Decision { return Trim(f, limits, cluster) },
		wrong: func(s *small, m *Move) error {
			pod := s.pod(m)
			switch {
			case s.minutes < s.disturbed-1+int(limits.Settle/time.Minute):
				return fmt.Errorf("%s is moved before the pods have settled", m.Pod.Name)
			case !pod.outside && s.count("a") <= s.quota:
				return fmt.Errorf("%s is moved out of a subset that has no more pods than its quota", m.Pod.Name)
			}
			return nil
		},
		should: func(s *small) bool {
			return s.count("a") > s.quota || slices.ContainsFunc(s.pods[:], func(p smallPod) bool { return p.exists() && p.outside })
		},
	}
	for i := range smallReplicas {
		s.pods[i].in = "a"
	}
	return s
}

// newLeave is the world of Leave: admission has picked subset a for two pods, and a has no node for them. One of them
// may go to subset c. Nobody may go to subset b, which has its pod.
func (p *smallPolicies) newLeave(ticks, crashes, refusals, lost int) *small {
	limits := LeaveLimits{AtMost: intstr.FromString("100%"), Pace: smallPace}
	s := p.newReturn(ticks, crashes, refusals, lost)
	s.policy, s.places = p.leaves, map[string]int{"b": 1, "c": 1}
	s.smallStrategy = smallStrategy{
		decide: func(f *Facts, cluster Cluster) Decision { return Leave(f, limits, cluster) },
		wrong: func(s *small, m *Move) error {
			if since := s.pod(m).unschedulable - 1; since < 0 || s.minutes == since {
				return fmt.Errorf("%s is moved although it has not waited", m.Pod.Name)
			}
			return nil
		},
		should: func(s *small) bool {
			return slices.ContainsFunc(s.pods[:], func(p smallPod) bool { return p.exists() && p.unschedulable > 0 && p.in == "" }) && s.count("c") == 0
		},
	}
	s.pods[0] = smallPod{created: true, admitted: "a"}
	s.pods[1] = s.pods[0]
	return s
}

func (p *smallPod) exists() bool { return p.created && !p.gone }

// is is the subset of a pod, as far as it is known.
func (p *smallPod) is() string { return cmp.Or(p.in, p.admitted) }

// count is the number of pods that have a subset or will have it.
func (s *small) count(in string) (n int) {
	for i := range s.pods {
		if p := &s.pods[i]; p.exists() && p.is() == in {
			n++
		}
	}
	return n
}

// takes is true if a node of a subset has a place.
func (s *small) takes(in string) bool {
	bound := 0
	for i := range s.pods {
		if p := &s.pods[i]; p.exists() && p.in == in {
			bound++
		}
	}
	return bound < s.places[in]
}

func (s *small) pod(m *Move) *smallPod { return &s.pods[m.Pod.Name[1]-'0'] }

func (s *small) now() time.Time { return start.Add(time.Duration(s.minutes+s.skew) * time.Minute) }

// facts are those of the pods now, with an earlier read of the spread.
func (s *small) facts(policy *subset.Policy, memory smallMemory) *Facts {
	f := &Facts{Name: "web", Policy: policy, Replicas: smallReplicas, Moves: memory.moves, Misplaced: memory.misplaced, Now: s.now()}
	for i := range s.pods {
		p := &s.pods[i]
		if !p.exists() {
			continue
		}
		name := fmt.Sprintf("p%d", i)
		pod := Pod{Pod: subset.Pod{Name: name, UID: types.UID(name), Active: true, Created: start}}
		if p.in != "" {
			pod = bound(name, p.in, 0)
			pod.BoundSince, pod.Ready = start.Add(time.Duration(p.since)*time.Minute), p.ready
			if p.outside {
				pod.Node = node("elsewhere")
			}
		}
		if p.admitted != "" {
			pod.Admitted = &subset.Admitted{Spread: "web", Subset: p.admitted}
		}
		if p.unschedulable > 0 && p.in == "" {
			pod.UnschedulableSince = start.Add(time.Duration(p.unschedulable-1) * time.Minute)
		}
		f.Pods = append(f.Pods, pod)
	}
	return f
}

// cluster is what a descheduler sees of the nodes.
func (s *small) cluster() *rooms {
	r := &rooms{places: map[int]int{}}
	for in, places := range s.places {
		r.places[s.policy.Index(in)] = places
	}
	for i := range s.pods {
		if p := &s.pods[i]; p.exists() && p.in != "" {
			r.places[s.policy.Index(p.in)]--
		}
	}
	return r
}

const (
	backwards = "the clock goes back an hour"
	lowers    = "somebody lowers the quota"
	appears   = "a node of subset a appears"
)

type smallMove struct {
	kind   string
	number int
}

func (m smallMove) String() string {
	switch m.kind {
	case "a minute passes", "the workload replaces a pod", backwards, lowers, appears:
		return m.kind
	case "is bound", "is unschedulable", "gets ready", "is evicted late", "is outside":
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
		exists := p.exists()
		if exists {
			live++
		} else if !p.created && free < 0 {
			free = i
		}
		fits := p.admitted == "" || s.takes(p.admitted)
		add(exists && p.in == "" && fits, "is bound", i)
		add(exists && p.in == "" && !fits && p.unschedulable == 0, "is unschedulable", i)
		add(exists && p.in == "a" && !p.outside && s.labels > 0, "is outside", i)
		add(exists && p.in != "" && !p.ready, "gets ready", i)
		add(exists && p.late > s.minutes, "is evicted late", i)
	}
	add(live < smallReplicas && free >= 0, "the workload replaces a pod", free)
	add(s.ticks > 0 && (live == smallReplicas || !s.policy.BindsEarly()), "a minute passes", 0)
	add(s.jumps > 0, backwards, 0)
	add(s.edits > 0, lowers, 0)
	add(s.nodes > 0, appears, 0)
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
	case lowers:
		s.edits--
		s.policy, s.quota = s.lowered, loweredQuota
		s.revision++
		s.disturbed = cmp.Or(s.disturbed, s.minutes+1)
	case appears:
		s.nodes--
		s.places["a"]++
	case "the workload replaces a pod":
		s.pods[m.number] = smallPod{created: true}
		if s.policy.BindsEarly() {
			return s.admit(&s.pods[m.number])
		}
	case "is bound":
		p := &s.pods[m.number]
		p.since = s.minutes
		switch {
		case p.admitted != "":
			p.in = p.admitted
		case s.count("a") < s.quota:
			p.in = "a"
		default:
			p.in = "b"
		}
	case "is unschedulable":
		s.pods[m.number].unschedulable = s.minutes + 1
	case "is outside":
		s.labels--
		s.pods[m.number].outside = true
		s.disturbed = cmp.Or(s.disturbed, s.minutes+1)
	case "gets ready":
		s.pods[m.number].ready = true
	case "is evicted late":
		before := s.notReady()
		if p := &s.pods[m.number]; p.admitted == "" || p.in == "" {
			p.gone = true
		}
		s.pods[m.number].late = 0
		return s.mayBeAway(before)
	default:
		before := s.notReady()
		if err := s.goOn(m); err != nil {
			return err
		}
		return s.mayBeAway(before)
	}
	return nil
}

// mayBeAway is an error if an eviction has left more pods away than a strategy may make unready. before is how many
// pods were not ready before it.
func (s *small) mayBeAway(before int) error {
	if after := s.notReady(); after > max(before, mostAway) {
		return fmt.Errorf("%d of %d pods are not ready, and %d may be moved at a time", after, smallReplicas, mostAway)
	}
	return nil
}

// notReady is how many pods are missing or not ready.
func (s *small) notReady() int {
	n := smallReplicas
	for i := range s.pods {
		if p := &s.pods[i]; p.exists() && p.ready {
			n--
		}
	}
	return n
}

// admit picks the subset of a new pod. Its predecessor has left a subset without a node, and the new pod must not go
// there again.
func (s *small) admit(pod *smallPod) error {
	plan := s.policy.Plan(smallReplicas)
	facts := s.facts(s.policy, smallMemory{})
	places := facts.placesOf(facts.present())
	closed := ClosedBy(s.memory.moves, nil, s.policy, s.now())
	in := s.policy.PickEarly(&plan, places.tally.Kept(s.policy.ScopeOf("")), subset.Candidate{Closed: closed}).Subset
	if pod.admitted = s.policy.Subsets[in].Name; in == 0 {
		return errors.New("the replacement of a pod that has left subset a goes there again")
	}
	return nil
}

// goOn does a step of a descheduler.
func (s *small) goOn(m smallMove) error {
	c := &s.cycles[m.number]
	switch m.kind {
	case "lists the spread":
		*c = cycle{step: listed, policy: s.policy, memory: s.memory, revision: s.revision}
	case "lists the pods and decides":
		c.facts = s.facts(c.policy, c.memory)
		d := s.decide(c.facts, s.cluster())
		c.decision, c.ahead = &d, c.memory
		if d.Remembers {
			c.ahead.misplaced = d.Misplaced
		}
		if len(d.Moves) > 0 {
			c.ahead.moves = c.facts.Record(&d)
		} else if equality.Semantic.DeepEqual(c.ahead.misplaced, c.memory.misplaced) {
			*c = cycle{}
			return nil
		}
		c.step = decided
	case "writes the spread":
		if c.revision != s.revision {
			*c = cycle{}
			return nil
		}
		s.write(c)
		if len(c.decision.Moves) == 0 {
			*c = cycle{}
			return nil
		}
		c.step, c.written = remembered, s.minutes
	case "evicts":
		move := &c.decision.Moves[c.next]
		switch pod := s.pod(move); {
		case pod.gone || move.Pod.NodeName == "" && pod.in != "": // the eviction has preconditions
			c.failed = append(c.failed, *move)
		default:
			if err := s.wrong(s, move); err != nil {
				return err
			}
			pod.gone = true
		}
		s.evicted(c)
	case "is refused its eviction":
		s.refusals--
		c.failed = append(c.failed, c.decision.Moves[c.next])
		s.evicted(c)
	case "gets no answer":
		s.lost--
		s.pod(&c.decision.Moves[c.next]).late = c.written + flightMinutes
		s.evicted(c)
	case "ends its cycle":
		if len(c.failed) > 0 && c.revision == s.revision {
			c.ahead.moves = c.facts.Retract(c.ahead.moves, c.failed)
			s.write(c)
		}
		*c = cycle{}
	case "crashes":
		if c.step != remembered || s.minutes-c.written < flightMinutes {
			s.crashes--
		}
		*c = cycle{}
	}
	return nil
}

// evicted is called after each eviction.
func (s *small) evicted(c *cycle) {
	if c.next++; c.next == len(c.decision.Moves) {
		c.step = acted
	}
}

func (s *small) write(c *cycle) {
	s.revision++
	s.memory, c.revision = c.ahead, s.revision
}

// Rest implements worlds.World. Once everything is over, a pod is moved exactly if it should be.
func (s *small) Rest() (bool, error) {
	live := 0
	for i := range s.pods {
		p := &s.pods[i]
		if !p.exists() {
			continue
		}
		if live++; !p.ready && (p.admitted == "" || p.unschedulable == 0) {
			return false, nil
		}
	}
	if live < smallReplicas {
		return false, nil
	}
	var d Decision
	for range 2 { // Trim remembers first
		s.minutes += 24 * 60
		if d = s.decide(s.facts(s.policy, s.memory), s.cluster()); d.Remembers {
			s.memory.misplaced = d.Misplaced
		}
	}
	if should := s.should(s); should != (len(d.Moves) > 0) {
		return true, fmt.Errorf("with pods %+v the decision at rest is %v", s.pods, d)
	}
	return true, nil
}

// Spent implements worlds.World.
func (s *small) Spent() bool {
	return s.crashes+s.refusals+s.lost+s.jumps+s.edits+s.labels+s.nodes == 0
}

// Copy implements worlds.Copier. No step changes what the memory and the cycles point to.
func (s *small) Copy() worlds.World[smallMove] {
	copied := *s
	copied.places = maps.Clone(s.places)
	for i := range copied.cycles {
		copied.cycles[i].failed = slices.Clip(s.cycles[i].failed) // the next append copies it
	}
	return &copied
}

// Key implements worlds.World. Minutes are counted from the start, because there are few.
func (s *small) Key() string {
	var b strings.Builder
	fmt.Fprint(&b, s.minutes, " ", s.skew, " ", s.crashes, s.refusals, s.lost, s.edits, s.labels, s.nodes, s.disturbed, s.pods)
	entries := func(memory smallMemory) {
		if m := memory.misplaced; m != nil {
			fmt.Fprint(&b, m.Pods, m.Since.Sub(start))
		}
		for i := range memory.moves {
			m := &memory.moves[i]
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
		fmt.Fprint(&b, c.step, c.policy == s.policy, c.revision == s.revision, c.written, c.next, len(c.failed))
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

var deep = flag.Bool("deep", false, "search larger worlds, which takes hours")

// TestEveryHistoryOfASmallWorld lets the cycles of two deschedulers overlap in every order, with one or two kinds of
// trouble at a time.
func TestEveryHistoryOfASmallWorld(t *testing.T) {
	searched := newSmallPolicies(t).worlds()
	if *deep {
		searched = newSmallPolicies(t).deepWorlds()
	}
	for name, start := range searched {
		t.Run(name, func(t *testing.T) { worlds.Test(t, name, start, 0) })
	}
}

// TestRandomHistoriesOfALargerWorld tries some histories of the worlds in which all kinds of trouble happen.
func TestRandomHistoriesOfALargerWorld(t *testing.T) {
	for name, start := range newSmallPolicies(t).deepWorlds() {
		t.Run(name, func(t *testing.T) { worlds.Check(t, name, 300, worlds.Walk(start)) })
	}
}

// TestHistories plays the histories that found a fault.
func TestHistories(t *testing.T) {
	all := map[string]worlds.Play{}
	for _, some := range []map[string]func() worlds.World[smallMove]{newSmallPolicies(t).worlds(), newSmallPolicies(t).deepWorlds()} {
		for name, start := range some {
			all[name] = worlds.Walk(start)
		}
	}
	worlds.Replay(t, all)
}

// worlds are searched with each run of the tests.
func (p *smallPolicies) worlds() map[string]func() worlds.World[smallMove] {
	return map[string]func() worlds.World[smallMove]{
		"a crash":                    func() worlds.World[smallMove] { return p.newReturn(2, 1, 0, 0) },
		"a refused eviction":         func() worlds.World[smallMove] { return p.newReturn(2, 0, 1, 0) },
		"an eviction without answer": func() worlds.World[smallMove] { return p.newReturn(2, 0, 0, 1) },
		"a clock that goes back": func() worlds.World[smallMove] {
			s := p.newReturn(1, 0, 0, 0)
			s.jumps = 1
			return s
		},
		"a lower quota and a crash": func() worlds.World[smallMove] {
			s := p.newTrim(1, 1, 0, 0)
			s.edits = 1
			return s
		},
		"a node with other labels and an eviction without answer": func() worlds.World[smallMove] {
			s := p.newTrim(1, 0, 0, 1)
			s.labels = 1
			return s
		},
		"no node for two pods and a refused eviction": func() worlds.World[smallMove] { return p.newLeave(2, 0, 1, 0) },
		"a node that comes late and an eviction without answer": func() worlds.World[smallMove] {
			s := p.newLeave(1, 0, 0, 1)
			s.nodes = 1
			return s
		},
	}
}

// deepWorlds are searched with -deep in place of worlds.
func (p *smallPolicies) deepWorlds() map[string]func() worlds.World[smallMove] {
	all := map[string]func() worlds.World[smallMove]{
		"a lower quota for longer": func() worlds.World[smallMove] {
			s := p.newTrim(2, 0, 0, 0)
			s.edits = 1
			return s
		},
	}
	for name, begin := range map[string]func(ticks, crashes, refusals, lost int) *small{"returns": p.newReturn, "trims": p.newTrim, "leaves": p.newLeave} {
		all[name] = func() worlds.World[smallMove] {
			s := begin(4, 2, 2, 2)
			if s.nodes = 2; s.lowered != nil {
				s.edits, s.labels = 1, 2
			}
			return s
		}
	}
	return all
}
