package spread

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"

	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

// news is an event about a spread or a pod.
type news struct {
	eventType string
	reason    v1beta1.Reason
	action    string
	note      string
}

// send records the event on an object. Related is another object that it involves, or nil.
func (n news) send(recorder events.EventRecorder, regarding, related runtime.Object) {
	recorder.Eventf(regarding, related, n.eventType, string(n.reason), n.action, "%s", frame.AtMost(frame.LongestNote, n.note))
}

// newsOf are the events about a spread whose status changes.
func newsOf(spread *v1beta1.WorkloadSpread, before *v1beta1.WorkloadSpreadStatus, warnings []string) []news {
	var all []news
	for _, conditionType := range []string{v1beta1.ConditionReady, v1beta1.ConditionAdmitted} {
		was, is := meta.FindStatusCondition(before.Conditions, conditionType), meta.FindStatusCondition(spread.Status.Conditions, conditionType)
		if is != nil && (was == nil || was.Reason != is.Reason) {
			all = append(all, conditionChanged(is))
		}
	}
	if before.ObservedGeneration != spread.Generation {
		for _, warning := range warnings {
			all = append(all, spreadWarning(warning))
		}
	}
	return all
}

// recoveries are the events about subsets that are schedulable again, as OpenKruise sends them.
func recoveries(spread *v1beta1.WorkloadSpread, before *v1beta1.WorkloadSpreadStatus) []news {
	var all []news
	for i := range before.SubsetStatuses {
		was := &before.SubsetStatuses[i]
		for j := range spread.Status.SubsetStatuses {
			is := &spread.Status.SubsetStatuses[j]
			if is.Name == was.Name && meta.IsStatusConditionFalse(was.Conditions, v1beta1.ConditionSchedulable) &&
				meta.IsStatusConditionTrue(is.Conditions, v1beta1.ConditionSchedulable) {
				all = append(all, recoverSchedulable(is.Name))
			}
		}
	}
	return all
}

func recoverSchedulable(subset string) news {
	return news{corev1.EventTypeNormal, v1beta1.ReasonRecoverSchedulable, "ReportStatus", "subset " + subset + " is schedulable again: new pods may go there"}
}

func conditionChanged(to *metav1.Condition) news {
	eventType := corev1.EventTypeNormal
	if to.Status != metav1.ConditionTrue {
		eventType = corev1.EventTypeWarning
	}
	return news{eventType, v1beta1.Reason(to.Reason), "ReportStatus", to.Message}
}

func admittedSubsetFull(pod *corev1.Pod, subset string) news {
	return news{corev1.EventTypeNormal, v1beta1.ReasonAdmittedSubsetFull, "ReplacePod",
		"pod " + pod.Name + " was replaced while it was pending: it carries the patch of subset " + subset + ", which other pods have filled since"}
}

func nodesOverfull(pods int32) news {
	return news{corev1.EventTypeWarning, v1beta1.ReasonNodesOverfull, "ReportStatus", fmt.Sprintf(
		"kubelets refused %d pods for lack of room, because another scheduler had filled their nodes; see `kubectl berth doctor`", pods)}
}

func podsNotWritten(pods int, latest error) news {
	return news{corev1.EventTypeWarning, v1beta1.ReasonPodsNotWritten, "WritePods",
		fmt.Sprintf("%d pods could not be written; the controller tries again, see that it may patch them; for instance: %v", pods, latest)}
}

func spreadWarning(warning string) news {
	return news{corev1.EventTypeWarning, v1beta1.ReasonSpreadWarning, "CheckSpec", warning}
}
