package united

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"

	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
)

// news is the content of an event on a UnitedDeployment.
type news struct {
	eventType string
	reason    v1beta1.Reason
	action    string
	note      string
}

// maxNote is the longest note of an event that the API server accepts, in bytes.
const maxNote = 1024

func (n news) send(recorder events.EventRecorder, ud *v1beta1.UnitedDeployment) {
	recorder.Eventf(ud, nil, n.eventType, string(n.reason), n.action, "%s", frame.AtMost(maxNote, n.note))
}

func childCreated(s *step) news {
	return news{corev1.EventTypeNormal, v1beta1.ReasonChildCreated, "CreateChild",
		fmt.Sprintf("created %s %s for subset %s with %d replicas", s.object.GetKind(), s.object.GetName(), s.subset(), s.Replicas)}
}

// childApplied are the events about a child that got other replicas, or another template.
func childApplied(s *step) []news {
	var all []news
	if s.Replicas != s.child.Replicas {
		all = append(all, childScaled(s))
	}
	if s.Revision != s.child.Revision {
		all = append(all, news{corev1.EventTypeNormal, v1beta1.ReasonChildUpdated, "UpdateChild",
			fmt.Sprintf("%s %s of subset %s gets the template of %s", s.child.Kind.Kind, s.child.Name, s.subset(), s.Revision)})
	}
	return all
}

func childScaled(s *step) news {
	return news{corev1.EventTypeNormal, v1beta1.ReasonChildScaled, "ScaleChild",
		fmt.Sprintf("scaled %s %s of subset %s from %d to %d replicas", s.child.Kind.Kind, s.child.Name, s.subset(), s.child.Replicas, s.Replicas)}
}

func childDeleted(s *step) news {
	return news{corev1.EventTypeNormal, v1beta1.ReasonChildDeleted, "DeleteChild",
		fmt.Sprintf("deleted %s %s of subset %s, which had no pods", s.child.Kind.Kind, s.child.Name, s.subset())}
}

// newsOf are the events about a UnitedDeployment whose status changes.
func newsOf(ud *v1beta1.UnitedDeployment, before, after *v1beta1.UnitedDeploymentStatus, warnings []string) []news {
	var all []news
	was, is := conditionOf(before, v1beta1.ReadyCondition), conditionOf(after, v1beta1.ReadyCondition)
	if is != nil && is.Reason != v1beta1.ReasonInProgress && (was == nil || was.Reason != is.Reason) {
		eventType := corev1.EventTypeNormal
		if is.Status != corev1.ConditionTrue {
			eventType = corev1.EventTypeWarning
		}
		note := is.Message
		if note == "" {
			note = "every subset has its child, and every child is as wanted"
		}
		all = append(all, news{eventType, is.Reason, "ReportStatus", note})
	}
	if before.ObservedGeneration != ud.Generation {
		for _, warning := range warnings {
			all = append(all, news{corev1.EventTypeWarning, v1beta1.ReasonUnitedDeploymentWarning, "CheckSpec", warning})
		}
	}
	return all
}
