package report

import (
	"cmp"
	"fmt"
	"time"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/moves"
	"github.com/berth-project/berth/pkg/subset"
)

// Wait says why the descheduler leaves pods where they are for now, although they could be in an earlier subset, as far
// as the spread shows it.
type Wait struct {
	// Reason is one of those for which a descheduler leaves a pod where it is, as in its own report.
	Reason v1beta1.Reason `json:"reason"`
	// Until is when the wait ends with the descheduler's default arguments. Nil if that is not known.
	Until *time.Time `json:"until,omitempty"`
	// Text says the same as a part of a sentence: "but by default not before 2026-01-01T12:10:00Z: pods were moved out
	// of a at … (Settling)".
	Text string `json:"text"`
}

// Waits says what keeps RebalanceToPreferredSubset from moving pods into a subset of the policy, which is the spread's
// compiled spec, at a moment. bound is since when the pod in question has its node, and zero if that is not known.
// Waits is nil if nothing is known that keeps the pods; budgets, filters and rooms are not known.
func Waits(spread *v1beta1.WorkloadSpread, policy *subset.Policy, into int, bound, now time.Time) *Wait {
	facts, limits := moves.FactsOf(spread, policy, now), moves.DefaultReturnLimits()
	switch {
	case facts.Paused:
		return &Wait{Reason: v1beta1.ReasonPaused, Text: fmt.Sprintf("but not while the spread has the annotation %s (%s)", v1beta1.PausedAnnotation, v1beta1.ReasonPaused)}
	case len(spread.Status.VersionedSubsetStatuses) > 1:
		return &Wait{Reason: v1beta1.ReasonRollingOut, Text: fmt.Sprintf("but not during the rollout (%s)", v1beta1.ReasonRollingOut)}
	}
	wait := facts.Returns(limits, into, func(m *v1beta1.Move) bool { return podsIn(spread, m.From) > m.Remaining })
	if young := bound.Add(limits.Residence); !bound.IsZero() && now.Before(young) && (wait.Reason == "" || !wait.Until.IsZero() && young.After(wait.Until)) {
		wait = moves.Wait{Reason: v1beta1.ReasonTooYoung, Until: young, Since: bound}
	}
	if wait.Reason == "" {
		return nil
	}
	because := fmt.Sprintf("%s (%s)", why(&wait, policy.Subsets[into].Name), wait.Reason)
	if wait.Until.IsZero() {
		return &Wait{Reason: wait.Reason, Text: "but not yet: " + because}
	}
	return &Wait{Reason: wait.Reason, Until: &wait.Until, Text: fmt.Sprintf("but by default not before %s: %s", stamp(wait.Until), because)}
}

// Clause is the text after a comma, and empty for nil.
func (w *Wait) Clause() string {
	if w == nil {
		return ""
	}
	return ", " + w.Text
}

func why(wait *moves.Wait, into string) string {
	since := stamp(wait.Since)
	switch {
	case wait.Reason == v1beta1.ReasonTooYoung:
		return "the pod has its node only since " + since
	case wait.Reason == v1beta1.ReasonCoolingDown:
		return "pods of the spread were moved at " + since
	case wait.Reason == v1beta1.ReasonBackingOff:
		return fmt.Sprintf("pods came back to %s after the move at %s, round %d", cmp.Or(wait.Move.From, "no subset"), since, max(wait.Move.Round, 1))
	case wait.Move != nil:
		return fmt.Sprintf("pods were moved out of %s at %s", into, since)
	case wait.Since.IsZero():
		return fmt.Sprintf("pods wait for a node of %s", into)
	default:
		return fmt.Sprintf("no pod waits for a node of %s, but only since %s", into, since)
	}
}

// podsIn is how many bound pods the status counts in a subset; those of no subset for an empty name.
func podsIn(spread *v1beta1.WorkloadSpread, name string) int32 {
	if name == "" {
		return spread.Status.UnplacedPods
	}
	for i := range spread.Status.SubsetStatuses {
		if in := &spread.Status.SubsetStatuses[i]; in.Name == name {
			return in.Replicas
		}
	}
	return 0
}

func stamp(at time.Time) string { return at.UTC().Format(time.RFC3339) }
