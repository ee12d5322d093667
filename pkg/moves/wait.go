package moves

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
)

// FactsOf is what a spread and its status say at a moment: everything but the replicas and the pods. The policy is the
// compiled spec.
func FactsOf(spread *v1beta1.WorkloadSpread, policy *subset.Policy, now time.Time) Facts {
	return Facts{
		Name:             spread.Name,
		Policy:           policy,
		Paused:           IsPaused(spread),
		Moves:            spread.Status.Moves,
		Misplaced:        spread.Status.Misplaced,
		Subsets:          spread.Status.SubsetStatuses,
		SchedulableSince: schedulableSince(spread, policy),
		Now:              now,
	}
}

// IsPaused is true for a spread whose pods no descheduler may evict. It needs no valid spec.
func IsPaused(spread *v1beta1.WorkloadSpread) bool {
	return spread.Annotations[v1beta1.PausedAnnotation] == "true"
}

// schedulableSince is what the status says of each subset. A subset without an entry counts as schedulable since the
// spread was created.
func schedulableSince(spread *v1beta1.WorkloadSpread, policy *subset.Policy) []time.Time {
	since := make([]time.Time, len(policy.Subsets))
	for i := range since {
		since[i] = spread.CreationTimestamp.Time
	}
	for i := range spread.Status.SubsetStatuses {
		status := &spread.Status.SubsetStatuses[i]
		condition := meta.FindStatusCondition(status.Conditions, v1beta1.ConditionSchedulable)
		if index := policy.Index(status.Name); index != subset.None && condition != nil {
			since[index] = time.Time{}
			if condition.Status == metav1.ConditionTrue {
				since[index] = condition.LastTransitionTime.Time
			}
		}
	}
	return since
}

// Wait keeps pods from returning to a subset for a while. The zero value keeps none.
type Wait struct {
	// Reason is CoolingDown, Settling or BackingOff. Empty if nothing keeps them.
	Reason v1beta1.Reason
	// Until is when the wait ends. Zero if that is not known, because pods wait for a node of the subset.
	Until time.Time
	// Since is when it began: the time of Move or, if that is nil, when the last pod found a node of the subset.
	Since time.Time
	// Move is the recorded move that the wait follows. Nil if it follows none.
	Move *v1beta1.Move
}

// isOver is true if the wait keeps no pod at this time.
func (w *Wait) isOver(now time.Time) bool {
	return w.Reason == "" || !w.Until.IsZero() && !now.Before(w.Until)
}

// Returns is the wait that ends last, of those that keep pods from returning to a subset. cameBack says whether pods
// have come back since a recorded move.
func (f *Facts) Returns(limits ReturnLimits, to int, cameBack func(*v1beta1.Move) bool) (last Wait) {
	note := func(w Wait) {
		if !w.isOver(f.Now) && (last.Reason == "" || w.Until.IsZero() || !last.Until.IsZero() && w.Until.After(last.Until)) {
			last = w
		}
	}
	for i := range f.Moves {
		m := &f.Moves[i]
		note(Wait{v1beta1.ReasonCoolingDown, m.Time.Add(limits.Cooldown), m.Time.Time, m})
		if m.To == f.name(to) && f.isHomeward(m) && cameBack(m) {
			note(Wait{v1beta1.ReasonBackingOff, m.Time.Add(limits.Pace.wait(m.Round)), m.Time.Time, m})
		}
	}
	note(f.settles(limits.Stable, to))
	return last
}

// settles is the longest wait after pods waited for a node of a subset, or were moved out of it to a later one.
func (f *Facts) settles(stable time.Duration, in int) (wait Wait) {
	if in < len(f.SchedulableSince) {
		since := f.SchedulableSince[in]
		if since.IsZero() {
			return Wait{Reason: v1beta1.ReasonSettling}
		}
		wait = Wait{v1beta1.ReasonSettling, since.Add(stable), since, nil}
	}
	for i := range f.Moves {
		m := &f.Moves[i]
		if m.From != f.Policy.Subsets[in].Name || m.To == m.From || f.isHomeward(m) {
			continue
		}
		hold := stable
		if m.Reason != string(v1beta1.ReasonOverQuota) { // a quota that was lowered says nothing about the nodes
			hold = max(stable, f.Policy.Adaptive.Skip)
		}
		if until := m.Time.Add(hold); wait.Reason == "" || until.After(wait.Until) {
			wait = Wait{v1beta1.ReasonSettling, until, m.Time.Time, m}
		}
	}
	return wait
}
