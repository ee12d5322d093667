package ledger

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/test/testkit/worlds"
)

var deep = flag.Bool("deep", false, "search larger worlds, which takes hours")

const (
	smallSpec = `subsets:
- {name: a, maxReplicas: 1, requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [a]}]}}
- {name: b, maxReplicas: 1, requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [b]}]}}
scheduleStrategy: {whenFull: Wait}`
	// smallPods is how many pods there are. One of them has no slot.
	smallPods = 3
	doubt     = time.Second
)

var smallNames = []string{"", "a", "b"}

// The numbers of some specs. oneSlot has one slot. Those from gated on have binding: Gated.
const (
	oneSlot = 1
	deleted = 4
	gated   = 5
	// gatedOneSlot has one slot, and gatedAdaptive has strategy Adaptive.
	gatedOneSlot  = 6
	gatedAdaptive = 8
)

// smallSpecs are the versions of the spread, by number. Without a spec the spread is deleted.
var smallSpecs = []struct {
	name  string
	quota map[string]int
	spec  string
}{
	{"as it was", map[string]int{"a": 1, "b": 1}, smallSpec},
	{"without a", map[string]int{"b": 1}, withoutA},
	{"a=0 b=2", map[string]int{"a": 0, "b": 2}, twoInB.Replace(smallSpec)},
	{"invalid", nil, `{subsets: [{name: a, maxReplicas: -1}]}`},
	{"deleted", nil, ""},
	{"gated", map[string]int{"a": 1, "b": 1}, toGated.Replace(smallSpec)},
	{"gated, without a", map[string]int{"b": 1}, toGated.Replace(withoutA)},
	{"gated, a=0 b=2", map[string]int{"a": 0, "b": 2}, toGated.Replace(twoInB.Replace(smallSpec))},
	{"gated, adaptive", map[string]int{"a": 1, "b": 1}, strings.NewReplacer("{whenFull", "{type: Adaptive, binding: Gated, whenFull").Replace(smallSpec)},
}

var (
	withoutA = strings.Replace(smallSpec, smallSpec[strings.Index(smallSpec, "- {name: a"):strings.Index(smallSpec, "- {name: b")], "", 1)
	twoInB   = strings.NewReplacer("a, maxReplicas: 1", "a, maxReplicas: 0", "b, maxReplicas: 1", "b, maxReplicas: 2")
	toGated  = strings.NewReplacer("{whenFull", "{binding: Gated, whenFull")
)

// chances are how often each kind of trouble may happen in a history. What happens in every history has no limit: cycles, binds, watch events in any
// delay.
type chances struct {
	// spread is the number of its first spec. With one that has binding: Gated, the pods have a gate.
	spread int
	// bare are the subsets that have no node at first. nodes is how many of them get one.
	bare  string
	nodes int
	// pods is how many pods are created.
	pods int
	// unanswered are binds without an answer. They happen at once, late, or never. refused are binds that the API server refuses.
	unanswered, refused int
	// lost are nodes that a pod gives back before its bind. refusals are cycles that another plugin refuses before the pod can ask.
	lost, refusals int
	// again are events that come twice. old are events that show the version before the last one again.
	again, old int
	// deleted and relabelled count pods. A relabelled pod changes its revision.
	deleted, relabelled int
	// edits of the spread.
	edits int
	// crashes of the scheduler. audits are calls of Audit in the middle.
	crashes, audits int
	// ticks are steps of time, each as long as an unanswered bind may still happen.
	ticks int
	// silent are patches of gates without an answer. denied are those that the API server refuses although they are right.
	silent, denied int
}

// small is a small world: the ledger, and a model of the API server, of its watch, and of the scheduler's queue and cycles. The model counts on its own.
type small struct {
	*world
	left chances
	now  int
	pods [smallPods]smallPod
	// spread is the number of the spec that the API server has. The ledger has it too, if shown is true.
	spread int
	shown  bool
	// disturbed is true after an edit or a new label, which may put a subset over its quota, until each subset is within its quota again and the watch has shown
	// each label.
	disturbed bool
	gates
	takeOver takeOver
	// toRead are the pods that the take-over has listed and not read yet, and which version its read shows.
	toRead [smallPods]int
}

