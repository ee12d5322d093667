package spread

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

// newsOf are the events about a spread whose status changes.
func newsOf(spread *v1beta1.WorkloadSpread, before *v1beta1.WorkloadSpreadStatus, warnings []string) []frame.News {
	var all []frame.News
	for _, conditionType := range []string{v1beta1.ConditionReady, v1beta1.ConditionAdmitted} {
		was, is := meta.FindStatusCondition(before.Conditions, conditionType), meta.FindStatusCondition(spread.Status.Conditions, conditionType)
		if is != nil && (was == nil || was.Reason != is.Reason) {
			all = append(all, frame.Reported(is.Status == metav1.ConditionTrue, is.Reason, is.Message))
		}
	}
	if before.ObservedGeneration != spread.Generation {
		for _, warning := range warnings {
			all = append(all, frame.Warning(v1beta1.ReasonSpreadWarning, "CheckSpec", "%s", warning))
		}
	}
	return all
}

// recoveries are the events about subsets that are schedulable again, as OpenKruise sends them.
func recoveries(spread *v1beta1.WorkloadSpread, before *v1beta1.WorkloadSpreadStatus) []frame.News {
	var all []frame.News
	for _, is := range spread.Status.SubsetStatuses {
		if meta.IsStatusConditionTrue(is.Conditions, v1beta1.ConditionSchedulable) && slices.ContainsFunc(before.SubsetStatuses, func(was v1beta1.SubsetStatus) bool {
			return was.Name == is.Name && meta.IsStatusConditionFalse(was.Conditions, v1beta1.ConditionSchedulable)
		}) {
			all = append(all, recoverSchedulable(is.Name))
		}
	}
	return all
}

func recoverSchedulable(subset string) frame.News {
	return frame.Normal(v1beta1.ReasonRecoverSchedulable, "ReportStatus", "subset %s is schedulable again: new pods may go there", subset)
}

func admittedSubsetFull(pod *corev1.Pod, subset string) frame.News {
	return frame.Normal(v1beta1.ReasonAdmittedSubsetFull, "ReplacePod",
		"pod %s was replaced while it was pending: it carries the patch of subset %s, which other pods have filled since", pod.Name, subset)
}

func nodesOverfull(pods int32) frame.News {
	return frame.Warning(v1beta1.ReasonNodesOverfull, "ReportStatus",
		"kubelets refused %d pods for lack of room, because another scheduler had filled their nodes; see `kubectl berth doctor`", pods)
}

func podsNotWritten(pods int, latest error) frame.News {
	return frame.Warning(v1beta1.ReasonPodsNotWritten, "WritePods",
		"%d pods could not be written; the controller tries again, see that it may patch them; for instance: %v", pods, latest)
}
