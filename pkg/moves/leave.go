package moves

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
)

// LeaveLimits bound Leave.
type LeaveLimits struct {
	// Tolerance is added to the time that a pod must wait, because clocks differ.
	Tolerance time.Duration
	// AtMost pods leave a subset in one cycle: a count, or a percentage of those that wait, rounded up.
	AtMost intstr.IntOrString
	// Pace of repeated moves, if pods come back.
	Pace Pace
}

// Leave decides about pending pods that can use one subset only and have found no node there for the time that the
// spread allows. The pod that has waited longest comes first. Pods leave only with strategy Adaptive, and only if
// another subset has quota. For a pod that carries the patch of a subset, the other one must also have a node, as far
// as is known. For a pod whose gate the scheduler has opened it need not: no subset had a node then, and a node
// autoscaler may make one. Such a pod stays if it belongs to a Job, which would take it for a failed one.
//
// Admission or the scheduler may send the replacements to a subset before that one. They then leave it in turn.
func Leave(f *Facts, limits LeaveLimits, cluster Cluster) Decision {
	wait := f.Policy.Adaptive.Wait
	if f.Policy.Strategy != v1beta1.AdaptiveScheduleStrategy || wait == 0 {
		return Decision{}
	}
	present := f.present()
	d := decide(limits.Pace, nil)
	for _, pod := range present {
		in, counts := f.Policy.AdmittedTo(pod.Admitted, f.Name)
		if counts && in != subset.None && pod.NodeName == "" && !pod.UnschedulableSince.IsZero() && (!pod.Admitted.Opened || !pod.OfJob) {
			d.could[in] = append(d.could[in], pod)
		}
	}
	places := f.placesOf(present)
	for from := range f.Policy.Subsets {
		pods := d.could[from]
		slices.SortFunc(pods, func(a, b *Pod) int { return cmp.Or(a.UnschedulableSince.Compare(b.UnschedulableSince), before(a, b)) })
		left, most := 0, amount(limits.AtMost, int32(len(pods)))
		for _, pod := range pods {
			due := pod.UnschedulableSince.Add(wait + limits.Tolerance)
			switch reason := cluster.Spares(pod); {
			case !f.Now.After(due):
				continue // it may still find a node
			case f.Paused:
				d.hold(pod, from, v1beta1.ReasonPaused, time.Time{})
			case f.Moved&Home != 0:
				d.hold(pod, from, v1beta1.ReasonOppositeMove, time.Time{})
			case left >= int(most):
				d.hold(pod, from, v1beta1.ReasonLimitReached, time.Time{})
			case reason != "":
				d.hold(pod, from, reason, time.Time{})
			default:
				var may func(to int) bool
				closed, enough := f.closed().With(from), RoomUnknown
				if pod.Admitted.Opened {
					enough, may = NoRoom, func(to int) bool { return to != subset.None }
				}
				if d.try(f, cluster, places, Move{Pod: pod, From: from, Reason: v1beta1.ReasonUnschedulableTooLong}, closed, enough, may) {
					left++
				}
			}
		}
	}
	return d
}

// amount is a count, or a percentage of total, rounded up. It is at least 1.
func amount(value intstr.IntOrString, total int32) int32 {
	n, err := intstr.GetScaledValueFromIntOrPercent(&value, int(total), true)
	if err != nil {
		return 1 // Validate of the strategies refuses such values
	}
	return max(int32(n), 1)
}

func (d *Decision) hold(pod *Pod, from int, reason v1beta1.Reason, until time.Time) {
	d.Held = append(d.Held, Held{Pod: pod, From: from, Reason: reason, Until: until})
}

// places are the slots that are taken.
type places struct {
	plan  subset.Plan
	tally *subset.Tally
	// targets of the pods that the spread should divide. Nil if the subsets are filled in order.
	targets []int32
}

