package budget

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	model "github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// newsOf returns the events for a change of status from before to that of pub. DisruptionAllowed changes too often for events, except for the reasons
// for which no pod may go until somebody changes something.
func newsOf(pub *v1beta1.PodUnavailableBudget, before *v1beta1.PodUnavailableBudgetStatus) []frame.News {
	var all []frame.News
	for _, kind := range []string{v1beta1.ConditionEnforcing, v1beta1.ConditionDisruptionAllowed} {
		is, was := meta.FindStatusCondition(pub.Status.Conditions, kind), meta.FindStatusCondition(before.Conditions, kind)
		if is == nil || was != nil && was.Reason == is.Reason || v1beta1.Reason(is.Reason) == v1beta1.ReasonPodsUnprotected {
			continue
		}
		lasts := v1beta1.Reason(is.Reason) == v1beta1.ReasonNoneMayGo || v1beta1.Reason(is.Reason) == v1beta1.ReasonReplicasUnknown
		if kind == v1beta1.ConditionEnforcing || lasts {
			all = append(all, frame.Reported(is.Status == metav1.ConditionTrue, is.Reason, is.Message))
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

// approvalExpired is about an operation that did not happen, or of which nothing proves that it is over, as with an image that is named by its digest.
func approvalExpired(entry *v1beta1.LedgerEntry, after time.Duration) frame.News {
	return frame.Normal(v1beta1.ReasonApprovalExpired, "StrikeOut", "%s of pod %s was allowed, and after %s nothing shows that it has happened and is over; the pod counts by its status again",
		entry.Operation, entry.Name, after)
}

func nodeEnds(pod *corev1.Pod, notice string) frame.News {
	return frame.Normal(v1beta1.ReasonNodeEnds, "ReplaceFirst", "node %s announces its end by %s: the eviction of pod %s is asked for, so that a new pod is made first", pod.Spec.NodeName, notice, pod.Name)
}

func notReplaced(pod *corev1.Pod, why string) frame.News {
	return frame.Warning(v1beta1.ReasonNotReplaced, "ReplaceFirst", "pod %s is not replaced first: %s", pod.Name, why)
}
