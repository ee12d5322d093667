package moves

import (
	"cmp"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
)

// TrimLimits bound Trim.
type TrimLimits struct {
	// Settle is how long pods must have been misplaced, so that short disturbances move no pod.
	Settle time.Duration
	// MaxUnavailable is how many pods of the spread may be missing or not ready, including moved pods: a count, or a
	// percentage of the pods that it should divide, rounded up.
	MaxUnavailable intstr.IntOrString
	// DuringRollouts also moves pods of a workload with several revisions.
	DuringRollouts bool
	// WithoutRoom also moves pods if no room is known for their replacements.
	WithoutRoom bool
	// Pace of repeated moves, if pods come back.
	Pace Pace
}

// Trim decides about misplaced bound pods: pods outside of their subset because the labels of their node changed, and
// pods above the quota of their subset because it was lowered or another scheduler bound them. They are moved in the
// order in which the workload would delete them.
func Trim(f *Facts, limits TrimLimits, cluster Cluster) (d Decision) {
	present := f.present()
	places := f.placesOf(present)
	misplaced := f.misplaced(present, &places.plan)
	memory := f.remember(int32(len(misplaced)))
	defer func() { d.Misplaced, d.Remembers = memory, true }()
	if len(misplaced) == 0 {
		return Decision{}
	}
	switch due := memory.Since.Add(limits.Settle); {
	case f.Paused:
		return all(v1beta1.ReasonPaused, time.Time{})
	case f.Moved&Home != 0:
		return all(v1beta1.ReasonOppositeMove, time.Time{})
	case !limits.DuringRollouts && isRollingOut(present):
		return all(v1beta1.ReasonRollingOut, time.Time{})
	case !limits.DuringRollouts && int32(len(present)) > f.asked():
		return all(v1beta1.ReasonNotAtRest, time.Time{}) // the workload deletes some itself
	case f.Now.Before(due):
		return all(v1beta1.ReasonSettling, due)
	}
	d = decide(limits.Pace, misplaced)
	allowed := amount(limits.MaxUnavailable, f.asked()) - max(f.asked()-ready(present), 0)
	enough := HasRoom
	if limits.WithoutRoom {
		enough = NoRoom
	}
	var closed subset.Mask // for admission; the scheduler takes pods that fit in any subset
	if f.Policy.BindsEarly() {
		closed = f.closed()
	}
	for _, move := range misplaced {
		if reason := cluster.Spares(move.Pod); reason != "" {
			d.hold(move.Pod, move.From, reason, time.Time{})
			continue
		}
		if move.Pod.Ready && allowed <= 0 {
			d.hold(move.Pod, move.From, v1beta1.ReasonLimitReached, time.Time{})
			continue
		}
		if d.try(f, cluster, places, move, closed, enough, nil) && move.Pod.Ready {
			allowed--
		}
	}
	return d
}

// misplaced are the pods to move, in order: pods on nodes that their subset does not select any more, those of the last
// subset first; then, of the others, those above the quota.
func (f *Facts) misplaced(present []*Pod, plan *subset.Plan) []Move {
	var moves []Move
	var rest []*Pod
	for _, pod := range present {
		in, adopted := f.Policy.SubsetOf(&pod.Pod, f.Name)
		if in != subset.None && !adopted && pod.Node != nil && !f.Policy.Subsets[in].Holds(pod.Node) {
			moves = append(moves, Move{Pod: pod, From: in, Reason: v1beta1.ReasonNodeOutsideSubset})
			continue
		}
		rest = append(rest, pod)
	}
	slices.SortFunc(moves, func(a, b Move) int { return cmp.Or(cmp.Compare(b.From, a.From), before(a.Pod, b.Pod)) })
	byUID := make(map[types.UID]*Pod, len(rest))
	for _, pod := range rest {
		byUID[pod.UID] = pod
	}
	for _, excess := range f.Policy.Surplus(plan, observed(rest), f.Name) {
		if excess.Reason == v1beta1.ReasonOverQuota {
			moves = append(moves, Move{Pod: byUID[excess.Pod.UID], From: excess.Subset, Reason: excess.Reason})
		}
	}
	return moves
}

// remember is since when this many pods have been misplaced. If the number grows, the time starts again, because it is
// not known which pods are new.
func (f *Facts) remember(pods int32) *v1beta1.Misplaced {
	switch {
	case pods == 0:
		return nil
	case f.Misplaced == nil || pods > f.Misplaced.Pods:
		return &v1beta1.Misplaced{Pods: pods, Since: metav1.NewTime(f.Now)}
	default:
		return &v1beta1.Misplaced{Pods: pods, Since: f.Misplaced.Since}
	}
}