// placesOf counts the bound pods, the pending ones that admission has picked a subset for, and the replacements of
// evicted pods that do not exist yet.
func (f *Facts) placesOf(present []*Pod) *places {
	p := &places{plan: f.Policy.Plan(f.Replicas), tally: f.Policy.Count(observed(present), f.Name)}
	if f.Policy.IsRanked() {
		p.targets, _ = f.Policy.Targets(&p.plan, f.asked())
	}
	for _, pod := range present {
		if in, counts := f.Policy.AdmittedTo(pod.Admitted, f.Name); counts && in != subset.None && pod.NodeName == "" {
			p.tally.Add(f.Policy.ScopeOf(pod.Revision), in)
		}
	}
	gone := f.gone()
	for i := range f.Pods {
		pod := &f.Pods[i]
		if to, flies := gone[pod.UID]; flies && pod.Active {
			p.tally.Add(f.Policy.ScopeOf(pod.Revision), to)
		}
		if !pod.Active && f.Policy.HoldsSlot(&pod.Pod) {
			in, _ := f.Policy.SubsetOf(&pod.Pod, f.Name)
			p.tally.Add(f.Policy.ScopeOf(pod.Revision), in)
		}
	}
	scopes := sets.New[string]() // nobody knows of which revision the pods were
	for _, pod := range present {
		scopes.Insert(f.Policy.ScopeOf(pod.Revision))
	}
	for to, pods := range f.unreplaced() {
		for scope := range scopes {
			for range pods {
				p.tally.Add(scope, to)
			}
		}
	}
	return p
}

// sent is true if admission decides about the replacement of the pod. Admission knows no nodes, so the replacement may
// have to wait. A running pod should stay then. A pending pod loses nothing: its replacement goes on to the next
// subset.
func (f *Facts) sent(pod *Pod) bool { return f.Policy.BindsEarly() && pod.NodeName != "" }

// next is the subset for a replacement of the pod.
func (f *Facts) next(places *places, pod *Pod, closed subset.Mask) subset.Verdict {
	kept, candidate := places.tally.Kept(f.Policy.ScopeOf(pod.Revision)), f.Policy.At(&places.plan, pod.Position, subset.Candidate{Closed: closed})
	if f.sent(pod) {
		return f.Policy.PickEarly(&places.plan, kept, candidate)
	}
	return f.Policy.Admit(&places.plan, kept, candidate)
}

// try looks for the subset of a replacement of the pod: the first with quota that is not closed and, with strategy
// Adaptive, has a node, unless admission decides. It moves the pod if may allows the subset, and otherwise holds it.
// enough is the least knowledge of room that is needed: with NoRoom the pod may be moved although its replacement will
// wait.
func (d *Decision) try(f *Facts, cluster Cluster, places *places, move Move, closed subset.Mask, enough Room, may func(to int) bool) bool {
	scope, pod := f.Policy.ScopeOf(move.Pod.Revision), move.Pod
	places.tally.Remove(scope, move.From)
	found := v1beta1.ReasonNoRoom
	var until time.Time
	for tried := 0; tried <= len(f.Policy.Subsets); tried++ {
		verdict := f.next(places, pod, closed)
		in := verdict.Subset
		if !verdict.Allowed() && enough > NoRoom || may != nil && !may(in) {
			break
		}
		if tried == 0 || !f.Policy.BindsEarly() {
			move.To = in // an early-bound pod may end in a later one
		}
		way := pair{move.From, move.To}
		wait, cameBack := f.notBefore(d.pace, way, d.could[move.From])
		if f.Now.Before(wait) {
			found, until = v1beta1.ReasonBackingOff, wait
			break
		}
		room := cluster.Room(pod, in)
		if room >= enough {
			if move.Room = room; !verdict.Allowed() || in != move.To {
				move.Room = NoRoom // it waits first, even if a node is free
			}
			cluster.Take(pod)
			places.tally.Add(scope, move.To)
			d.cameBack[way] = cameBack
			d.Moves = append(d.Moves, move)
			return true
		}
		if room == RoomUnknown {
			found = v1beta1.ReasonRoomUnknown
		}
		if in == subset.None || f.Policy.Strategy != v1beta1.AdaptiveScheduleStrategy || f.sent(pod) {
			break
		}
		closed = closed.With(in)
	}
	places.tally.Add(scope, move.From)
	d.hold(pod, move.From, found, until)
	return false
}
