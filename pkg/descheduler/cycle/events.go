package cycle

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/moves"
)

const reporter = "berth-descheduler"

// tell writes an event about the move of a pod on its spread, at once: the process may end after the cycle. The
// framework writes an event with the same reason on the pod.
func (c *Cycle) tell(ctx context.Context, s *spread, pod *corev1.Pod, move *moves.Move) {
	ctx, cancel := context.WithTimeout(ctx, c.world.options.CallTimeout)
	defer cancel()
	event := &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{GenerateName: s.object.Name + "-", Namespace: s.object.Namespace},
		EventTime:           metav1.NewMicroTime(c.world.options.Clock.Now()),
		ReportingController: reporter,
		ReportingInstance:   reporter,
		Action:              "Evict",
		Reason:              string(move.Reason),
		Regarding: corev1.ObjectReference{APIVersion: v1beta1.GroupVersion.String(), Kind: v1beta1.Kind.Kind, Namespace: s.object.Namespace, Name: s.object.Name, UID: s.object.UID,
			ResourceVersion: s.object.ResourceVersion},
		Related: &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Note:    movedNote(pod.Name, s.name(move.From), s.name(move.To), move),
		Type:    corev1.EventTypeNormal,
	}
	if err := c.world.live.Create(ctx, event); err != nil {
		klog.FromContext(ctx).Error(err, "A move has no event", "workloadspread", klog.KObj(s.object), "pod", klog.KObj(pod))
	}
}

func movedNote(pod, from, to string, move *moves.Move) string {
	where := "no subset"
	if from != "" {
		where = "subset " + from
	}
	why := map[v1beta1.Reason]string{
		v1beta1.ReasonUnschedulableTooLong: "no node of it has taken the pod for rescheduleCriticalSeconds",
		v1beta1.ReasonOverQuota:            "it holds more pods than its quota",
		v1beta1.ReasonNodeOutsideSubset:    "the pod's node no longer belongs to it",
		v1beta1.ReasonEarlierSubsetHasRoom: "a subset that is preferred for the pod has quota and a node",
	}[move.Reason]
	note := fmt.Sprintf("pod %s was evicted from %s: %s", pod, where, why)
	switch {
	case move.Room != moves.HasRoom:
		return note
	case to == "":
		return note + "; a replacement fits on some node"
	default:
		return note + "; a replacement fits in subset " + to
	}
}
