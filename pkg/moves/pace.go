package moves

import (
	"cmp"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

// Pace bounds how often pods are moved between the same two subsets. If pods came back to where the last move was from,
// the next move waits
//
//	min(Base · 2^(round−1), Longest)
//
// after it. If none came back, the last move was good, and more may follow.
type Pace struct {
	// Base is the wait of the first round.
	Base time.Duration
	// Longest wait. After twice as long without a move the rounds start again at 1.
	Longest time.Duration
}

// quietWaits is how many of the longest waits must pass without a move before its rounds start again at 1. One is not
// enough: pods that always come back are moved again when it is over, or a little later, because the descheduler runs
// only now and then.
const quietWaits = 2

// wait of a round. Rounds count from 1.
func (p Pace) wait(round int32) time.Duration {
	wait := p.Base
	for ; round > 1 && wait < p.Longest; round-- {
		wait *= 2
	}
	return min(wait, p.Longest)
}

// pair is a move's direction: from which subset to which.
type pair struct{ from, to int }

// name of a subset in the status.
func (f *Facts) name(index int) string { return f.Policy.Subset(index).Name }

func find(moves []v1beta1.Move, from, to string) int {
	return slices.IndexFunc(moves, func(m v1beta1.Move) bool { return m.From == from && m.To == to })
}

// returned is true if pods have come back to a subset since the move: it has more than the move left, or younger ones.
func returned(m *v1beta1.Move, pods []*Pod) bool {
	return int32(len(pods)) > m.Remaining || slices.ContainsFunc(pods, func(pod *Pod) bool { return pod.Created.After(m.Time.Time) })
}

// notBefore is when the pods in the subset may be moved in this direction again. The second result is true if they have
// come back. Both are zero if no pod was moved in this direction before.
func (f *Facts) notBefore(pace Pace, way pair, pods []*Pod) (time.Time, bool) {
	at := find(f.Moves, f.name(way.from), f.name(way.to))
	if at < 0 {
		return time.Time{}, false
	}
	m := &f.Moves[at]
	if !returned(m, pods) {
		return time.Time{}, false
	}
	return m.Time.Add(pace.wait(m.Round)), true
}

// Record returns the moves for the status, with the decision added. The caller must store them before it evicts
// anything. Pods that are gone and replaced, subsets that are gone, and old moves are left out.
func (f *Facts) Record(d *Decision) []v1beta1.Move {
	present := map[string]bool{"": true}
	for i := range f.Policy.Subsets {
		present[f.Policy.Subsets[i].Name] = true
	}
	var moves []v1beta1.Move
	for i := range f.Moves {
		m := f.Moves[i].DeepCopy()
		if present[m.From] && present[m.To] && f.Now.Sub(m.Time.Time) < forgetAfter {
			f.settle(m)
			moves = append(moves, *m)
		}
	}
	now := metav1.NewTime(f.Now)
	leaving := map[int]int32{}
	for i := range d.Moves {
		leaving[d.Moves[i].From]++
	}
	began, closed := map[pair]bool{}, map[pair]bool{}
	for i := range d.Moves {
		move := &d.Moves[i]
		way := pair{move.From, move.To}
		at := find(moves, f.name(way.from), f.name(way.to))
		if at < 0 {
			at = len(moves)
			moves = append(moves, v1beta1.Move{From: f.name(way.from), To: f.name(way.to), Round: 1, Time: now})
			began[way] = true
		}
		m := &moves[at]
		if !began[way] {
			began[way], closed[way] = true, closes(m, f.Policy, f.Now)
			switch {
			case f.Now.Sub(m.Time.Time) > quietWaits*d.pace.Longest:
				m.Round = 1
			case d.cameBack[way]:
				m.Round++
			}
			m.Time = now
		}
		if !closed[way] { // else a later move for another reason may have happened because the subset is closed, and must not open it
			m.Reason = string(move.Reason)
		}
		m.Remaining = max(int32(len(d.could[way.from]))-leaving[way.from], 0)
		m.InFlight = append(m.InFlight, v1beta1.PodInFlight{UID: move.Pod.UID, Name: move.Pod.Name, Time: now})
	}
	slices.SortFunc(moves, func(a, b v1beta1.Move) int { return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To)) })
	return moves
}

// LongestPace is the longest wait that a pace may have. Validate of the strategies checks it.
const LongestPace = 24 * time.Hour

// forgetAfter is how long a move is recorded: the quiet time of the longest pace.
const forgetAfter = quietWaits * LongestPace

// settle removes pods from a move that are gone and replaced, or should be by now.
func (f *Facts) settle(m *v1beta1.Move) {
	missing := f.missing()
	m.InFlight = slices.DeleteFunc(m.InFlight, func(in v1beta1.PodInFlight) bool {
		return !f.flies(&in) || missing == 0 && !f.isActive(in.UID)
	})
}

// Retract removes pods from the record that were not evicted after all, as if the decision had been made without them.
// A direction in which none was moved is as it was before. In the other directions from the same subset, more pods
// remain.
func (f *Facts) Retract(recorded []v1beta1.Move, failed []Move) []v1beta1.Move {
	before := f.Record(&Decision{})
	stayed := map[string]int32{}
	for i := range failed {
		stayed[f.name(failed[i].From)]++
	}
	var moves []v1beta1.Move
	for i := range recorded {
		m := recorded[i].DeepCopy()
		at := find(before, m.From, m.To)
		decided := func(in v1beta1.PodInFlight) bool {
			return at < 0 || !slices.ContainsFunc(before[at].InFlight, func(was v1beta1.PodInFlight) bool { return was.UID == in.UID })
		}
		if !slices.ContainsFunc(m.InFlight, decided) {
			moves = append(moves, *m) // the decision did not change it
			continue
		}
		m.InFlight = slices.DeleteFunc(m.InFlight, func(in v1beta1.PodInFlight) bool {
			return slices.ContainsFunc(failed, func(move Move) bool { return move.Pod.UID == in.UID })
		})
		m.Remaining += stayed[m.From]
		switch wentNobody := !slices.ContainsFunc(m.InFlight, decided); {
		case wentNobody && at < 0:
			continue
		case wentNobody:
			m = &before[at]
		}
		moves = append(moves, *m)
	}
	return moves
}
