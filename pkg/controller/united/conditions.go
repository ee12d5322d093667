package united

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/lineage"
	model "github.com/berth-project/berth/pkg/united"
)

// status is the new status, as far as nothing has failed. If the spec is not valid, the previous numbers stay.
func (v *view) status(now time.Time) v1beta1.UnitedDeploymentStatus {
	var status v1beta1.UnitedDeploymentStatus
	before := &v.ud.Status
	if v.plan == nil {
		status = *before.DeepCopy()
		setCondition(&status, before, v1beta1.ReadyCondition, corev1.ConditionFalse, v1beta1.ReasonInvalid, v.invalid.ToAggregate().Error(), now)
	} else {
		status = *v.plan.Status.DeepCopy()
		if v.found.unwatchable != nil {
			setCondition(&status, before, v1beta1.ReadyCondition, corev1.ConditionFalse, v1beta1.ReasonKindNotServed, notServed(v.found.unwatchable), now)
		}
	}
	status.ObservedGeneration = v.ud.Generation
	if status.CollisionCount = nil; v.collisions > 0 {
		status.CollisionCount = ptr.To(v.collisions)
	}
	return status
}

// notServed says why children of the kind of the template cannot be written.
func notServed(u *lineage.Unwatchable) string {
	switch u.Why {
	case lineage.NotServed:
		return fmt.Sprintf("the API server has no kind %s in group %q, so the children stay as they are; install it or use another template", u.Kind.Kind, u.Kind.Group)
	default:
		return fmt.Sprintf("Berth may not list %s, so the children stay as they are; give berth-united the rights of ClusterRole berth-united", u.Resource)
	}
}

// fail says that the API server has refused children.
func fail(status, before *v1beta1.UnitedDeploymentStatus, refused []string, now time.Time) {
	slices.Sort(refused)
	message := strings.Join(refused, "; ")
	setCondition(status, before, v1beta1.SubsetFailure, corev1.ConditionTrue, v1beta1.ReasonChildRefused, message, now)
	setCondition(status, before, v1beta1.ReadyCondition, corev1.ConditionFalse, v1beta1.ReasonChildRefused, message, now)
}

// keepFailure keeps what was refused the last time, until it is known whether it is refused again.
func keepFailure(status, before *v1beta1.UnitedDeploymentStatus) {
	if c := model.ConditionIn(before.Conditions, v1beta1.SubsetFailure); c != nil && c.Status == corev1.ConditionTrue {
		fail(status, before, []string{c.Message}, c.LastTransitionTime.Time)
	}
}

// setCondition puts a condition into the status. It keeps the time of the last transition if the condition had the same status before.
func setCondition(status, before *v1beta1.UnitedDeploymentStatus, of v1beta1.ConditionType, is corev1.ConditionStatus, reason v1beta1.Reason, message string, now time.Time) {
	condition := model.Timed(v1beta1.Condition{Type: of, Status: is, Reason: reason, Message: frame.Message(message)}, before.Conditions, now)
	if c := model.ConditionIn(status.Conditions, of); c != nil {
		*c = condition
		return
	}
	status.Conditions = append(status.Conditions, condition)
}