// takeOver is how far a process is that took over from one that crashed.
type takeOver uint8

const (
	complete takeOver = iota
	synchronizing
	listing
)

// version of a pod, as the API server had it.
type version struct {
	revision, in int
	gone         bool
	// gated is true if the pod has Berth's gate. picked is the subset in which it was opened. 0 is none.
	gated  bool
	picked int
}

type smallPod struct {
	versions []version
	// shown is the version that the watch showed last, from 1. 0 means none.
	shown int
	// seen is the version that counts for the ledger: no old event takes a node away.
	seen version
	// awake is true if the scheduler will try the pod.
	awake bool
	// free is true if no spread divides the pod.
	free     bool
	decision *Decision
	reserved bool
	// sent is the subset of the bind that waits for its answer. 0 is none.
	sent int
	// maybe are the subsets of binds that may still happen without the scheduler's knowledge, and until when. -1 is until the barrier of a take-over.
	maybe []pending
	// doubted is true if the pod must be read because of a bind without an answer.
	doubted bool
	// readAt is when such a read began, and read the version that it shows. 0 means no read is under way.
	readAt, read int
	gate
}

type pending struct{ in, until int }

func (p *smallPod) last() version { return p.versions[len(p.versions)-1] }

// exists is true for a pod that the API server has.
func (p *smallPod) exists() bool { return len(p.versions) > 0 && !p.last().gone }

// queued is true if the scheduler's queue knows the pod.
func (p *smallPod) queued() bool {
	return p.shown > 0 && !p.versions[p.shown-1].gone && p.versions[p.shown-1].in == 0
}

// mayBeIn is true if the API server has bound the pod to the subset, or may still do so.
func (p *smallPod) mayBeIn(in int) bool {
	if !p.exists() {
		return false
	}
	if bound := p.last().in; bound != 0 {
		return bound == in
	}
	return p.sendsTo() == in || slices.ContainsFunc(p.maybe, func(b pending) bool { return b.in == in })
}

var smallObjects = sync.OnceValue(func() (objects [smallPods]map[version]*corev1.Pod) {
	for i := range smallPods {
		objects[i] = map[version]*corev1.Pod{}
		for revision, name := range []string{"v1", "v2"} {
			pod := inRevision(podOf("rs-uid", fmt.Sprintf("p%d", i)), name)
			objects[i][version{revision: revision, gated: true}] = withGate(pod)
			for picked, in := range smallNames {
				open := pod
				if picked > 0 {
					open = opened(pod, in)
				}
				objects[i][version{revision: revision, picked: picked}] = open
				for in := 1; in < len(smallNames); in++ {
					objects[i][version{revision: revision, in: in, picked: picked}] = onNode(open, "node-"+smallNames[in], smallNames[in])
				}
			}
		}
	}
	return objects
})

func (s *small) object(i int, v version) *corev1.Pod { return smallObjects()[i][v] }

var smallSpreads = sync.OnceValue(func() (objects []*v1beta1.WorkloadSpread) {
	for i, s := range smallSpecs {
		objects = append(objects, spreadObject(&testing.T{}, "web", int64(i+1), "Deployment", "web", s.spec))
	}
	return objects
})

// newSmall is a small world that begins with a scheduler that has synchronized.
func newSmall(tb rapid.TB, left chances) *small {
	tb.Helper()
	s := &small{left: left, spread: left.spread, gates: gates{bare: left.bare}}
	s.left.bare = ""
	s.begin(tb, time.Unix(1000, 0))
	s.showSpread()
	return s
}

// begin starts a scheduler process.
func (s *small) begin(tb rapid.TB, now time.Time) {
	tb.Helper()
	s.world = emptyWorldAt(tb, now)
	s.scale(smallPods)
	s.seeReplicaSet("rs-uid")
}

// TestEveryHistoryOfASmallWorld drives the ledger through every history of three pods and two slots, with several kinds of trouble at a time.
func TestEveryHistoryOfASmallWorld(t *testing.T) {
	searched := smallWorlds
	if *deep {
		searched = deepWorlds
	}
	for name, left := range searched {
		t.Run(name, func(t *testing.T) {
			worlds.Test(t, name, func() worlds.World[move] { return newSmall(t, left) }, 0)
		})
	}
}

