package budget

import (
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-project/berth/pkg/crd/policy/v1alpha1"
)

// MaxRenewals is how often the approval of one operation is given again. An operation that was let through more often has not happened: something else refuses
// it, as a PodDisruptionBudget or another webhook does. Who tries for ever would hold its room for ever, so that the entry is left to expire then.
const MaxRenewals = 3

// renew gives an approval once more. The entry stays as it is if it covers the request and is fresh; otherwise it changes, and with it the
// time at which it may expire. It is not ok if it must be left to expire.
func renew(entry v1alpha1.LedgerEntry, r *Request, now metav1.Time) (_ v1alpha1.LedgerEntry, changed, ok bool) {
	operation := entry.Operation
	if rank(r.Operation) > rank(operation) {
		operation = r.Operation
	}
	generation := max(entry.Generation, r.Generation)
	revision := entry.Revision
	if r.Revision != "" && !isAfter(revision, r.Revision) {
		revision = r.Revision
	}
	switch again := operation == entry.Operation && generation == entry.Generation && revision == entry.Revision; {
	case again && r.Fresh:
		return entry, false, true
	case again && entry.Renewals >= MaxRenewals:
		return entry, false, false
	case again:
		entry.Renewals++
	default:
		entry.Renewals = 1
	}
	entry.Operation, entry.Generation, entry.Revision, entry.Time = operation, generation, revision, now
	return entry, true, true
}

// rank of operations: what removes a pod outranks what only changes it, because a changed pod is proven available again and a deleted one is
// not. What only makes it unready is the least: an updater does so before it changes the pod.
func rank(operation v1alpha1.Operation) int {
	switch operation {
	case v1alpha1.OperationDelete, v1alpha1.OperationEvict:
		return 2
	case v1alpha1.OperationLeave:
		return 1
	case v1alpha1.OperationUnready:
		return -1
	default:
		return 0
	}
}

// Settled is true if there is proof of what became of an operation, so that its entry is not needed any more. Pod is the one of the entry; nil if
// it does not exist any more.
//
//   - A pod that is gone, terminates or has ended needs no entry, since it does not count.
//   - A changed pod that runs what its new spec says, and is ready, has the change behind it.
//   - A pod that was to be made unready serves at a later revision than the one that was judged: it was not made so, or is back. As long as it does not serve
//     the entry stays, so that what an updater goes on to do with the pod is the same disruption and needs no room of its own.
//
// That the budget does not cover a pod that lives, or the pod is exempt, proves nothing: it may come back before the operation happens. Its entry
// takes no room meanwhile.
func Settled(entry *v1alpha1.LedgerEntry, pod *corev1.Pod) bool {
	if pod == nil || pod.DeletionTimestamp != nil || hasEnded(pod) {
		return true
	}
	if entry.Revision != "" && !isAfter(pod.ResourceVersion, entry.Revision) {
		return false // it may be made unready yet
	}
	switch entry.Operation {
	case v1alpha1.OperationUnready:
		return entry.Revision != "" && serves(pod)
	case v1alpha1.OperationUpdate, v1alpha1.OperationResize:
		// A pod that was changed back looks as if it had the change behind it, until its kubelet acts on the change.
		return pod.Generation >= entry.Generation && pod.Status.ObservedGeneration >= pod.Generation && runsItsSpec(pod) && IsReady(pod)
	default:
		return false
	}
}

// MayExpire is true if an entry that is old enough for its request to have ended can go without proof: the operation did not happen, or
// there is no telling any more. That of a change stays while the kubelet has work to do on the pod's latest spec; a resize that waits for room on the
// node may wait for ever, and its pod is in doubt without an entry too. Pod is nil if the budget's selector does not pick it.
func MayExpire(entry *v1alpha1.LedgerEntry, pod *corev1.Pod) bool {
	switch entry.Operation {
	case v1alpha1.OperationUpdate, v1alpha1.OperationResize:
		return pod == nil || specObserved(pod) && !conditionIs(pod, corev1.PodResizeInProgress)
	default:
		return true
	}
}

// Happened is true if the pod is seen to be as the operation was to make it, which by itself proves nothing about what comes of it. Pod is nil if the
// budget's selector does not pick it.
func Happened(entry *v1alpha1.LedgerEntry, pod *corev1.Pod) bool {
	switch entry.Operation {
	case v1alpha1.OperationUpdate, v1alpha1.OperationResize:
		return pod != nil && pod.Generation >= entry.Generation
	case v1alpha1.OperationUnready:
		return pod != nil && !serves(pod)
	case v1alpha1.OperationLeave:
		return pod == nil || IsExempt(pod)
	default:
		return false
	}
}

// runsItsSpec is true if every container runs the image and the resources that the spec says. A kubelet reports that it has observed a spec
// before it restarts the containers.
func runsItsSpec(pod *corev1.Pod) bool {
	if resizing(pod) {
		return false
	}
	return containersRun(pod.Spec.Containers, pod.Status.ContainerStatuses) &&
		containersRun(restartableInit(pod.Spec.InitContainers), pod.Status.InitContainerStatuses)
}

