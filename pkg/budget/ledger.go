package budget

import (
	"cmp"
	"slices"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/podstate"
)

// maxRenewals is how often the approval of an operation on a pod is renewed. If its entry is still there, something else refuses the operation, such as another
// webhook. The entry then expires, so that others who wait for the room get their turn.
const maxRenewals = 100

// renew approves an operation on a pod that has an entry. The entry always changes, which restarts its expiry: so it outlives the request, whatever the
// clocks say.
func renew(entry v1beta1.LedgerEntry, r *Request, now metav1.Time) v1beta1.LedgerEntry {
	if rank(r.Operation) > rank(entry.Operation) {
		entry.Operation = r.Operation
	}
	if r.Revision != "" && !isAfter(entry.Revision, r.Revision) {
		entry.Revision = r.Revision
	}
	entry.Generation, entry.Time = max(entry.Generation, r.Generation), now
	return entry
}

// rank orders operations. One that removes a pod outranks one that changes it: a changed pod can be proven available again, a deleted one cannot.
// Making the pod unready has the lowest rank, because an updater does so before it changes the pod.
func rank(operation v1beta1.Operation) int {
	switch operation {
	case v1beta1.OperationDelete, v1beta1.OperationEvict:
		return 2
	case v1beta1.OperationLeave:
		return 1
	case v1beta1.OperationUnready:
		return -1
	default:
		return 0
	}
}

// Settled is true if the outcome of an operation is proven, so that its entry is not needed any more. pod is the pod of the entry, or nil if it does
// not exist any more.
//
//   - A pod that is gone, terminates or has ended needs no entry, because it does not count as available.
//   - A change is over once the pod runs what its new spec says, and is ready.
//   - Making a pod unready is over once the pod serves at a later revision than the judged one: it never became unready, or is ready again. While the
//     pod does not serve, the entry stays. So a later change by the same updater is part of the same disruption, and needs no further available pod.
//
// A running pod that the budget does not cover, or that is exempt, proves nothing: it may come back before the operation happens. Meanwhile its entry
// lowers no count.
func Settled(entry *v1beta1.LedgerEntry, pod *corev1.Pod) bool {
	if pod == nil || !podstate.IsActive(pod) {
		return true
	}
	if entry.Revision != "" && !isAfter(pod.ResourceVersion, entry.Revision) {
		return false // the pod may still become unready
	}
	switch entry.Operation {
	case v1beta1.OperationUnready:
		return entry.Revision != "" && serves(pod)
	case v1beta1.OperationUpdate, v1beta1.OperationResize:
		// If a change is reverted, the status can match the spec before the kubelet has acted on the change. So the kubelet must have observed the spec.
		return pod.Generation >= entry.Generation && pod.Status.ObservedGeneration >= pod.Generation && runsItsSpec(pod) && IsReady(pod)
	default:
		return false
	}
}

// MayExpire is true if an entry can be removed without proof once it is so old that its request must have ended. Then the operation did not happen, or
// nobody can tell any more. The entry of a change stays while the kubelet still has work to do for the pod's latest spec. A resize that waits for
// resources of the node does not keep its entry: it may wait for ever, and its pod is Doubtful without an entry too. pod is nil if the budget's selector
// does not select it.
func MayExpire(entry *v1beta1.LedgerEntry, pod *corev1.Pod) bool {
	switch entry.Operation {
	case v1beta1.OperationUpdate, v1beta1.OperationResize:
		return pod == nil || specObserved(pod) && !says(pod, corev1.PodResizeInProgress)
	default:
		return true
	}
}

// runsItsSpec is true if every container runs with the image and resources of the spec. The observed generation does not tell this: a kubelet reports
// it before it restarts the containers.
func runsItsSpec(pod *corev1.Pod) bool {
	return !resizing(pod) && containerThat(pod, func(container *corev1.Container, status *corev1.ContainerStatus) bool {
		return status == nil || !SameImage(status.Image, container.Image) || status.Resources != nil && // CPU and memory can be changed in place
			(amountDiffers(corev1.ResourceCPU, status.Resources, &container.Resources) || amountDiffers(corev1.ResourceMemory, status.Resources, &container.Resources))
	}) == ""
}

// otherTag is true if both images have the same name and different tags. It is false for digests.
func otherTag(reported, asked string) bool {
	a, _ := reference.ParseDockerRef(reported) // nil for an invalid name
	b, _ := reference.ParseDockerRef(asked)
	is, tagged := a.(reference.Tagged)
	wanted, alsoTagged := b.(reference.Tagged)
	return tagged && alsoTagged && a.Name() == b.Name() && is.Tag() != wanted.Tag()
}

func restartableInit(containers []corev1.Container) []corev1.Container {
	return slices.DeleteFunc(slices.Clone(containers), func(c corev1.Container) bool {
		return c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways
	})
}

// SameImage is true if both names mean the same image once the default registry, repository and tag are filled in, as a runtime does. An image that is
// reported by digest or by another of its names is not recognised. The entry of its pod expires.
func SameImage(reported, asked string) bool {
	a, err := reference.ParseDockerRef(reported)
	b, alsoErr := reference.ParseDockerRef(asked)
	return reported == asked || err == nil && alsoErr == nil && a.String() == b.String()
}

// resizing is true while a resize may still restart a container. An infeasible resize does not.
func resizing(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Status == corev1.ConditionTrue && (c.Type == corev1.PodResizeInProgress || c.Type == corev1.PodResizePending && c.Reason != corev1.PodReasonInfeasible)
	})
}

// isInfeasible is true if the kubelet does not carry out the latest resize: the node is too small for it.
func isInfeasible(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodResizePending && c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonInfeasible &&
			(c.ObservedGeneration == 0 || c.ObservedGeneration >= pod.Generation)
	})
}

// Publish writes a ledger and its numbers into a status. It derives DisruptedPods and UnavailablePods from the ledger.
func Publish(status *v1beta1.PodUnavailableBudgetStatus, generation int64, ledger []v1beta1.LedgerEntry, t Tally) {
	status.ObservedGeneration = generation
	status.TotalReplicas, status.DesiredAvailable = t.Total, t.Desired
	status.CurrentAvailable, status.UnavailableAllowed = t.Available, t.Allowed
	status.Ledger = ledger
	publishSubsets(status, &t)
	status.DisruptedPods, status.UnavailablePods = nil, nil
	for i := range ledger {
		pods := &status.UnavailablePods
		if rank(ledger[i].Operation) > 0 {
			pods = &status.DisruptedPods
		}
		if *pods == nil {
			*pods = map[string]metav1.Time{}
		}
		(*pods)[ledger[i].Name] = ledger[i].Time
	}
}

// Newest is the latest of several resourceVersions of pods. It ignores empty ones. It is empty if one of them is not a number, or if there is none. An
// empty resourceVersion in a request means the latest committed one.
func Newest(revisions ...string) (newest string) {
	for _, revision := range revisions {
		order, err := resourceversion.CompareResourceVersion(revision, cmp.Or(newest, "1"))
		switch {
		case revision == "":
		case err != nil:
			return ""
		case order >= 0:
			newest = revision
		}
	}
	return newest
}
