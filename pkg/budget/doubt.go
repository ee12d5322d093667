package budget

import (
	"bytes"
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/podstate"
)

const (
	// restartTime is how long a kubelet may take to stop a container after it has observed a new spec, without the grace period of the pod.
	restartTime = 2 * time.Minute
	// pullTime is how long the pull of an image may take. Meanwhile the container is down, and the pod still says that it is ready, unless a probe fails.
	pullTime = time.Hour
	// longestGrace bounds the grace period for which a doubt may last.
	longestGrace = 24 * time.Hour
)

// mostDoubts is how many doubts are remembered. A forgotten one begins again.
const mostDoubts = 1 << 16

// Doubts end the doubts about pods that nothing in the status of a pod ends. A pod's status may differ from its spec for good: a runtime reports any one of the
// names that an image has on the node, and a kubelet need not say that it leaves a resize alone. So such a difference counts for some time, since this process
// first saw it: for restartTime and the grace period if the container has started since the change or needs no image, and otherwise for pullTime and the grace
// period.
//
// A process that starts begins the doubts again. Several processes may end one doubt at different times. Neither lets a pod count too early. Any number of
// goroutines may use it.
type Doubts struct {
	// since has the time.Time at which a difference was first seen, by doubtKey.
	since *lru.Cache
}

type doubtKey struct {
	pod    types.UID
	change int64
}

// NewDoubts returns Doubts about nothing.
func NewDoubts() *Doubts { return &Doubts{since: lru.New(mostDoubts)} }

// Observe is like the function Observe, and ends doubts. now must have a reading of the monotonic clock.
func (d *Doubts) Observe(pod *corev1.Pod, ignored labels.Selector, nodeGone bool, now time.Time) Pod {
	observed, doubt := observe(pod, ignored, nodeGone)
	if doubt.change == 0 {
		return observed
	}
	key, since := doubtKey{pod.UID, doubt.change}, now
	if known, found := d.since.Get(key); found {
		since = known.(time.Time)
	} else {
		d.since.Add(key, now)
	}
	if observed.Until = since.Add(doubt.lasts); !now.Before(observed.Until) {
		observed.State, observed.Why, observed.Until = Available, "", time.Time{}
	}
	return observed
}

// stopTime is how long a kubelet may take to stop all containers of the pod, one after the other.
func stopTime(pod *corev1.Pod) time.Duration {
	seconds := ptr.Deref(pod.Spec.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds)
	grace := time.Duration(min(max(seconds, 0), int64(longestGrace/time.Second))) * time.Second
	return min(grace*time.Duration(len(pod.Spec.Containers)+len(restartableInit(pod.Spec.InitContainers))), longestGrace)
}

// doubt is why a pod that is ready does not count as available.
type doubt struct {
	// why is empty if nothing speaks against the pod.
	why string
	// change identifies the change of the spec that the doubt is about, and lasts is for how long the doubt lasts. Both are 0 if something in the pod or its
	// status ends the doubt.
	change int64
	lasts  time.Duration
}

func doubtAbout(pod *corev1.Pod) (d doubt) {
	switch {
	case !IsProtected(pod):
		return doubt{why: "has no protection label yet"}
	case !passesGates(pod):
		return doubt{why: "a readiness gate is off"}
	case !specObserved(pod):
		return doubt{why: "its kubelet has not seen its latest spec"}
	case endsBySchedule(pod):
		return doubt{why: "activeDeadlineSeconds will end it"}
	}
	if name := containerThat(pod, isToBeResized(pod)); name != "" && says(pod, corev1.PodResizeInProgress) {
		return doubt{why: "container " + name + " restarts for a resize"}
	} else if name != "" {
		return doubt{why: "container " + name + " restarts once its node has room for its resize"}
	}
	// A pod that was changed before it was protected is in no ledger, so these two find it. Writes before it had a node
	// restart no container.
	if at := lastWrite(pod, "f:resources", podstate.BoundSince(pod)); at != 0 && !isInfeasible(pod) {
		if name := containerThat(pod, restartsForResources); name != "" {
			d = doubt{"container " + name + " may restart for its new resources", at, restartTime + stopTime(pod)}
		}
	}
	if at := lastWrite(pod, "f:image", podstate.BoundSince(pod)); at > d.change {
		if name := containerThat(pod, func(container *corev1.Container, status *corev1.ContainerStatus) bool {
			_, started := startedAfter(pod, status, at)
			return runsOtherTag(container, status) && !started
		}); name != "" {
			return doubt{"container " + name + " may restart for its new image", at, pullTime + stopTime(pod)}
		}
		if name := containerThat(pod, func(container *corev1.Container, status *corev1.ContainerStatus) bool {
			after, _ := startedAfter(pod, status, at)
			return runsOtherTag(container, status) && after <= restartTime
		}); name != "" {
			return doubt{"container " + name + " has just started, and its node reports another image", at, restartTime + stopTime(pod)}
		}
	}
	return d
}

