package united

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
)

const (
	// CapacityInterval is how often the scheduler finds out again what a subset has room for that has too little.
	CapacityInterval = time.Minute
	// capacityLife is for how long an answer is used. It is longer than two intervals, so that one late answer changes nothing.
	capacityLife = 150 * time.Second
	// lookAheadWait is for how long children are not raised for a new spec while there is no answer to it. Without a scheduler that answers, pods wait in their
	// subset, as without lookAhead.
	lookAheadWait = 2 * time.Second
)

func (r *round) looksAhead() bool { return r.Adaptive != nil && r.Adaptive.LookAhead }

// isAnswered is true if the scheduler has said what this spec has room for.
func (r *round) isAnswered() bool {
	c := r.Status.Capacity
	return c != nil && c.ObservedGeneration == r.Generation
}

// awaitsAnswer is true while children are not raised, because the scheduler will say soon what they have room for.
func (r *round) awaitsAnswer() bool {
	if !r.looksAhead() || r.isAnswered() {
		return false
	}
	left := r.Seen.Add(lookAheadWait).Sub(r.Now)
	if left > 0 {
		r.wait(left)
	}
	return left > 0
}

// room is how many replicas a place has room for. It is false if that is enough, or not known. Nobody knows it of other clusters.
func (r *round) room(pl *place) (int32, bool) {
	if pl.site != nil || !r.looksAhead() || !r.isAnswered() || r.Now.Sub(r.Status.Capacity.Time.Time).Abs() > capacityLife { // clocks may differ
		return 0, false
	}
	at := slices.IndexFunc(r.Status.Capacity.Subsets, func(s v1beta1.SubsetCapacity) bool { return s.Name == pl.Name })
	if at < 0 {
		return 0, false
	}
	return max(r.Status.Capacity.Subsets[at].Replicas, pl.firm), true
}

// bound is the most replicas that a place gets in the division, and false if nothing bounds it.
func (r *round) bound(pl *place) (int32, bool) {
	room, known := r.room(pl)
	switch {
	case pl.reserved > 0 || pl.blocked() && pl.schedulable.Reason != v1beta1.ReasonNoRoom:
		return pl.firm, true
	case known:
		return room, true
	default:
		return pl.firm, pl.blocked()
	}
}

// judgeRoom sets the condition of a place by what the scheduler has said. It follows the division: a place without room gets no trials for a while, and not
// before the scheduler says that it has room again.
func (r *round) judgeRoom(pl *place) {
	room, known := r.room(pl)
	short := known && room < pl.ideal
	switch {
	case !pl.blocked() && short && room <= pl.share:
		pl.schedulable = newCondition(v1beta1.SubsetSchedulable, corev1.ConditionFalse, v1beta1.ReasonNoRoom,
			fmt.Sprintf("it has room for %d replicas, and would get %d", room, pl.ideal), r.Now)
		pl.failedTrials = 0
	case !pl.blocked() || pl.schedulable.Reason != v1beta1.ReasonNoRoom:
		return
	}
	left := pl.schedulable.LastTransitionTime.Add(r.Adaptive.Unschedulable).Sub(r.Now)
	if left > 0 {
		r.wait(left)
	} else if !short || room > pl.share {
		pl.schedulable = newCondition(v1beta1.SubsetSchedulable, corev1.ConditionTrue, v1beta1.ReasonRecovered, "", r.Now)
	}
}

// IsShort is true if the scheduler has to find out again, after CapacityInterval, what the subsets have room for.
func IsShort(status *v1beta1.UnitedDeploymentStatus) bool {
	if status.Capacity != nil && len(status.Capacity.Subsets) > 0 {
		return true
	}
	return slices.ContainsFunc(status.SubsetStatuses, func(s v1beta1.SubsetStatus) bool {
		c := schedulableOf(status, s.Name)
		return c != nil && c.Status == corev1.ConditionFalse
	})
}
