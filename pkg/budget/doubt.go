package budget

import (
	"bytes"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"
)

// restartTime is how long a kubelet may take to stop a container after it has observed a new spec, without the grace period of the pod.
const restartTime = 2 * time.Minute

// longestGrace bounds the grace period for which a doubt may last.
const longestGrace = 24 * time.Hour

// mostDoubts is how many doubts are remembered. A forgotten one begins again.
const mostDoubts = 1 << 16

// Doubts end the doubts about pods that nothing in the status of a pod ends. A pod's status may differ from its spec for good: a runtime reports any one of the
// names that an image has on the node, and a kubelet need not say that it leaves a resize alone. So such a difference counts for restartTime and the grace
// period, since this process first saw it. By then a kubelet that has observed the spec has stopped the container, and the pod's readiness tells the rest.
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
	observed, change := observe(pod, ignored, nodeGone)
	if change == 0 {
		return observed
	}
	key, since := doubtKey{pod.UID, change}, now
	if known, found := d.since.Get(key); found {
		since = known.(time.Time)
	} else {
		d.since.Add(key, now)
	}
	if observed.Until = since.Add(restartTime + graceOf(pod)); !now.Before(observed.Until) {
		observed.State, observed.Why, observed.Until = Available, "", time.Time{}
	}
	return observed
}

func graceOf(pod *corev1.Pod) time.Duration {
	seconds := int64(corev1.DefaultTerminationGracePeriodSeconds)
	if given := pod.Spec.TerminationGracePeriodSeconds; given != nil {
		seconds = *given
	}
	return time.Duration(min(max(seconds, 0), int64(longestGrace/time.Second))) * time.Second
}

// doubtAbout returns why a pod that is ready does not count as available. It is empty if nothing speaks against the pod.
//
// change is 0 if something in the pod or its status ends the doubt. Otherwise only time ends it, and change identifies the change of the spec that it is about.
func doubtAbout(pod *corev1.Pod) (why string, change int64) {
	switch {
	case !IsProtected(pod):
		return "has no protection label yet", 0
	case !passesGates(pod):
		return "a readiness gate is off", 0
	case !specObserved(pod):
		return "its kubelet has not seen its latest spec", 0
	case endsBySchedule(pod):
		return "activeDeadlineSeconds will end it", 0
	}
	if name := containerThat(pod, isToBeResized(pod)); name != "" && conditionIs(pod, corev1.PodResizeInProgress) {
		return "container " + name + " restarts for a resize", 0
	} else if name != "" {
		return "container " + name + " restarts once its node has room for its resize", 0
	}
	// A pod that was changed before it was protected is in no ledger, so these two find it.
	if at := lastWrite(pod, "f:resources"); at != 0 && !isInfeasible(pod) {
		if name := containerThat(pod, restartsForResources); name != "" {
			why, change = "container "+name+" may restart for its new resources", at
		}
	}
	if at := lastWrite(pod, "f:image"); at > change {
		if name := containerThat(pod, runsOtherTag); name != "" {
			why, change = "container "+name+" may restart for its new image", at
		}
	}
	return why, change
}

// containerThat is the name of the first container for which is is true, empty if there is none. status is nil if the pod reports none.
func containerThat(pod *corev1.Pod, is func(container *corev1.Container, status *corev1.ContainerStatus) bool) string {
	find := func(containers []corev1.Container, statuses []corev1.ContainerStatus) string {
		for i := range containers {
			if is(&containers[i], statusOf(containers[i].Name, statuses)) {
				return containers[i].Name
			}
		}
		return ""
	}
	if name := find(pod.Spec.Containers, pod.Status.ContainerStatuses); name != "" {
		return name
	}
	return find(restartableInit(pod.Spec.InitContainers), pod.Status.InitContainerStatuses)
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
	return status != nil && status.Resources != nil && slices.ContainsFunc(container.ResizePolicy, func(p corev1.ContainerResizePolicy) bool {
		return p.RestartPolicy == corev1.RestartContainer && amountDiffers(p.ResourceName, status.Resources, &container.Resources)
	})
}

// runsOtherTag is true if a container runs another tag of its image.
func runsOtherTag(container *corev1.Container, status *corev1.ContainerStatus) bool {
	return status != nil && otherTag(status.Image, container.Image)
}

// lastWrite identifies the latest write of a field of the spec since the pod has its node, 0 if there is none. Earlier writes restart no container. field is
// the field as managedFields name it. Both times are of the API server's clock.
//
// If nobody knows who wrote what, as in some caches, any change of the spec counts, and lastWrite is its generation.
func lastWrite(pod *corev1.Pod, field string) (latest int64) {
	if !WasChanged(pod) {
		return 0
	}
	if len(pod.ManagedFields) == 0 {
		return pod.Generation
	}
	for i := range pod.ManagedFields {
		entry := &pod.ManagedFields[i]
		isSpec := entry.Subresource == "" || entry.Subresource == "resize" // and not, for instance, that of ephemeral containers
		if isSpec && entry.Time != nil && entry.FieldsV1 != nil && isAfterBinding(entry.Time.Time, pod) && bytes.Contains(entry.FieldsV1.Raw, []byte(`"`+field+`":`)) {
			latest = max(latest, entry.Time.Unix())
		}
	}
	return latest
}

func isAfterBinding(at time.Time, pod *corev1.Pod) bool {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue {
			return at.After(c.LastTransitionTime.Time)
		}
	}
	return true
}