// startedAfter is how long after a write of the spec the container has started. started is false if it has not started since, or if that is not known. Clocks tell
// seconds, and those of a node and of the API server may differ by up to restartTime: a container that has started later than that runs the spec. One that has
// started in the second of the write counts as started since if the one before it ended in that second too: a kubelet may need less than a second for both.
func startedAfter(pod *corev1.Pod, status *corev1.ContainerStatus, written int64) (after time.Duration, started bool) {
	if len(pod.ManagedFields) == 0 || status == nil || status.State.Running == nil {
		return 0, false
	}
	write, before := time.Unix(written, 0), status.LastTerminationState.Terminated
	after = status.State.Running.StartedAt.Sub(write)
	return after, after > 0 || after == 0 && before != nil && !before.FinishedAt.Time.Before(write)
}

// containerThat is the name of the first container for which is is true, empty if there is none. status is nil if the pod reports none.
func containerThat(pod *corev1.Pod, is func(container *corev1.Container, status *corev1.ContainerStatus) bool) string {
	find := func(containers []corev1.Container, statuses []corev1.ContainerStatus) string {
		for i := range containers {
			if is(&containers[i], podstate.ContainerStatus(statuses, containers[i].Name)) {
				return containers[i].Name
			}
		}
		return ""
	}
	return cmp.Or(find(pod.Spec.Containers, pod.Status.ContainerStatuses), find(restartableInit(pod.Spec.InitContainers), pod.Status.InitContainerStatuses))
}

// isToBeResized finds containers that a resize restarts which the kubelet carries out, or waits to carry out. The reported resources tell whether the resize
// is complete. If a container reports none, or the kubelet leaves a later resize alone, any resize counts.
func isToBeResized(pod *corev1.Pod) func(*corev1.Container, *corev1.ContainerStatus) bool {
	resizing, infeasible := resizing(pod), isInfeasible(pod)
	return func(container *corev1.Container, status *corev1.ContainerStatus) bool {
		return resizing && slices.ContainsFunc(container.ResizePolicy, func(p corev1.ContainerResizePolicy) bool {
			return p.RestartPolicy == corev1.RestartContainer &&
				(status == nil || status.Resources == nil || infeasible || amountDiffers(p.ResourceName, status.Resources, &container.Resources))
		})
	}
}

// restartsForResources is true if a container runs with other resources than the spec's, and takes a restart for them.
func restartsForResources(container *corev1.Container, status *corev1.ContainerStatus) bool {
	return status != nil && status.Resources != nil && restartsFor(container, status.Resources, &container.Resources)
}

// runsOtherTag is true if a container runs another tag of its image.
func runsOtherTag(container *corev1.Container, status *corev1.ContainerStatus) bool {
	return status != nil && otherTag(status.Image, container.Image)
}

// lastWrite identifies the latest write of a field of the spec since a time, 0 if there is none. field is the field as managedFields name it. Both times are of
// the API server's clock, which tells seconds: a write in the second of since may have been after it. It was the creation of the pod if requests of subresources
// account for each change of the spec.
//
// If nobody knows who wrote what, as in some caches, any change of the spec counts, and lastWrite is its generation.
func lastWrite(pod *corev1.Pod, field string, since time.Time) (latest int64) {
	changes := changesOf(pod)
	if changes == 0 {
		return 0
	}
	if len(pod.ManagedFields) == 0 {
		return pod.Generation
	}
	for i := range pod.ManagedFields {
		// An update that changes nothing is in no entry. An apply may be.
		if entry := &pod.ManagedFields[i]; entry.Operation == metav1.ManagedFieldsOperationUpdate && (entry.Subresource == "resize" || entry.Subresource == "ephemeralcontainers") {
			changes--
		}
	}
	for i := range pod.ManagedFields {
		entry := &pod.ManagedFields[i]
		isSpec := entry.Subresource == "resize" || entry.Subresource == "" && (changes > 0 || !entry.Time.Equal(&pod.CreationTimestamp)) // and not, for instance, ephemeral containers
		if isSpec && entry.Time != nil && entry.FieldsV1 != nil && !entry.Time.Time.Before(since) && bytes.Contains(entry.FieldsV1.Raw, []byte(`"`+field+`":`)) {
			latest = max(latest, entry.Time.Unix())
		}
	}
	return latest
}
