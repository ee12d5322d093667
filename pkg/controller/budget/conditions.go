package budget

import (
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	model "github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/budget/census"
	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/podstate"
)

// describe is the new status of a valid budget. ledger has the entries that are still needed. kept is the condition about its PodDisruptionBudget, without a
// type if that could not be written.
func describe(pub *v1beta1.PodUnavailableBudget, policy *model.Policy, count *census.Count, ledger []v1beta1.LedgerEntry, kept condition, now metav1.Time) v1beta1.PodUnavailableBudgetStatus {
	facts := count.Facts
	facts.Ledger = ledger
	t := policy.Tally(facts)
	status := *pub.Status.DeepCopy()
	if len(ledger) < len(pub.Status.Ledger) {
		// The webhook must not judge without the removed entries by a list of pods that is older than the one that proved their outcome.
		status.LedgerRevision = model.Newest(pub.Status.LedgerRevision, count.Revision)
	}
	model.Publish(&status, pub.Generation, ledger, t)
	for _, c := range []condition{disruptionAllowed(policy, facts, t), enforcing(policy, count), replicasKnown(count, t)} {
		c.Set(&status.Conditions, pub.Generation, now)
	}
	switch {
	case !pub.Spec.KeepPodDisruptionBudget:
		meta.RemoveStatusCondition(&status.Conditions, v1beta1.ConditionPodDisruptionBudgetKept)
	case kept.Type != "":
		kept.Set(&status.Conditions, pub.Generation, now)
	}
	return status
}

// unusable is the new status of a budget that Berth cannot enforce.
func unusable(pub *v1beta1.PodUnavailableBudget, reason v1beta1.Reason, message string, now metav1.Time) v1beta1.PodUnavailableBudgetStatus {
	status := *pub.Status.DeepCopy()
	status.ObservedGeneration = pub.Generation
	frame.False(v1beta1.ConditionEnforcing, reason, "%s", message).Set(&status.Conditions, pub.Generation, now)
	return status
}

// condition is a condition without its time and generation.
type condition = frame.Condition[v1beta1.Reason]

func disruptionAllowed(policy *model.Policy, facts model.Facts, t model.Tally) condition {
	const kind = v1beta1.ConditionDisruptionAllowed
	held, first := policy.Holder(&t), ""
	if policy.ReplaceFirst > 0 {
		first = "; a new pod is made before one is evicted or deleted"
	}
	switch {
	case t.Unknown != "":
		return frame.False(kind, v1beta1.ReasonReplicasUnknown, "no available pod may be deleted, evicted or restarted: %s", t.Unknown)
	case held != "":
		return frame.False(kind, v1beta1.ReasonHeldBySubset, "%s%s%s", held, first, model.Missing(facts))
	case t.Desired == 0 && len(t.Subsets) == 0:
		return frame.True(kind, v1beta1.ReasonNothingDesired, "no pod has to be available")
	case t.Allowed > 0 && len(t.Subsets) > 0:
		return frame.True(kind, v1beta1.ReasonSufficientPods, "the subsets have room for %d pods", t.Allowed)
	case t.Allowed > 0:
		return frame.True(kind, v1beta1.ReasonSufficientPods, "%d of %d desired pods are available", t.Available, t.Desired)
	case t.Desired >= t.Total && first != "":
		return frame.False(kind, v1beta1.ReasonReplacedFirst, "all %d pods must be available%s%s", t.Total, first, model.Missing(facts))
	case t.Desired >= t.Total:
		return frame.False(kind, v1beta1.ReasonNoneMayGo,
			"all %d pods must be available, so no pod may ever be deleted, evicted or restarted, and node drains never finish; raise maxUnavailable, lower minAvailable, or scale up", t.Total)
	default:
		reason, doubtful := v1beta1.ReasonInsufficientPods, int32(0)
		for _, pod := range model.MissingPods(facts) {
			if pod.State == model.Doubtful {
				doubtful++
			}
		}
		if t.Available+doubtful > t.Desired {
			reason = v1beta1.ReasonPodsDoubtful
		}
		return frame.False(kind, reason, "%d of %d desired pods are available%s", t.Available, t.Desired, model.Missing(facts))
	}
}

func enforcing(policy *model.Policy, count *census.Count) condition {
	const kind = v1beta1.ConditionEnforcing
	if count.TargetGone {
		return frame.False(kind, v1beta1.ReasonTargetNotFound, "%s %s does not exist or is being deleted; create it, or recreate the budget with another targetRef", policy.Target.Kind, policy.Target.Name)
	}
	unprotected := 0
	for _, pod := range count.Pods {
		if !podstate.HasEnded(pod) && mayBeProtected(pod, count.Ignored) && (!model.IsProtected(pod) || count.LeavesUnasked(pod)) {
			unprotected++
		}
	}
	if unprotected > 0 {
		return frame.False(kind, v1beta1.ReasonPodsUnprotected, "%d pods do not have the label %s yet, or not all keys of their selectors in annotation %s; berth-controller adds them",
			unprotected, v1beta1.ProtectedLabel, v1beta1.SelectorKeysAnnotation)
	}
	return frame.True(kind, v1beta1.ReasonAllPodsProtected, "every pod has the protection label")
}

func replicasKnown(count *census.Count, t model.Tally) condition {
	const kind = v1beta1.ConditionReplicasKnown
	if t.Unknown != "" {
		return frame.False(kind, v1beta1.ReasonReplicasUnknown, "%s", t.Unknown)
	}
	if t.Unmanaged == 0 {
		return frame.True(kind, v1beta1.ReasonReplicasKnown, "the number of replicas is known")
	}
	whose := "no controller"
	if len(count.Unread) > 0 {
		whose = "a controller without a readable number of replicas (" + strings.Join(count.Unread, ", ") + ") or none"
	}
	return frame.False(kind, v1beta1.ReasonReplicasUnknown,
		"%d pods have %s and count only while they exist; set spec.protectTotalReplicas of the budget (in v1alpha1 the annotation %s) to the number of replicas",
		t.Unmanaged, whose, v1beta1.ProtectTotalReplicasAnnotation)
}

func (r *reconciler) now() metav1.Time { return metav1.NewTime(r.clock.Now()) }
