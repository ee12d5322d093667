package ledger

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-project/berth/pkg/subset"
)

// gates is what a small world knows of pods with a gate. See gate.
type gates struct {
	// bare are the subsets that have no node.
	bare string
	// surprised is true if a pod may have got a pick that the scheduler did not count on, so that others may have filled the subset.
	surprised bool
}

// gate is what a small world knows of the gate of a pod.
type gate struct {
	// cycleGated is true if the pod has a gate in the cycle that is under way.
	cycleGated bool
	// toldGated is true if the pod had a gate in its last cycle, as far as the ledger knew.
	toldGated bool
	// toOpen is true if the opener looks at the pod some time.
	toOpen bool
	// patches are the requests of this process, by who sent them.
	patches [2]request
	// late are the subsets of patches that may still happen without the scheduler's knowledge. Nothing ends that but an open gate.
	late []int
}

// Who patches a gate: a bind before it is sent; or the opener, for a pod that waits for a node.
const (
	byBind = iota
	byOpener
)

var patchers = [...]string{"bind", "opener"}

// request is a patch that opens a gate in a subset. 0 is none: no spread divides the pod.
type request struct {
	underWay bool
	in       int
	// landed is true once the API server has carried it out.
	landed bool
}

func (s *small) hasNode(name string) bool { return !strings.Contains(s.bare, name) }

// gateMoves is true if the opener has something to do.
func (p *smallPod) gateMoves() bool { return p.toOpen || p.patches != [2]request{} }

// accepts is true if the API server carries out a patch, or has nothing to do for it.
func (p *smallPod) accepts(in int) bool {
	v := p.last()
	return !v.gone && (v.gated || in == 0 || v.picked == in)
}

// isPicked is true if the pick of a pod counts under the current spec.
func (s *small) isPicked(v version) bool {
	_, has := smallSpecs[s.spread].quota[smallNames[v.picked]]
	return has
}

func (s *small) movesOfGate(i int) (moves []move) {
	p := &s.pods[i]
	add := func(can bool, kind string, arg int) {
		if can {
			moves = append(moves, move{kind, i, arg})
		}
	}
	busy := slices.ContainsFunc(s.pods[:], func(p smallPod) bool { return p.patches[byOpener].underWay })
	add(p.toOpen && !busy, "look at the gate of", 0)
	for by, r := range p.patches {
		if !r.underWay {
			continue
		}
		of, accepts := patchers[by]+"'s patch of", p.accepts(r.in)
		add(!r.landed && accepts && p.last().gated, "land the "+of, by)
		add(r.landed || accepts && !p.last().gated, "answer the "+of, by)
		add(!r.landed && (!accepts || s.left.denied > 0), "refuse the "+of, by)
		add(s.left.silent > 0, "do not answer the "+of, by)
	}
	for _, in := range p.late {
		add(true, "late patch for \""+smallNames[in]+"\" of", in)
	}
	return moves
}

func (s *small) doWithGate(kind string, i, arg int) error {
	p := &s.pods[i]
	switch {
	case kind == "node":
		s.left.nodes--
		s.bare = strings.Replace(s.bare, smallNames[arg], "", 1)
		s.nodeAppears(smallNames[arg])
	case kind == "no node found for":
		d := p.decision
		p.decision, p.toOpen = nil, p.cycleGated
		if s.do(NoNodeFound{UID: podUID(i), Decision: d}).Next == Preempt {
			s.do(Preempted{UID: podUID(i), Decision: d})
		}
	case kind == "look at the gate of":
		p.toOpen = false
		d, divided := s.ledger.WaitsForNode(podUID(i))
		if d != nil && p.decision != nil {
			return fmt.Errorf("p%d waits for a node in %q in the middle of a cycle", i, d.Name())
		}
		if v := p.versions[p.shown-1]; !v.gated || v.gone || divided && d == nil {
			break
		}
		r := request{underWay: true}
		if d != nil {
			r.in = slices.Index(smallNames, d.Name())
		}
		p.patches[byOpener] = r
	case strings.HasPrefix(kind, "land"):
		p.patches[arg].landed = true
		s.open(i, p.patches[arg].in)
	case strings.HasPrefix(kind, "answer"):
		in := p.patches[arg].in
		p.patches[arg] = request{}
		if arg == byBind {
			p.sent = in
		}
	case strings.HasPrefix(kind, "refuse"):
		if p.accepts(p.patches[arg].in) {
			s.left.denied--
		}
		s.patchFails(i, arg)
	case strings.HasPrefix(kind, "do not answer"):
		s.left.silent--
		if r := p.patches[arg]; !r.landed {
			p.mayStillOpen(r.in)
		}
		s.patchFails(i, arg)
	case kind == "late patch":
		s.open(i, arg)
	default:
		return errors.New("there is no move " + kind)
	}
	return nil
}

