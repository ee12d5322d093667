package moves

import (
	"cmp"
	"slices"
	"time"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	"github.com/berth-project/berth/pkg/subset"
)

// ReturnLimits bound Return.
type ReturnLimits struct {
	// Stable is for how long no pod must have waited in a subset or left it.
	Stable time.Duration
	// Residence is how long a pod must have been on its node.
	Residence time.Duration
	// Cooldown is the time between two cycles that move pods of a spread.
	Cooldown time.Duration
	// AtMost pods of a spread return in one cycle.
	AtMost int32
	// Pace of repeated moves, if pods come back.
	Pace Pace
}

// DefaultReturnLimits are those of RebalanceToPreferredSubset without arguments.
func DefaultReturnLimits() ReturnLimits {
	return ReturnLimits{Stable: 10 * time.Minute, Residence: 15 * time.Minute, Cooldown: 5 * time.Minute, AtMost: 1,
		Pace: Pace{Base: 5 * time.Minute, Longest: 4 * time.Hour}}
}

// Return decides about pods of later subsets, or of none, for which an earlier subset has quota and a node: pods of no subset first, then those of
// the last subset, in each the pod with the lowest deletion cost first. If a pod of the workload is missing or not ready, no pod is moved: whatever
// the workload is doing comes first.
func Return(f *Facts, limits ReturnLimits, cluster Cluster) Decision {
	present := f.present()
	places := f.placesOf(present)
	candidates := f.awayFromHome(present, places)
	if len(candidates) == 0 {
		return Decision{}
	}
	byFrom := map[int][]*Pod{}
	for _, c := range candidates {
		byFrom[c.From] = append(byFrom[c.From], c.Pod)
	}
	switch {
	case f.Paused:
		return all(v1alpha1.ReasonPaused, time.Time{})
	case f.Moved&Away != 0:
		return all(v1alpha1.ReasonOppositeMove, time.Time{})
	case isRollingOut(present):
		return all(v1alpha1.ReasonRollingOut, time.Time{})
	case int32(len(present)) != f.asked() || ready(present) != f.asked():
		return all(v1alpha1.ReasonNotAtRest, time.Time{})
	case slices.ContainsFunc(f.Moves, func(m v1alpha1.Move) bool { return f.Now.Before(m.Time.Add(limits.Cooldown)) }):
		wait := f.Returns(limits, candidates[0].To, func(m *v1alpha1.Move) bool { return returned(m, byFrom[f.Policy.Index(m.From)]) })
		return all(wait.Reason, wait.Until) // what holds the first pod after the cool-down, if that takes longer
	}
	d := Decision{candidates: map[int]int32{}, cameBack: map[pair]bool{}, pace: limits.Pace}
	for from, pods := range byFrom {
		d.candidates[from] = int32(len(pods))
	}
	for _, move := range candidates {
		reason := cluster.Spares(move.Pod)
		switch due := move.Pod.BoundSince.Add(limits.Residence); {
		case int32(len(d.Moves)) >= limits.AtMost:
			d.hold(move.Pod, move.From, v1alpha1.ReasonLimitReached, time.Time{})
		case f.Now.Before(due):
			d.hold(move.Pod, move.From, v1alpha1.ReasonTooYoung, due)
		case reason != "":
			d.hold(move.Pod, move.From, reason, time.Time{})
		default:
			var wait Wait
			// No pod passes a closed subset here: such a subset is unstable too, and preferred again soon.
			moved := d.try(f, cluster, places, byFrom[move.From], move, 0, HasRoom, func(to int) bool {
				if wait = (Wait{}); to != subset.None {
					wait = f.settles(limits.Stable, to)
				}
				return earlier(to, move.From) && wait.isOver(f.Now)
			})
			if !moved && !wait.isOver(f.Now) {
				last := &d.Held[len(d.Held)-1]
				last.Reason, last.Until = wait.Reason, wait.Until
			}
		}
	}
	return d
}

// awayFromHome are the bound pods for which an earlier subset has quota, in the order in which they return.
func (f *Facts) awayFromHome(present []*Pod, places *places) []Move {
	var moves []Move
	for _, pod := range present {
		if pod.NodeName == "" {
			continue
		}
		from, _ := f.Policy.SubsetOf(&pod.Pod, f.Name)
		for to := range f.Policy.Subsets {
			if earlier(to, from) && f.Policy.HasRoom(&places.plan, places.tally.Kept(f.Policy.ScopeOf(pod.Revision)), to, subset.Candidate{}) {
				moves = append(moves, Move{Pod: pod, From: from, To: to, Reason: v1alpha1.ReasonEarlierSubsetHasRoom})
				break
			}
		}
	}
	slices.SortFunc(moves, func(a, b Move) int { return cmp.Or(cmp.Compare(f.rank(b.From), f.rank(a.From)), before(a.Pod, b.Pod)) })
	return moves
}

// rank of a subset in order of preference. subset.None comes last.
func (f *Facts) rank(index int) int {
	if index == subset.None {
		return len(f.Policy.Subsets)
	}
	return index
}

// earlier is true if a pod should rather be in the first subset than in the second.
func earlier(to, from int) bool { return to != subset.None && (from == subset.None || to < from) }
