package united

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-project/berth/pkg/controller/apply"
	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
	model "github.com/berth-project/berth/pkg/united"
)

// newsOfStep are the events about a step that is done.
func newsOfStep(s *step, is apply.Operation) (all []frame.News) {
	switch is {
	case apply.Create:
		return []frame.News{frame.Normal(v1beta1.ReasonChildCreated, "CreateChild", "created %s %s for subset %s with %d replicas", s.object.GetKind(), s.object.GetName(), s.subset(), s.Replicas)}
	case apply.Delete:
		return []frame.News{frame.Normal(v1beta1.ReasonChildDeleted, "DeleteChild", "deleted %s %s of subset %s, which had no pods", s.child.Kind.Kind, s.child.Name, s.subset())}
	}
	if s.Replicas != s.child.Replicas {
		all = append(all, frame.Normal(v1beta1.ReasonChildScaled, "ScaleChild", "scaled %s %s of subset %s from %d to %d replicas", s.child.Kind.Kind, s.child.Name, s.subset(), s.child.Replicas, s.Replicas))
	}
	if is == apply.Apply && s.Revision != s.child.Revision {
		all = append(all, frame.Normal(v1beta1.ReasonChildUpdated, "UpdateChild", "%s %s of subset %s gets the template of %s", s.child.Kind.Kind, s.child.Name, s.subset(), s.Revision))
	}
	return all
}

func podReplaced(pod *model.Pod) frame.News {
	return frame.Normal(v1beta1.ReasonPodReplaced, "ReplacePod", "deleted pod %s, which has the template of %s and is not ready: its StatefulSet would wait for it before it gives it the new template", pod.Name, pod.Revision)
}

// newsOf are the events about a UnitedDeployment whose status changes. The policy is nil if the spec is not valid, or was not looked at.
func newsOf(ud *v1beta1.UnitedDeployment, before, after *v1beta1.UnitedDeploymentStatus, policy *model.Policy) []frame.News {
	var all []frame.News
	was, is := model.ConditionIn(before.Conditions, v1beta1.ReadyCondition), model.ConditionIn(after.Conditions, v1beta1.ReadyCondition)
	if is != nil && is.Reason != v1beta1.ReasonInProgress && (was == nil || was.Reason != is.Reason) {
		note := cmp.Or(is.Message, "every subset has its child, and every child is as wanted")
		all = append(all, frame.Reported(is.Status == corev1.ConditionTrue, is.Reason, note))
	}
	if policy != nil && before.ObservedGeneration != ud.Generation {
		for _, warning := range policy.Warnings {
			all = append(all, frame.Warning(v1beta1.ReasonUnitedDeploymentWarning, "CheckSpec", "%s", warning))
		}
	}
	return all
}
