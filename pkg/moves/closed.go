package moves

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
)

// ClosedBy are the subsets, with strategy Adaptive, that recently had no node for a pod: pods were moved out of them
// for that reason, or wait in them, as their condition says. Admission skips them.
func ClosedBy(moves []v1beta1.Move, statuses []v1beta1.SubsetStatus, policy *subset.Policy, now time.Time) (closed subset.Mask) {
	if policy.Strategy != v1beta1.AdaptiveScheduleStrategy {
		return 0
	}
	for i := range moves {
		if from := policy.Index(moves[i].From); closes(&moves[i], policy, now) {
			closed = closed.With(from)
		}
	}
	for i := range statuses {
		index, c := policy.Index(statuses[i].Name), meta.FindStatusCondition(statuses[i].Conditions, v1beta1.ConditionSchedulable)
		if index == subset.None || c == nil || c.Status != metav1.ConditionFalse {
			continue
		}
		wait := policy.Adaptive.Wait
		if policy.Kruise {
			wait = 0 // the pods had waited when the condition changed
		}
		if since := c.LastTransitionTime.Add(wait); now.After(since) && now.Before(since.Add(policy.Adaptive.Skip)) {
			closed = closed.With(index)
		}
	}
	return closed
}

// closes is true for a recent move of pods out of its subset From because none of its nodes took them.
func closes(m *v1beta1.Move, policy *subset.Policy, now time.Time) bool {
	from, to := policy.Index(m.From), policy.Index(m.To)
	if from == subset.None || to != subset.None && to <= from && !policy.IsRanked() || m.Reason != string(v1beta1.ReasonUnschedulableTooLong) && m.Reason != "" {
		return false
	}
	return now.Sub(m.Time.Time) < policy.Adaptive.Skip
}

// closed are the subsets that admission skips now.
func (f *Facts) closed() subset.Mask { return ClosedBy(f.Moves, f.Subsets, f.Policy, f.Now) }
