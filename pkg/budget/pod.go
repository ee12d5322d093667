package budget

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/pkg/crd/policy/v1alpha1"
)

// State of a pod, as far as a budget is concerned. It is a state of two sides, because a mistake costs differently: a pod is counted as
// available only if it surely is, and given away for nothing only if it surely is not.
type State string

const (
	// Available pods serve, and nothing can make them unavailable unasked.
	Available State = "available"
	// Doubtful pods may serve, and are not counted: their containers are yet to restart for the latest spec, a deadline will end them, a
	// readiness gate is off and their kubelet has yet to say so, or they lack the protection label and could be deleted unasked.
	Doubtful State = "doubtful"
	// Unavailable pods do not serve, or a label says that they do not.
	Unavailable State = "unavailable"
	// Pending pods have not served yet. Nothing is lost with them, whatever the policy for unhealthy pods.
	Pending State = "pending"
	// Gone pods terminate, have ended, or their node does not exist. Whatever is done to them has happened already.
	Gone State = "gone"
	// Exempt pods are annotated to be in no budget.
	Exempt State = "exempt"
)

// Pod is what the model needs to know of a pod.
type Pod struct {
	Name  string
	UID   types.UID
	State State
	// Unmanaged is true if no workload says that the pod should exist.
	Unmanaged bool
}

// Observe reads what the model needs from a pod. nodeGone is true if the node that it is bound to is known not to exist.
func Observe(pod *corev1.Pod, nodeGone bool) Pod {
	return Pod{Name: pod.Name, UID: pod.UID, State: stateOf(pod, nodeGone)}
}

func stateOf(pod *corev1.Pod, nodeGone bool) State {
	switch {
	case pod.DeletionTimestamp != nil, hasEnded(pod), nodeGone:
		return Gone
	case IsExempt(pod):
		return Exempt
	case !IsReady(pod):
		if pod.Status.Phase == corev1.PodPending || pod.Status.Phase == "" {
			return Pending
		}
		return Unavailable
	case isMarkedUnavailable(pod):
		return Unavailable
	case !IsProtected(pod), !passesGates(pod), !specObserved(pod), isOutdated(pod), endsBySchedule(pod):
		return Doubtful
	default:
		return Available
	}
}

// endsBySchedule is true for a pod that has got a deadline since it was made, or is to serve for good and has one: templates of such pods have none. One
// that is to end by itself may have been made with a deadline; whether it is that one is not to be seen once its spec has changed.
func endsBySchedule(pod *corev1.Pod) bool {
	return pod.Spec.ActiveDeadlineSeconds != nil && (pod.Spec.RestartPolicy == corev1.RestartPolicyAlways || pod.Generation > 1)
}

func hasEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// IsExempt is true for a pod that is annotated to be in no budget.
func IsExempt(pod *corev1.Pod) bool { return pod.Annotations[v1alpha1.NoProtectAnnotation] == "true" }

// IsProtected is true for a pod about which the API server asks the webhook.
func IsProtected(pod *corev1.Pod) bool {
	_, found := pod.Labels[v1alpha1.ProtectedLabel]
	return found
}

// IsReady is true if the pod says so.
func IsReady(pod *corev1.Pod) bool { return says(pod, corev1.PodReady) }

// says is true if the first condition of the type is. Kubernetes goes by the first, too, if there are several.
func says(pod *corev1.Pod, kind corev1.PodConditionType) bool {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == kind {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// specObserved is true if the status belongs to the latest spec, or if the kubelet is too old to tell.
func specObserved(pod *corev1.Pod) bool {
	return pod.Status.ObservedGeneration == 0 || pod.Status.ObservedGeneration >= pod.Generation
}