// TestRandomHistoriesOfLargerWorlds tries some histories of the worlds that a search takes hours for.
func TestRandomHistoriesOfLargerWorlds(t *testing.T) {
	for name, left := range deepWorlds {
		t.Run(name, func(t *testing.T) {
			worlds.Check(t, name, 1000, worlds.Walk(func() worlds.World[move] { return newSmall(t, left) }))
		})
	}
}

// TestHistories plays the histories that found a fault.
func TestHistories(t *testing.T) {
	all := map[string]worlds.Play{slotsWorld: slotHistory, stormWorld: storms(false), stormOfSets: storms(true), tightStorm: tightStorms, newsWorld: newsInAnyOrder, layoutWorld: layoutHistory, changingWorkload: workloadHistory}
	for _, some := range []map[string]chances{smallWorlds, deepWorlds} {
		for name, left := range some {
			all[name] = worlds.Walk(func() worlds.World[move] { return newSmall(t, left) })
		}
	}
	worlds.Replay(t, all)
}

// smallWorlds are searched with each run of the tests. In each, the last pod has to wait for a slot, or two pods may use one.
var smallWorlds = map[string]chances{
	"three pods, a bind without an answer": {pods: 3, unanswered: 1, ticks: 1},
	"three pods, a bind that is refused":   {pods: 3, refused: 1, lost: 1},
	"three pods, a crash":                  {pods: 3, crashes: 1},
	"two binds without an answer":          {pods: 2, spread: oneSlot, unanswered: 2, ticks: 1},
	"old events and a deletion":            {pods: 2, spread: oneSlot, again: 1, old: 1, deleted: 1},
	"a deletion, a plugin's refusal":       {pods: 2, spread: oneSlot, refusals: 1, deleted: 1, lost: 1},
	"a crash with a deletion":              {pods: 2, spread: oneSlot, crashes: 1, deleted: 1},
	"a crash and a bind without an answer": {pods: 2, spread: oneSlot, crashes: 1, unanswered: 1, ticks: 1},
	"a new label":                          {pods: 2, spread: oneSlot, relabelled: 1, deleted: 1},
	"a new label during a doubtful bind":   {pods: 2, spread: oneSlot, relabelled: 1, unanswered: 1, ticks: 1},
	"edits":                                {pods: 2, edits: 2},
	"an edit during a doubtful bind":       {pods: 2, edits: 1, unanswered: 1, ticks: 1},

	"gates, a crash": {pods: 2, spread: gatedOneSlot, crashes: 1},
	"gates, a crash and a patch that is late": {pods: 2, spread: gatedOneSlot, silent: 1, crashes: 1},
	"gates, an old event":                     {pods: 2, spread: gatedOneSlot, old: 1, deleted: 1},
	"gates, no node in the first subset":      {pods: 2, spread: gated, bare: "a", nodes: 1},
	"gates, Adaptive and no node":             {pods: 2, spread: gatedAdaptive, bare: "ab", deleted: 1},
}

