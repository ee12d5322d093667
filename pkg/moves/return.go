package moves

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
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
	// AtMost pods of a spread are away at a time, for whatever reason: those that return in the cycle, and those that
	// are not ready. A count, or a percentage of the pods that it should divide, rounded up.
	AtMost intstr.IntOrString
	// Pace of repeated moves, if pods come back.
	Pace Pace
}

// DefaultReturnLimits are those of RebalanceToPreferredSubset without arguments.
func DefaultReturnLimits() ReturnLimits {
	return ReturnLimits{Stable: 10 * time.Minute, Residence: 15 * time.Minute, Cooldown: 5 * time.Minute, AtMost: intstr.FromString("10%"),
		Pace: Pace{Base: 5 * time.Minute, Longest: 4 * time.Hour}}
}

// Return decides about pods of later subsets, or of none, for which an earlier subset has quota and a node: pods of no
// subset first, then those of the last subset, in each the pod with the lowest deletion cost first. With shares or
// minimums it decides about pods of subsets above their target, for which a subset below its target has quota and a
// node. A pod of a StatefulSet returns to its home only; see subset.Policy.SubsetAt. If a pod of the workload is
// missing, or as many are not ready as may be away, no pod is moved: whatever the workload is doing comes first.
func Return(f *Facts, limits ReturnLimits, cluster Cluster) Decision {
	present := f.present()
	places := f.placesOf(present)
	candidates := f.awayFromHome(present, places)
	if len(candidates) == 0 {
		return Decision{}
	}
	d := decide(limits.Pace, candidates)
	allowed := amount(limits.AtMost, f.asked()) - (f.asked() - ready(present))
	switch {
	case f.Paused:
		return all(v1beta1.ReasonPaused, time.Time{})
	case f.Moved&Away != 0:
		return all(v1beta1.ReasonOppositeMove, time.Time{})
	case isRollingOut(present):
		return all(v1beta1.ReasonRollingOut, time.Time{})
	case int32(len(present)) != f.asked() || allowed <= 0:
		return all(v1beta1.ReasonNotAtRest, time.Time{})
	case slices.ContainsFunc(f.Moves, func(m v1beta1.Move) bool { return f.Now.Before(m.Time.Add(limits.Cooldown)) }):
		wait := f.Returns(limits, candidates[0].To, func(m *v1beta1.Move) bool { return returned(m, d.could[f.Policy.Index(m.From)]) })
		return all(wait.Reason, wait.Until) // what holds the first pod after the cool-down, if that takes longer
	}
	for _, move := range candidates {
		reason := cluster.Spares(move.Pod)
		switch due := move.Pod.BoundSince.Add(limits.Residence); {
		case int32(len(d.Moves)) >= allowed:
			d.hold(move.Pod, move.From, v1beta1.ReasonLimitReached, time.Time{})
		case f.Now.Before(due):
			d.hold(move.Pod, move.From, v1beta1.ReasonTooYoung, due)
		case reason != "":
			d.hold(move.Pod, move.From, reason, time.Time{})
		case move.Pod.Sole:
			d.hold(move.Pod, move.From, v1beta1.ReasonOnlyPod, time.Time{})
		default:
			var wait Wait
			// No pod passes a closed subset here: such a subset is unstable too, and preferred again soon.
			moved := d.try(f, cluster, places, move, 0, HasRoom, func(to int) bool {
				if wait = (Wait{}); to != subset.None {
					wait = f.settles(limits.Stable, to)
				}
				return f.gains(places, move.Pod, to, move.From, 0) && wait.isOver(f.Now)
			})
			if !moved && !wait.isOver(f.Now) {
				last := &d.Held[len(d.Held)-1]
				last.Reason, last.Until = wait.Reason, wait.Until
			}
		}
	}
	return d
}

// awayFromHome are the bound pods that should rather be in another subset, which has quota, in the order in which they
// return.
func (f *Facts) awayFromHome(present []*Pod, places *places) []Move {
	var moves []Move
	for _, pod := range present {
		if pod.NodeName == "" {
			continue
		}
		from, _ := f.Policy.SubsetOf(&pod.Pod, f.Name)
		scope := f.Policy.ScopeOf(pod.Revision)
		for to := range f.Policy.Subsets {
			if f.gains(places, pod, to, from, 1) && f.Policy.HasRoom(&places.plan, places.tally.Kept(scope), to, subset.Candidate{}) {
				moves = append(moves, Move{Pod: pod, From: from, To: to, Reason: v1beta1.ReasonEarlierSubsetHasRoom})
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

// gains is true if a pod should rather be in the first subset than in the second. counted is 1 if the counts of the
// scope include the pod, and otherwise 0.
func (f *Facts) gains(places *places, pod *Pod, to, from int, counted int32) bool {
	if home, known := f.Policy.SubsetAt(&places.plan, pod.Position); known {
		return to == home && from != home && home != subset.None
	}
	if !f.Policy.IsRanked() || to == subset.None || from == subset.None {
		return earlier(to, from)
	}
	kept := places.tally.Kept(f.Policy.ScopeOf(pod.Revision))
	return kept.At(to) < places.targets[to] && kept.At(from)-counted >= places.targets[from]
}

// isHomeward is true for a recorded move after which pods should not be in subset From. Other moves left a subset that
// had no node or no quota for them.
func (f *Facts) isHomeward(m *v1beta1.Move) bool {
	if m.Reason == string(v1beta1.ReasonEarlierSubsetHasRoom) {
		return true // the home of a pod of a StatefulSet may be later
	}
	return !f.Policy.IsRanked() && earlier(f.Policy.Index(m.To), f.Policy.Index(m.From))
}

// earlier is true if a pod should rather be in the first subset than in the second.
func earlier(to, from int) bool { return to != subset.None && (from == subset.None || to < from) }
