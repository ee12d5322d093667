package budget

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-project/berth/pkg/podstate"
)

// Restarts is true if an update of a pod restarts a container, or ends the pod early. Of the mutable fields, only the images and
// activeDeadlineSeconds do that: a changed image, and a deadline that is set or reduced.
func Restarts(before, after *corev1.Pod) bool {
	return imagesDiffer(before.Spec.Containers, after.Spec.Containers) ||
		imagesDiffer(before.Spec.InitContainers, after.Spec.InitContainers) ||
		earlier(before.Spec.ActiveDeadlineSeconds, after.Spec.ActiveDeadlineSeconds)
}

func imagesDiffer(before, after []corev1.Container) bool {
	return slices.ContainsFunc(after, func(is corev1.Container) bool {
		was := podstate.Container(before, is.Name)
		return was != nil && was.Image != is.Image
	})
}

func earlier(before, after *int64) bool {
	return after != nil && (before == nil || *after < *before)
}

// ResizeRestarts is true if a resize changes a resource whose resizePolicy is RestartContainer.
func ResizeRestarts(before, after *corev1.Pod) bool {
	return podResizeRestarts(before, after) || containersRestart(before.Spec.Containers, after.Spec.Containers) ||
		containersRestart(before.Spec.InitContainers, after.Spec.InitContainers)
}

func containersRestart(before, after []corev1.Container) bool {
	return slices.ContainsFunc(after, func(is corev1.Container) bool {
		was := podstate.Container(before, is.Name)
		return was != nil && restartsFor(&is, &was.Resources, &is.Resources)
	})
}

// restartsFor is true if a container restarts for this change of its resources, or of those of its pod.
func restartsFor(container *corev1.Container, was, is *corev1.ResourceRequirements) bool {
	return slices.ContainsFunc(container.ResizePolicy, func(p corev1.ContainerResizePolicy) bool {
		return p.RestartPolicy == corev1.RestartContainer && amountDiffers(p.ResourceName, was, is)
	})
}

// podResizeRestarts is true if a change of the pod-level resources restarts a container. Such a change affects every container without resources of
// its own.
func podResizeRestarts(before, after *corev1.Pod) bool {
	none := &corev1.ResourceRequirements{}
	was, is := cmp.Or(before.Spec.Resources, none), cmp.Or(after.Spec.Resources, none)
	return slices.ContainsFunc(slices.Concat(after.Spec.Containers, restartableInit(after.Spec.InitContainers)), func(c corev1.Container) bool {
		return restartsFor(&c, was, is)
	})
}

func amountDiffers(name corev1.ResourceName, before, after *corev1.ResourceRequirements) bool {
	return !sameAmount(name, before.Requests, after.Requests) || !sameAmount(name, before.Limits, after.Limits)
}

func sameAmount(name corev1.ResourceName, a, b corev1.ResourceList) bool {
	before, had := a[name]
	after, has := b[name]
	return had == has && before.Cmp(after) == 0
}

// Leaves is true if an update of a pod takes it out of a budget with this selector. ignored selects the pods that the budget ignores; nil ignores none.
func Leaves(before, after *corev1.Pod, selector, ignored labels.Selector) bool {
	if IsExempt(before, ignored) {
		return false // the budget does not cover it
	}
	return IsExempt(after, ignored) ||
		IsProtected(before) && !IsProtected(after) ||
		selector.Matches(labels.Set(before.Labels)) && !selector.Matches(labels.Set(after.Labels))
}