// deepWorlds are searched with -deep in place of smallWorlds.
var deepWorlds = map[string]chances{
	"gates of three pods, a crash":      {pods: 3, spread: gated, crashes: 1},
	"gates of three pods, nodes":        {pods: 3, spread: gatedAdaptive, bare: "ab", nodes: 2, old: 1, deleted: 1},
	"gates, two patches that are late":  {pods: 3, spread: gated, silent: 2, denied: 1, crashes: 1, deleted: 1},
	"gates, labels and edits":           {pods: 3, spread: gated, relabelled: 1, edits: 2, silent: 1, crashes: 1},
	"gates and binds without an answer": {pods: 3, spread: gated, silent: 1, unanswered: 1, lost: 1, ticks: 1, crashes: 1},
	"binds without an answer":           {pods: 3, unanswered: 2, deleted: 1, ticks: 2},
	"binds and old events":              {pods: 3, unanswered: 1, refused: 1, again: 1, old: 1, ticks: 1},
	"crashes":                           {pods: 3, unanswered: 1, crashes: 1, deleted: 1, ticks: 1},
	"two crashes with old events":       {pods: 2, crashes: 2, deleted: 1, old: 1},
	"labels":                            {pods: 3, relabelled: 2, unanswered: 1, ticks: 1},
	"labels and a crash":                {pods: 3, relabelled: 1, crashes: 1},
	"many edits":                        {pods: 3, edits: 3, unanswered: 1, ticks: 1},
	"edits and a crash":                 {pods: 3, edits: 1, crashes: 1},
	"refusals of another plugin":        {pods: 3, refusals: 2, deleted: 1, lost: 1, audits: 2},
	"a crash and a lost bind":           {pods: 3, unanswered: 1, crashes: 1, ticks: 1},
	"a crash and a refused bind":        {pods: 3, refused: 1, lost: 1, crashes: 1},
	"a crash and old events":            {pods: 3, again: 1, old: 1, crashes: 1},
	"a crash and a deletion":            {pods: 3, deleted: 1, crashes: 1},
	"a crash, a plugin's refusal":       {pods: 3, refusals: 1, crashes: 1},
	"everything once, of three":         {pods: 3, unanswered: 1, old: 1, deleted: 1, relabelled: 1, edits: 1, crashes: 1, ticks: 1},
	"everything once, of two pods":      {pods: 2, unanswered: 1, refused: 1, lost: 1, refusals: 1, again: 1, old: 1, deleted: 1, relabelled: 1, edits: 1, crashes: 1, audits: 1, ticks: 1},
}

// move is one thing that may happen.
type move struct {
	kind     string
	pod, arg int
}

func (m move) String() string {
	switch m.kind {
	case "edit":
		return "edit: " + smallSpecs[m.arg].name
	case "crash", "tick", "audit", "show spread", "barrier", "list ends":
		return m.kind
	case "node":
		return "node in " + smallNames[m.arg]
	default:
		return fmt.Sprintf("%s p%d", m.kind, m.pod)
	}
}

// Moves implements worlds.World.
func (s *small) Moves() (moves []move) {
	add := func(can bool, kind string, pod int) {
		if can {
			moves = append(moves, move{kind: kind, pod: pod})
		}
	}
	synced := s.shown || s.spread == deleted
	for i := range s.pods {
		p := &s.pods[i]
		if len(p.versions) == 0 {
			add(s.left.pods > 0, "create", i)
			break // the pods differ by the order of their creation only
		}
		v, last := p.last(), len(p.versions)
		synced = synced && (p.shown > 0 || v.gone)
		add(p.exists() && s.left.deleted > 0, "delete", i)
		add(p.exists() && s.left.relabelled > 0, "relabel", i)
		add(p.shown < last, "show", i)
		add(p.shown+1 < last, "show the last of", i)
		add(p.shown > 0 && s.left.again > 0, "show again", i)
		add(p.shown > 1 && s.left.old > 0, "show the old", i)
		idle := p.awake && p.queued() && p.decision == nil && s.takeOver == complete
		add(idle, "ask", i)
		add(idle && s.left.refusals > 0, "another plugin refuses", i)
		add(p.decision != nil && !p.reserved && s.hasNode(p.decision.Name()), "node found for", i)
		add(p.decision != nil && !p.reserved && !s.hasNode(p.decision.Name()), "no node found for", i)
		free := p.reserved && p.sent == 0 && p.patches[byBind] == request{}
		add(free, "send bind of", i)
		add(free && s.left.lost > 0, "node lost by", i)
		happened := p.sent != 0 && v.in == p.sent && !v.gone
		add(p.sent != 0 && v.in == 0 && !v.gone, "bind", i)
		add(happened, "answer yes to", i)
		add(p.sent != 0 && !happened && (v.gone || s.left.refused > 0), "answer no to", i)
		add(p.sent != 0 && s.left.unanswered > 0, "answer nothing to", i)
		for _, b := range p.maybe {
			if v.in == 0 && !v.gone {
				moves = append(moves, move{"late bind in " + smallNames[b.in] + " of", i, b.in})
			}
		}
		add(p.doubted && p.readAt == 0 && !s.ledger.UncertainUntil(podUID(i)).After(s.world.now), "read", i)
		add(p.readAt != 0, "read ends of", i)
		add(s.takeOver == listing && s.toRead[i] > 0, "list", i)
		moves = append(moves, s.movesOfGate(i)...)
	}
	for _, in := range s.bare {
		if s.left.nodes > 0 {
			moves = append(moves, move{kind: "node", arg: slices.Index(smallNames, string(in))})
		}
	}
	add(!s.shown && s.spread != deleted, "show spread", 0)
	for k := range smallSpecs {
		if s.left.edits > 0 && s.shown && k != s.spread && (k < gated || s.left.spread >= gated) {
			moves = append(moves, move{kind: "edit", arg: k})
		}
	}
	add(s.left.crashes > 0, "crash", 0)
	add(s.left.ticks > 0 && s.timeMatters(), "tick", 0)
	add(s.left.audits > 0, "audit", 0)
	add(s.takeOver == synchronizing && synced, "barrier", 0)
	add(s.takeOver == listing && s.toRead == [smallPods]int{}, "list ends", 0)
	return moves
}