// isOutdated is true if a container will restart, because it does not run with what the spec says. Its image tells that only if the spec has changed
// since the pod was made: a runtime reports any one of the names that an image has on the node, so that the tag of a pod that nobody has
// changed may be another one for good. A kubelet may have seen the spec and not have stopped the container yet; a pod that is in the ledger is
// not counted then anyway, and one that was changed before it was protected is in none.
//
// A resize tells by what is reported of the container's resources. Where nothing is, any resize that is under way counts.
func isOutdated(pod *corev1.Pod) bool {
	imageTells := pod.Generation > 1
	resizing := resizing(pod)
	outdated := func(containers []corev1.Container, statuses []corev1.ContainerStatus) bool {
		return slices.ContainsFunc(containers, func(container corev1.Container) bool {
			status := statusOf(container.Name, statuses)
			if status != nil && imageTells && otherTag(status.Image, container.Image) {
				return true
			}
			return slices.ContainsFunc(container.ResizePolicy, func(policy corev1.ContainerResizePolicy) bool {
				if policy.RestartPolicy != corev1.RestartContainer {
					return false
				}
				if status == nil || status.Resources == nil {
					return resizing
				}
				return amountDiffers(policy.ResourceName, status.Resources, &container.Resources)
			})
		})
	}
	return outdated(pod.Spec.Containers, pod.Status.ContainerStatuses) ||
		outdated(restartableInit(pod.Spec.InitContainers), pod.Status.InitContainerStatuses)
}

// otherTag is true if both are the same image by name, and their tags differ.
func otherTag(reported, asked string) bool {
	a, b := full(reported), full(asked)
	if strings.Contains(a, "@") || strings.Contains(b, "@") {
		return false
	}
	return a != b && a[:strings.LastIndex(a, ":")] == b[:strings.LastIndex(b, ":")]
}

func restartableInit(containers []corev1.Container) []corev1.Container {
	var kept []corev1.Container
	for i := range containers {
		if policy := containers[i].RestartPolicy; policy != nil && *policy == corev1.ContainerRestartPolicyAlways {
			kept = append(kept, containers[i])
		}
	}
	return kept
}

func containersRun(containers []corev1.Container, statuses []corev1.ContainerStatus) bool {
	for i := range containers {
		container := &containers[i]
		status := statusOf(container.Name, statuses)
		if status == nil || !sameImage(status.Image, container.Image) {
			return false
		}
		if status.Resources != nil && !sameResources(status.Resources, &container.Resources) {
			return false
		}
	}
	return true
}

func statusOf(name string, statuses []corev1.ContainerStatus) *corev1.ContainerStatus {
	for i := range statuses {
		if statuses[i].Name == name {
			return &statuses[i]
		}
	}
	return nil
}

// sameImage is true if a runtime that reports the one may have been asked for the other: it fills in registry, repository and tag. Images that
// are reported by digest or by another of their names are not recognised, and their entries expire.
func sameImage(reported, asked string) bool {
	return reported == asked || full(reported) == full(asked)
}

func full(image string) string {
	first, rest, found := strings.Cut(image, "/")
	switch {
	case !found:
		image = "docker.io/library/" + image
	case !strings.ContainsAny(first, ".:") && first != "localhost":
		image = "docker.io/" + image
	case first == "index.docker.io":
		image = "docker.io/" + rest
	}
	name := image[strings.LastIndex(image, "/")+1:]
	if !strings.ContainsAny(name, ":@") {
		image += ":latest"
	}
	return image
}

// sameResources compares what can be changed in place.
func sameResources(a, b *corev1.ResourceRequirements) bool {
	return sameAmounts(a.Requests, b.Requests) && sameAmounts(a.Limits, b.Limits)
}

func sameAmounts(a, b corev1.ResourceList) bool {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if !equality.Semantic.DeepEqual(a[name], b[name]) {
			return false
		}
	}
	return true
}

// resizing is true while a resize may still restart a container. One that the kubelet has found infeasible will not.
func resizing(pod *corev1.Pod) bool {
	for i := range pod.Status.Conditions {
		c := &pod.Status.Conditions[i]
		if c.Status != corev1.ConditionTrue {
			continue
		}
		if c.Type == corev1.PodResizeInProgress || c.Type == corev1.PodResizePending && c.Reason != corev1.PodReasonInfeasible {
			return true
		}
	}
	return false
}

func conditionIs(pod *corev1.Pod, kind corev1.PodConditionType) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind && c.Status == corev1.ConditionTrue })
}

// Publish puts a ledger and its numbers into a status. The maps by name follow the ledger.
func Publish(status *v1alpha1.PodUnavailableBudgetStatus, generation int64, ledger []v1alpha1.LedgerEntry, t Tally) {
	status.ObservedGeneration = generation
	status.TotalReplicas, status.DesiredAvailable = t.Total, t.Desired
	status.CurrentAvailable, status.UnavailableAllowed = t.Available, t.Allowed
	status.Ledger = ledger
	status.DisruptedPods, status.UnavailablePods = nil, nil
	put := func(pods *map[string]metav1.Time, entry *v1alpha1.LedgerEntry) {
		if *pods == nil {
			*pods = map[string]metav1.Time{}
		}
		(*pods)[entry.Name] = entry.Time
	}
	for i := range ledger {
		if rank(ledger[i].Operation) > 0 {
			put(&status.DisruptedPods, &ledger[i])
		} else {
			put(&status.UnavailablePods, &ledger[i])
		}
	}
}

// Newest is the latest of several resourceVersions of pods. It is empty, which asks for the latest there is, if one of them is not a number; empty
// ones do not count.
func Newest(revisions ...string) string {
	var newest uint64
	for _, revision := range revisions {
		if revision == "" {
			continue
		}
		n, err := strconv.ParseUint(revision, 10, 64)
		if err != nil {
			return ""
		}
		newest = max(newest, n)
	}
	if newest == 0 {
		return ""
	}
	return strconv.FormatUint(newest, 10)
}
