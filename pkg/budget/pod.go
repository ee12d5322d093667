package budget

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/podstate"
	"github.com/berth-project/berth/pkg/subset"
)

// State of a pod, as far as a budget is concerned. A pod counts as available only if it certainly is. An operation on it is free only if the pod is
// certainly not available. Pods in between are Doubtful.
type State string

const (
	// Available pods serve, and no operation can make them unavailable without a call to the webhook.
	Available State = "available"
	// Doubtful pods may serve, but do not count as available. Their containers have not restarted for the latest spec yet, or a deadline will end
	// them, or a readiness gate is off and the kubelet has not made them unready yet, or the API server does not call the webhook about them yet.
	// Each doubt ends: by something in the pod or its status, or by time.
	Doubtful State = "doubtful"
	// Unavailable pods do not serve, or a label takes them out of service.
	Unavailable State = "unavailable"
	// Pending pods have not served yet. Operations on them are always allowed, whatever unhealthyPodPolicy says.
	Pending State = "pending"
	// Gone pods terminate, have ended, or their node does not exist. No operation can make them less available.
	Gone State = "gone"
	// Exempt pods have NoProtectAnnotation, so they are in no budget, or the budget ignores them.
	Exempt State = "exempt"
)

// Pod is what this package needs to know of a pod.
type Pod struct {
	Name  string
	UID   types.UID
	State State
	// Why says, for people, why the pod is not available. It is empty if it is, and for pods that nobody waits for.
	Why string
	// Until is when the doubt about the pod ends, if only time ends it. Otherwise it is zero.
	Until time.Time
	// Unmanaged is true if no workload with a readable number of replicas asks for the pod.
	Unmanaged bool
	// Subset of the pod, for a budget with perSubset. It is empty if the pod has none.
	Subset string
	// Declared is true if the pod counts in the replicas of one of Facts.Subsets.
	Declared bool
	// Unwanted is true if the workload of the pod is gone.
	Unwanted bool
	// HandedOver is true for a pod that is replaced first: its workload asks for another in its place.
	HandedOver bool
}

// Observe derives a Pod of a budget from a pod of the API server. ignored selects the pods that the budget ignores; nil ignores none. nodeGone is true if
// the pod's node is known not to exist. No time ends a doubt; see Doubts.
func Observe(pod *corev1.Pod, ignored labels.Selector, nodeGone bool) Pod {
	observed, _ := observe(pod, ignored, nodeGone)
	return observed
}

// observe also returns the doubt about the pod, if there is one.
func observe(pod *corev1.Pod, ignored labels.Selector, nodeGone bool) (_ Pod, d doubt) {
	state, why := stateOf(pod, ignored, nodeGone)
	if state == Available {
		if d = doubtAbout(pod); d.why != "" {
			state, why = Doubtful, d.why
		}
	}
	return Pod{Name: pod.Name, UID: pod.UID, State: state, Why: why, HandedOver: HandoverOf(pod) != nil}, d
}

// WasChanged is true if the spec of the pod has changed since its containers could start.
func WasChanged(pod *corev1.Pod) bool { return changesOf(pod) > 0 }

// changesOf is how often the spec of the pod has changed since its containers could start. Berth's scheduler changes a pod once before that, when it opens the
// pod's gate. The removal of another gate is a change like any other; lastWrite tells what it has changed.
func changesOf(pod *corev1.Pod) int64 {
	if pod.Generation < 2 {
		return 0
	}
	if picked := subset.AdmittedOf(pod); picked != nil && picked.Opened {
		return pod.Generation - 2
	}
	return pod.Generation - 1
}

// stateOf is the state of a pod without doubts about it.
func stateOf(pod *corev1.Pod, ignored labels.Selector, nodeGone bool) (_ State, why string) {
	switch {
	case podstate.HasEnded(pod):
		return Gone, ""
	case pod.DeletionTimestamp != nil:
		return Gone, "terminates"
	case nodeGone:
		return Gone, "its node is gone"
	case IsExempt(pod, ignored):
		return Exempt, ""
	case !IsReady(pod):
		if pod.Status.Phase == corev1.PodPending || pod.Status.Phase == "" {
			return Pending, "has not started"
		}
		return Unavailable, "is not ready"
	case isMarkedUnavailable(pod):
		return Unavailable, "a label takes it out of service"
	default:
		return Available, ""
	}
}

// endsBySchedule is true for a pod with activeDeadlineSeconds that may not come from its template. Templates of pods that always restart have none. A pod
// that ends by itself may have been created with one. Once it was written again, after the second of its creation, nobody can tell whether the deadline is the
// original one.
func endsBySchedule(pod *corev1.Pod) bool {
	return pod.Spec.ActiveDeadlineSeconds != nil && (pod.Spec.RestartPolicy == corev1.RestartPolicyAlways || lastWrite(pod, "f:activeDeadlineSeconds", pod.CreationTimestamp.Add(time.Second)) != 0)
}

// IsExempt is true for a pod with NoProtectAnnotation, which is in no budget, and for a pod that the budget ignores. A nil selector ignores none.
func IsExempt(pod *corev1.Pod, ignored labels.Selector) bool {
	return pod.Annotations[v1beta1.NoProtectAnnotation] == "true" || ignored != nil && ignored.Matches(labels.Set(pod.Labels))
}

// IsProtected is true for a pod about which the API server calls the webhook.
func IsProtected(pod *corev1.Pod) bool {
	_, found := pod.Labels[v1beta1.ProtectedLabel]
	return found
}

// IsReady is true if the pod has the condition Ready.
func IsReady(pod *corev1.Pod) bool { return says(pod, corev1.PodReady) }

// says is true if the condition of the type is True.
func says(pod *corev1.Pod, kind corev1.PodConditionType) bool {
	c := podstate.Condition(pod, kind)
	return c != nil && c.Status == corev1.ConditionTrue
}

// specObserved is true if the status is for the latest spec, or if the kubelet is too old to report that.
func specObserved(pod *corev1.Pod) bool {
	return pod.Status.ObservedGeneration == 0 || pod.Status.ObservedGeneration >= pod.Generation
}