// timeMatters is true if a step of time changes anything.
func (s *small) timeMatters() bool {
	return !s.due.IsZero() || slices.ContainsFunc(s.pods[:], func(p smallPod) bool { return len(p.maybe) > 0 || p.doubted || p.readAt != 0 })
}

func podUID(i int) types.UID { return types.UID(fmt.Sprintf("p%d-uid", i)) }

// do applies an event and follows what it wakes.
func (s *small) do(event Event) Effects {
	fx := s.apply(event)
	s.wakeUp()
	return fx
}

func (s *small) wakeUp() {
	for _, name := range s.awake {
		p := &s.pods[name[1]-'0']
		p.awake = p.awake || p.queued()
	}
	s.awake = nil
}

// endCycle ends a cycle that failed. The queue tries the pod again by itself.
func (s *small) endCycle(p *smallPod) {
	p.decision, p.reserved, p.sent = nil, false, 0
	p.awake = p.queued()
}

// show applies a watch event with a version of the pod, from 1.
func (s *small) show(i, version int) {
	p := &s.pods[i]
	was := p.queued()
	p.shown = version
	v := p.versions[version-1]
	s.observe(i, v, false)
	p.awake = p.queued() && (p.awake || !was && p.decision == nil)
}

// observe shows the ledger a version of a pod. A read one may be older than what the watch has shown, so it counts only if it shows the pod's node first.
func (s *small) observe(i int, v version, isRead bool) {
	p := &s.pods[i]
	counts := p.seen.in == 0 || v.in != 0
	if known := s.ledger.Knows(podUID(i)); known {
		opened := p.seen.gated && !v.gated
		counts = counts && (isRead && (v.in != 0 && p.seen.in == 0 || opened) || !isRead && (p.seen.gated || !v.gated))
	}
	switch {
	case v.gone:
		p.seen = version{}
		s.do(PodGone{UID: podUID(i)})
		return
	case isRead:
		s.do(PodRead{Pod: s.object(i, v)})
	default:
		s.do(PodSeen{Pod: s.object(i, v)})
	}
	if counts && s.ledger.Knows(podUID(i)) {
		p.seen = v
	}
}

func (s *small) put(p *smallPod, v version) {
	p.versions = append(p.versions, v)
	if v.gone || !v.gated {
		p.late = nil // they change nothing any more
	}
}

