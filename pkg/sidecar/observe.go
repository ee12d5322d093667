package sidecar

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
	"github.com/berth-project/berth/pkg/podstate"
)

// doubt is for how long an update counts as going on if the container has restarted, and its status does not tell with
// which image. An image may have several names, and the runtime reports any of them.
const doubt = 2 * time.Minute

// Pod is what is known about a pod that a set picks, and that has its containers.
type Pod struct {
	*corev1.Pod
	// Updated is true if the pod has the latest version. Its containers may not run yet.
	Updated bool
	// Touched is true if the pod was updated in place once, to whatever version.
	Touched bool
	// Settled is true if what the previous update has changed runs, and no hot upgrade is under way.
	Settled bool
	// Migrated is true if only the last step of hot upgrades is left to do: the new containers are ready, and the old
	// ones still run.
	Migrated bool
	// Ready is true if the pod runs and is ready.
	Ready bool
	// Failing is true if a sidecar has a status and is not ready.
	Failing bool
	// Over is true if a sidecar has ended and does not start again, as in a pod of a Job. The pod waits for its other
	// containers to end, and is not updated any more.
	Over bool
	// Changed is true if a sidecar has another image than the set has given, because others have changed it.
	Changed bool
	// Held keeps the pod from being updated now. The caller sets it.
	Held bool
	// Why says why the pod cannot be updated in place. Empty if it can.
	Why string
}

// Available is true if nothing that the set does keeps the pod from working.
func (p *Pod) Available() bool { return p.Ready && p.Settled }

// Out is true if the pod is unavailable, and the set may be the reason: the pod was updated once, or got the latest
// version and a sidecar is not ready. Nobody can tell whether a pod that was updated would be available without the
// update.
func (p *Pod) Out() bool {
	return !p.Available() && !p.Over && (p.Touched || p.Ready || p.Updated && p.Failing)
}

// Observe returns what is known about a pod. It is false if the pod does not have the containers of the set, or has
// ended.
func (p *Policy) Observe(pod *corev1.Pod, now time.Time) (Pod, bool) {
	version, has := VersionOf(pod, p.Name)
	if !has || podstate.HasEnded(pod) {
		return Pod{}, false
	}
	state, touched := read[inPlaceState](pod, v1beta1.InPlaceStateAnnotation)[p.Name]
	noted, isNoted := read[given](pod, v1beta1.GivenAnnotation)[p.Name]
	is := Pod{
		Pod: pod, Updated: version.Hash == p.Hash && (noted.Rest == "" || noted.Rest == p.Rest), Touched: touched, Ready: pod.Status.Phase == corev1.PodRunning && budget.IsReady(pod),
		Changed: p.changed(pod, &noted), Why: "another product has injected its sidecars",
	}
	if isNoted {
		is.Why = p.why(pod, &noted)
	}
	for _, c := range p.running() {
		for _, name := range podNames(c) {
			status := statusOf(pod, name)
			is.Failing = is.Failing || status != nil && !status.Ready
			is.Over = is.Over || status != nil && endedForGood(pod, name, status)
		}
	}
	if p.restarted(pod, &state, now) {
		migrating := p.migrating(pod)
		is.Settled = len(migrating) == 0
		is.Migrated = len(migrating) > 0 && !slices.ContainsFunc(migrating, func(c *v1beta1.SidecarContainer) bool {
			status := statusOf(pod, hotNames(c.Name)[working(pod, c.Name)])
			return status == nil || !status.Ready
		})
	}
	return is, true
}

// why says why a pod cannot be updated in place that Berth has given its sidecars.
func (p *Policy) why(pod *corev1.Pod, noted *given) string {
	if noted.Fixed != p.Fixed {
		return "more than images and resources has changed"
	}
	if noted.Rest != "" && noted.Rest != p.Rest {
		return "volumes, init containers or pull secrets have changed"
	}
	for _, c := range p.running() {
		for _, name := range podNames(c) {
			if containerOf(pod, name) == nil {
				return fmt.Sprintf("it has no container %s", name)
			}
		}
	}
	return ""
}

// changed is true if others have changed the image of a sidecar. Of a hot upgrade, the image of the container that
// works tells.
func (p *Policy) changed(pod *corev1.Pod, noted *given) bool {
	return slices.ContainsFunc(p.running(), func(c *v1beta1.SidecarContainer) bool {
		name := c.Name
		if isHot(c) {
			name = hotNames(c.Name)[working(pod, c.Name)]
		}
		gave, is := noted.Containers[c.Name]
		has := containerOf(pod, name)
		return is && has != nil && has.Image != gave.Image
	})
}

// restarted is true if all containers run as the previous update has asked for.
func (p *Policy) restarted(pod *corev1.Pod, state *inPlaceState, now time.Time) bool {
	for _, c := range p.running() {
		for _, name := range podNames(c) {
			if !runs(pod, name, state, now) {
				return false
			}
		}
	}
	return true
}

// runs is true if a container runs as the previous update has asked for.
//
// The observed generation alone does not tell this: a kubelet reports it before it restarts the container. A restarted
// container alone does not either: it may have crashed before the kubelet saw the update.
func runs(pod *corev1.Pod, name string, state *inPlaceState, now time.Time) bool {
	before, changed := state.LastContainerStatuses[name]
	container := containerOf(pod, name)
	if !changed || container == nil {
		return true
	}
	is := statusOf(pod, name)
	if is == nil || is.ContainerID == "" {
		return false
	}
	named := budget.SameImage(is.Image, container.Image)
	if is.ContainerID == before.ContainerID { // two updates, and the kubelet has seen only the second, which undoes the first
		return named && pod.Status.ObservedGeneration >= pod.Generation
	}
	return named || is.ImageID != before.ImageID || now.Sub(state.UpdateTimestamp.Time) > doubt
}

// endedForGood is true if the kubelet does not start the container again, also with another image.
func endedForGood(pod *corev1.Pod, name string, status *corev1.ContainerStatus) bool {
	ended, c := status.State.Terminated, containerOf(pod, name)
	if ended == nil || c == nil || isNative(c) {
		return false
	}
	return pod.Spec.RestartPolicy == corev1.RestartPolicyNever || pod.Spec.RestartPolicy == corev1.RestartPolicyOnFailure && ended.ExitCode == 0
}

func statusOf(pod *corev1.Pod, name string) *corev1.ContainerStatus {
	return cmp.Or(podstate.ContainerStatus(pod.Status.ContainerStatuses, name), podstate.ContainerStatus(pod.Status.InitContainerStatuses, name))
}