// askWithChecks lets a pod ask, and checks the nodes that the ledger asks about.
func (s *small) askWithChecks(i int) (Answer, error) {
	p := &s.pods[i]
	p.cycleGated, p.toldGated = p.versions[p.shown-1].gated, p.seen.gated
	event := PodAsks{Pod: s.object(i, p.versions[p.shown-1])}
	fx := s.do(event)
	for range smallNames {
		if fx.Check == nil {
			break
		}
		result := Feasible
		if !s.hasNode(fx.Check.Policy.Subsets[fx.Check.Subset].Name) {
			result = Infeasible
		}
		event.Results.Add(fx.Check, result)
		fx = s.do(event)
	}
	if fx.Check != nil {
		return Answer{}, errors.New("the ledger does not stop looking")
	}
	if fx.Answer.Decision == nil && p.cycleGated {
		if p.toOpen = true; waitFor(fx.Answer.Reason) == forAnyNode {
			s.do(PodWaits{UID: podUID(i)})
		}
	}
	return fx.Answer, nil
}

// open is what the API server does: the first patch opens the gate.
func (s *small) open(i, in int) {
	p := &s.pods[i]
	v := p.last()
	taken := 0
	for j := range s.pods {
		if other := &s.pods[j]; j != i && in != 0 && (other.mayBeIn(in) || other.exists() && other.last().picked == in) {
			taken++
		}
	}
	s.surprised = s.surprised || in != 0 && taken >= smallSpecs[s.spread].quota[smallNames[in]]
	v.gated, v.picked = false, in
	s.put(p, v)
}

// patchFails is what the scheduler does if a patch is refused or has no answer.
func (s *small) patchFails(i, by int) {
	p := &s.pods[i]
	p.patches[by] = request{}
	if by == byOpener {
		p.toOpen = true // it tries again later
		return
	}
	s.do(BindRefused{UID: podUID(i)})
	s.do(NodeLost{UID: podUID(i)})
	s.endCycle(p)
}

// mayStillOpen records a patch of which nobody waits for the answer.
func (p *smallPod) mayStillOpen(in int) {
	if p.exists() && p.last().gated && !slices.Contains(p.late, in) {
		p.late = append(slices.Clone(p.late), in)
		slices.Sort(p.late)
	}
}

// afterCrash is the gate of a pod for the next process.
func (p *smallPod) afterCrash() gate {
	for _, r := range p.patches {
		if r.underWay && !r.landed {
			p.mayStillOpen(r.in)
		}
	}
	return gate{late: p.late}
}

// nodeAppears tells the queue of a node. It tries pods that wait for a node in this subset, and asks the ledger about the others.
func (s *small) nodeAppears(in string) {
	change := new(int)
	for i := range s.pods {
		p := &s.pods[i]
		if !p.queued() || p.awake || p.decision != nil {
			continue
		}
		p.awake = s.claimOf(i) == in || s.do(ClusterChanged{UID: podUID(i), Change: change, Node: s.ledger.nodes["node-"+in], OnNode: true}).OK
	}
}

// checkPicks looks for picks that the scheduler does not count on: the pod left the subset while the patch was under way, or the patch is of a process
// that is gone. Until the ledger sees such a pick, it may give the slot to another pod.
func (s *small) checkPicks() error {
	if s.disturbed {
		s.surprised = true
	}
	for i := range s.pods {
		p := &s.pods[i]
		if e := s.ledger.pods[podUID(i)]; e != nil && subset.IsGated(e.pod) != p.seen.gated {
			return fmt.Errorf("the ledger has seen p%d with an open gate, and has forgotten it", i)
		}
		if s.takeOver != complete || !p.exists() || !p.seen.gated {
			continue
		}
		if v := p.last(); v.in == 0 && s.isPicked(v) {
			e := s.ledger.pods[podUID(i)]
			if in := e.policy().Index(smallNames[v.picked]); in == subset.None || !e.holds().Has(in) {
				s.surprised = true
			}
		}
	}
	return nil
}

// sleepsBehindGate is an error if the gate of a pod that sleeps should be open, or if the pod was not told that it is.
func (s *small) sleepsBehindGate(i int) error {
	switch p, claim := &s.pods[i], s.claimOf(i); {
	case p.last().gated && claim != "":
		return fmt.Errorf("p%d waits for a node in %s, and its gate is closed", i, claim)
	case !p.last().gated && p.toldGated:
		return fmt.Errorf("the gate of p%d is open, and it was not tried again", i)
	case !p.last().gated && p.last().picked == 0 && s.left.spread >= gated && !s.surprised:
		return fmt.Errorf("the gate of p%d was opened in no subset", i)
	}
	return nil
}

// sendsTo is the subset to which the scheduler binds the pod, as soon as it has no gate. 0 is none.
func (p *smallPod) sendsTo() int {
	if p.patches[byBind].underWay {
		return p.patches[byBind].in
	}
	return p.sent
}