// Do implements worlds.World.
func (s *small) Do(m move) error {
	p := &s.pods[m.pod]
	i, uid := m.pod, podUID(m.pod)
	kind := m.kind
	for _, late := range []string{"late bind", "late patch"} {
		if strings.HasPrefix(kind, late) {
			kind = late
		}
	}
	switch kind {
	case "create":
		s.left.pods--
		s.put(p, version{gated: s.spread >= gated})
		s.show(i, 1) // a pod that is not shown yet might as well be created later
	case "delete":
		s.left.deleted--
		v := p.last()
		v.gone = true
		s.put(p, v)
	case "relabel":
		s.left.relabelled--
		v := p.last()
		v.revision = 1 - v.revision
		s.put(p, v)
	case "show":
		s.show(i, p.shown+1)
	case "show the last of":
		s.show(i, len(p.versions))
	case "show again":
		s.left.again--
		s.show(i, p.shown)
	case "show the old":
		s.left.old--
		s.show(i, p.shown-1)
	case "ask":
		p.awake, p.free = false, false
		answer, err := s.askWithChecks(i)
		if err != nil {
			return err
		}
		switch {
		case answer.Decision != nil:
			p.decision = answer.Decision
		case answer.Reason == "":
			if p.free = true; p.exists() && smallSpecs[s.spread].quota != nil {
				return errors.New("the ledger says that no spread divides the pod")
			}
		case answer.Message == "the pod is being bound already":
			p.awake = p.queued() // the queue gets an event of the bind
		}
	case "another plugin refuses":
		s.left.refusals--
		p.awake = false
		s.do(PodRefused{UID: uid})
		p.awake = true // what keeps it from asking ends some time
	case "node found for":
		if p.reserved = s.do(NodeFound{UID: uid, Decision: p.decision}).OK; !p.reserved {
			s.endCycle(p)
		}
	case "node lost by":
		s.left.lost--
		s.do(NodeLost{UID: uid})
		s.endCycle(p)
	case "send bind of":
		if !s.do(BindSent{UID: uid, Decision: p.decision}).OK {
			s.do(NodeLost{UID: uid})
			s.endCycle(p)
			break
		}
		if in := slices.Index(smallNames, p.decision.Name()); p.cycleGated {
			p.patches[byBind] = request{underWay: true, in: in}
		} else {
			p.sent = in
		}
		return s.fits(i)
	case "bind", "late bind":
		in := p.sent
		if kind == "late bind" {
			in = m.arg
			p.maybe = slices.DeleteFunc(slices.Clone(p.maybe), func(b pending) bool { return b.in == in })
		}
		v := p.last()
		if v.gated {
			return fmt.Errorf("the scheduler binds p%d, which has a gate", i)
		}
		v.in = in
		s.put(p, v)
	case "answer yes to":
		p.decision, p.reserved, p.sent, p.awake = nil, false, 0, false
	case "answer no to":
		if !p.last().gone {
			s.left.refused--
		}
		s.do(BindRefused{UID: uid})
		s.do(NodeLost{UID: uid})
		s.endCycle(p)
	case "answer nothing to":
		s.left.unanswered--
		if p.last().in == 0 {
			p.maybe = append(slices.Clone(p.maybe), pending{p.sent, s.now + 1})
		}
		p.doubted = true
		s.do(BindUnknown{UID: uid, Until: s.world.now.Add(doubt)})
		s.do(NodeLost{UID: uid})
		s.endCycle(p)
	case "read":
		p.doubted, p.readAt, p.read = false, s.now+1, len(p.versions)
	case "read ends of":
		v := p.versions[p.read-1]
		readAt := s.world.now.Add(time.Duration(p.readAt-1-s.now) * doubt)
		p.readAt, p.read = 0, 0
		s.observe(i, v, true)
		if !v.gone && v.in == 0 {
			s.do(BindDisproved{UID: uid, ReadAt: readAt})
		}
	case "list":
		v := p.versions[s.toRead[i]-1]
		s.toRead[i] = 0
		if !s.ledger.IsBound(uid) {
			counts := !s.ledger.Knows(uid) || v.in != 0 || p.seen.gated && !v.gated
			if s.do(PodListed{Pod: s.object(i, v)}); counts {
				p.seen = v
			}
			if !s.ledger.Knows(uid) {
				p.seen = version{}
			}
		}
	case "show spread":
		s.showSpread()
	case "edit":
		s.left.edits--
		s.disturbed = true
		s.spread = m.arg
		s.showSpread()
	case "crash":
		s.left.crashes--
		s.crash()
	case "tick":
		s.left.ticks--
		s.now++
		s.step(doubt)
		s.wakeUp()
		for i := range s.pods {
			s.pods[i].maybe = slices.DeleteFunc(slices.Clone(s.pods[i].maybe), func(b pending) bool { return b.until >= 0 && b.until <= s.now })
		}
	case "audit":
		s.left.audits--
		if s.do(Audit{}); s.missed > 0 {
			return errors.New("an audit wakes a pod that an event should have woken")
		}
	case "barrier":
		s.takeOver = listing
		s.do(ListBegins{})
		for i := range s.pods {
			s.pods[i].maybe = nil
			if s.pods[i].exists() && (s.pods[i].last().in != 0 || s.pods[i].last().picked != 0) {
				s.toRead[i] = len(s.pods[i].versions)
			}
		}
	case "list ends":
		s.takeOver = complete
		s.do(ListEnds{})
	default:
		if err := s.doWithGate(kind, i, m.arg); err != nil {
			return err
		}
	}
	return s.check()
}

