package budget

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	model "github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// newsOf returns the events for a change of status from before to that of pub. DisruptionAllowed changes too often for events, except for the reasons
// for which no pod may go until somebody changes something.
func newsOf(pub *v1beta1.PodUnavailableBudget, before *v1beta1.PodUnavailableBudgetStatus) []frame.News {
	var all []frame.News
	if is := meta.FindStatusCondition(pub.Status.Conditions, v1beta1.ConditionEnforcing); is != nil {
		was := meta.FindStatusCondition(before.Conditions, v1beta1.ConditionEnforcing)
		if (was == nil || was.Reason != is.Reason) && is.Reason != string(v1beta1.ReasonPodsUnprotected) {
			all = append(all, frame.Reported(is.Status == "True", is.Reason, is.Message))
		}
	}
	if is := meta.FindStatusCondition(pub.Status.Conditions, v1beta1.ConditionDisruptionAllowed); is != nil && lasts(v1beta1.Reason(is.Reason)) {
		was := meta.FindStatusCondition(before.Conditions, v1beta1.ConditionDisruptionAllowed)
		if was == nil || was.Reason != is.Reason {
			all = append(all, frame.Reported(false, is.Reason, is.Message))
		}
	}
	if before.ObservedGeneration != pub.Generation {
		if policy, errs := model.Compile(pub); len(errs) == 0 {
			for _, warning := range policy.Warnings {
				all = append(all, frame.Warning(v1beta1.ReasonBudgetWarning, "CheckSpec", "%s", warning))
			}
		}
	}
	return all
}

func lasts(reason v1beta1.Reason) bool {
	return reason == v1beta1.ReasonNoneMayGo || reason == v1beta1.ReasonReplicasUnknown
}

func approvalLapsed(entry *lapsed, after time.Duration) frame.News {
	if entry.outcome == unproven {
		return frame.Normal(v1beta1.ReasonApprovalExpired, "StrikeOut", "%s of pod %s happened, but its end could not be confirmed within %s; the pod counts by its status again", entry.Operation, entry.Name, after)
	}
	if entry.Operation == v1beta1.OperationLeave { // the entry does not say whether the pod should leave the budget's selector or its workload
		return frame.Warning(v1beta1.ReasonApprovalExpired, "StrikeOut", "%s of pod %s was allowed, and after %s the budget still covers the pod: it has left its workload only, or it did not leave; the pod counts by its status again",
			entry.Operation, entry.Name, after)
	}
	return frame.Warning(v1beta1.ReasonApprovalExpired, "StrikeOut", "%s of pod %s was allowed and did not happen within %s; the pod counts as available again", entry.Operation, entry.Name, after)
}

func notReplaced(pod *corev1.Pod, why string) frame.News {
	return frame.Warning(v1beta1.ReasonNotReplaced, "ReplaceFirst", "pod %s is not replaced first: %s", pod.Name, why)
}
