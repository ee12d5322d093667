package budget

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/events"

	model "github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// news is the content of an event on a budget.
type news struct {
	eventType string
	reason    v1beta1.Reason
	action    string
	note      string
}

func (n news) send(recorder events.EventRecorder, pub *v1beta1.PodUnavailableBudget) {
	recorder.Eventf(pub, nil, n.eventType, string(n.reason), n.action, "%s", n.note)
}

// newsOf returns the events for a change of status from before to that of pub. DisruptionAllowed changes too often for events, except for the reasons
// for which no pod may go until somebody changes something.
func newsOf(pub *v1beta1.PodUnavailableBudget, before *v1beta1.PodUnavailableBudgetStatus) []news {
	var all []news
	if is := meta.FindStatusCondition(pub.Status.Conditions, v1beta1.ConditionEnforcing); is != nil {
		was := meta.FindStatusCondition(before.Conditions, v1beta1.ConditionEnforcing)
		if (was == nil || was.Reason != is.Reason) && is.Reason != string(v1beta1.ReasonPodsUnprotected) {
			eventType := corev1.EventTypeNormal
			if is.Status != "True" {
				eventType = corev1.EventTypeWarning
			}
			all = append(all, news{eventType, v1beta1.Reason(is.Reason), "ReportStatus", is.Message})
		}
	}
	if is := meta.FindStatusCondition(pub.Status.Conditions, v1beta1.ConditionDisruptionAllowed); is != nil && lasts(v1beta1.Reason(is.Reason)) {
		was := meta.FindStatusCondition(before.Conditions, v1beta1.ConditionDisruptionAllowed)
		if was == nil || was.Reason != is.Reason {
			all = append(all, news{corev1.EventTypeWarning, v1beta1.Reason(is.Reason), "ReportStatus", is.Message})
		}
	}
	if before.ObservedGeneration != pub.Generation {
		if policy, errs := model.Compile(pub); len(errs) == 0 {
			for _, warning := range policy.Warnings {
				all = append(all, news{corev1.EventTypeWarning, v1beta1.ReasonBudgetWarning, "CheckSpec", warning})
			}
		}
	}
	return all
}

func lasts(reason v1beta1.Reason) bool {
	return reason == v1beta1.ReasonNoneMayGo || reason == v1beta1.ReasonReplicasUnknown
}

func approvalLapsed(entry *lapsed, after time.Duration) news {
	if entry.outcome == unproven {
		return news{corev1.EventTypeNormal, v1beta1.ReasonApprovalExpired, "StrikeOut",
			fmt.Sprintf("%s of pod %s happened, but its end could not be confirmed within %s; the pod counts by its status again", entry.Operation, entry.Name, after)}
	}
	if entry.Operation == v1beta1.OperationLeave { // the entry does not say whether the pod should leave the budget's selector or its workload
		return news{corev1.EventTypeWarning, v1beta1.ReasonApprovalExpired, "StrikeOut",
			fmt.Sprintf("%s of pod %s was allowed, and after %s the budget still covers the pod: it has left its workload only, or it did not leave; the pod counts by its status again",
				entry.Operation, entry.Name, after)}
	}
	return news{corev1.EventTypeWarning, v1beta1.ReasonApprovalExpired, "StrikeOut",
		fmt.Sprintf("%s of pod %s was allowed and did not happen within %s; the pod counts as available again", entry.Operation, entry.Name, after)}
}

func notReplaced(pod *corev1.Pod, why string) news {
	return news{corev1.EventTypeWarning, v1beta1.ReasonNotReplaced, "ReplaceFirst", fmt.Sprintf("pod %s is not replaced first: %s", pod.Name, why)}
}