func (s *small) showSpread() {
	s.shown = true
	if smallSpecs[s.spread].spec == "" {
		s.do(SpreadGone{Key: spreadKey})
		s.shown = false
		return
	}
	s.do(SpreadSeen{Spread: smallSpreads()[s.spread]})
}

// crash ends the scheduler process. Another one begins with nothing. Binds that were sent may still happen until the barrier has passed.
func (s *small) crash() {
	s.begin(s.t, s.world.now)
	s.shown, s.takeOver, s.toRead = false, synchronizing, [smallPods]int{}
	for i := range s.pods {
		p := &s.pods[i]
		for j := range p.maybe {
			p.maybe = slices.Clone(p.maybe)
			p.maybe[j].until = -1
		}
		if p.sent != 0 && p.exists() && p.last().in == 0 {
			p.maybe = append(slices.Clone(p.maybe), pending{p.sent, -1})
		}
		*p = smallPod{versions: p.versions, maybe: p.maybe, gate: p.afterCrash()}
	}
}

// fits is an error if the bind that was just sent takes a slot that is taken, or may be: pods count in the revision that the watch has shown.
func (s *small) fits(sent int) error {
	p := &s.pods[sent]
	in, n := p.sendsTo(), 0
	for i := range s.pods {
		if other := &s.pods[i]; other.mayBeIn(in) && other.seen.revision == p.seen.revision {
			n++
		}
	}
	if quota := smallSpecs[s.spread].quota[smallNames[in]]; n > quota {
		return fmt.Errorf("p%d is bound to %s, where %d pods are or may be; the quota is %d", sent, smallNames[in], n, quota)
	}
	return nil
}

// check is an error if more pods are in a subset than its quota, unless an edit or a new label has caused it.
func (s *small) check() error {
	s.disturbed = s.disturbed || s.hasNewLabel()
	if err := s.checkPicks(); err != nil {
		return err
	}
	for in := 1; in < len(smallNames); in++ {
		var n [2]int
		for i := range s.pods {
			if p := &s.pods[i]; p.mayBeIn(in) {
				n[p.last().revision]++
			}
		}
		if quota := smallSpecs[s.spread].quota[smallNames[in]]; max(n[0], n[1]) > quota {
			if s.disturbed {
				return nil
			}
			return fmt.Errorf("%v pods of the revisions are in %s or may be; the quota is %d", n, smallNames[in], quota)
		}
	}
	s.disturbed = s.hasNewLabel()
	return nil
}

// hasNewLabel is true if a pod counts in another revision than its own.
func (s *small) hasNewLabel() bool {
	return slices.ContainsFunc(s.pods[:], func(p smallPod) bool { return p.exists() && p.seen.revision != p.last().revision })
}

// Rest implements worlds.World. If nothing is under way, the ledger counts what the API server has, and no pod waits while there is a slot for it.
func (s *small) Rest() (bool, error) {
	if s.takeOver != complete || !s.shown && s.spread != deleted || !s.due.IsZero() {
		return false, nil
	}
	for i := range s.pods {
		p := &s.pods[i]
		if len(p.versions) > 0 && (p.shown < len(p.versions) || p.awake || p.decision != nil || p.doubted || p.readAt != 0 || len(p.maybe) > 0 || p.gateMoves()) {
			return false, nil
		}
	}
	for name, quota := range smallSpecs[s.spread].quota {
		a := s.ledger.byName[spreadKey]
		for revision := range 2 {
			kept := int(a.tally.Kept([]string{"v1", "v2"}[revision]).At(a.policy.Index(name)))
			if bound, claimed := s.slots(name, revision); kept != bound+claimed {
				return true, fmt.Errorf("the ledger counts %d slots of %s in v%d; %d pods are there, and %d wait for a node", kept, name, revision+1, bound, claimed)
			} else if claimed > 0 && kept > quota && !s.disturbed {
				return true, fmt.Errorf("%d pods wait for a node in %s, and %d have one; the quota is %d", claimed, name, bound, quota)
			}
		}
	}
	for i := range s.pods {
		p := &s.pods[i]
		if !p.exists() || p.free || p.last().in != 0 {
			continue
		}
		if s.spread == deleted {
			return true, fmt.Errorf("p%d sleeps, and there is no spread", i)
		}
		if err := s.sleeps(i); err != nil {
			return true, err
		}
	}
	if s.do(Audit{}); s.missed > 0 {
		return true, errors.New("an audit wakes a pod that an event should have woken")
	}
	return true, nil
}

// slots counts the pods of a revision that are bound to a subset, and those that wait for a node in it.
func (s *small) slots(name string, revision int) (bound, claimed int) {
	for i := range s.pods {
		switch p := &s.pods[i]; {
		case !p.exists() || p.last().revision != revision:
		case p.last().in != 0 && smallNames[p.last().in] == name:
			bound++
		case p.last().in == 0 && s.claimOf(i) == name:
			claimed++
		}
	}
	return bound, claimed
}

// claimOf is the subset in which a pod waits for a node. Empty if there is none.
func (s *small) claimOf(i int) string {
	if claim := s.ledger.ClaimOf(podUID(i)); claim != nil {
		return claim.Name
	}
	return ""
}

// sleeps is an error if a pod without a node may go on. Nothing is under way.
func (s *small) sleeps(i int) error {
	p := &s.pods[i]
	claim, v := s.claimOf(i), p.last()
	hasSlot := func(name string) bool {
		bound, claimed := s.slots(name, v.revision)
		if claim == name {
			claimed--
		}
		return bound+claimed < smallSpecs[s.spread].quota[name]
	}
	if claim != "" && s.hasNode(claim) {
		return fmt.Errorf("p%d sleeps in %s, and a node is there", i, claim)
	}
	if s.isPicked(v) {
		if picked := smallNames[v.picked]; claim != picked && hasSlot(picked) {
			return fmt.Errorf("p%d sleeps, and %s, which was picked for it, has a free slot", i, picked)
		} else if claim != picked && !s.surprised {
			return fmt.Errorf("%s was picked for p%d, and its slots went to others", picked, i)
		}
	} else if s.spread != gatedAdaptive || v.gated {
		for _, name := range smallNames[1:] {
			if name == claim {
				break // it waits for a node there
			}
			if hasSlot(name) {
				return fmt.Errorf("p%d sleeps, and %s has a free slot", i, name)
			}
		}
	}
	return s.sleepsBehindGate(i)
}

// Spent implements worlds.World. Time may be left.
func (s *small) Spent() bool { return s.left == chances{spread: s.left.spread, ticks: s.left.ticks} }

// Key implements worlds.World.
func (s *small) Key() string {
	var b strings.Builder
	fmt.Fprint(&b, s.left, s.spread, s.shown, s.disturbed, s.gates, s.takeOver, s.toRead)
	for i := range s.pods {
		p := &s.pods[i]
		fmt.Fprint(&b, p.versions, p.shown, p.seen, p.awake, p.free, p.decision != nil, p.reserved, p.sent, p.doubted, p.gate)
		if p.decision != nil {
			fmt.Fprint(&b, p.decision.Name(), p.decision.Spread.Generation, s.ledger.byName[spreadKey] != nil && s.ledger.byName[spreadKey].policy == p.decision.Policy)
		}
		if p.readAt != 0 {
			fmt.Fprint(&b, "read", p.readAt-s.now, p.read)
		}
		for _, m := range p.maybe {
			if m.until >= 0 {
				m.until -= s.now
			}
			fmt.Fprint(&b, m.in, "until", m.until)
		}
		b.WriteByte('\n')
	}
	b.WriteString(canonical(s.ledger, s.world.now))
	return b.String()
}
