package budget

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Restarts is true if an update of a pod restarts a container, or ends the pod early. Of the mutable fields, only the images and
// activeDeadlineSeconds do that: a changed image, and a deadline that is set or reduced.
func Restarts(before, after *corev1.Pod) bool {
	return imagesDiffer(before.Spec.Containers, after.Spec.Containers) ||
		imagesDiffer(before.Spec.InitContainers, after.Spec.InitContainers) ||
		earlier(before.Spec.ActiveDeadlineSeconds, after.Spec.ActiveDeadlineSeconds)
}

func imagesDiffer(before, after []corev1.Container) bool {
	for i := range after {
		if was := containerOf(after[i].Name, before); was != nil && was.Image != after[i].Image {
			return true
		}
	}
	return false
}

func earlier(before, after *int64) bool {
	return after != nil && (before == nil || *after < *before)
}

func containerOf(name string, containers []corev1.Container) *corev1.Container {
	for i := range containers {
		if containers[i].Name == name {
			return &containers[i]
		}
	}
	return nil
}

// ResizeRestarts is true if a resize changes a resource whose resizePolicy is RestartContainer.
func ResizeRestarts(before, after *corev1.Pod) bool {
	if podResizeRestarts(before, after) {
		return true
	}
	return containersRestart(before.Spec.Containers, after.Spec.Containers) ||
		containersRestart(before.Spec.InitContainers, after.Spec.InitContainers)
}

func containersRestart(before, after []corev1.Container) bool {
	for i := range after {
		container := &after[i]
		was := containerOf(container.Name, before)
		if was == nil {
			continue
		}
		for _, policy := range container.ResizePolicy {
			if policy.RestartPolicy == corev1.RestartContainer && amountDiffers(policy.ResourceName, &was.Resources, &container.Resources) {
				return true
			}
		}
	}
	return false
}

// podResizeRestarts is true if a change of the pod-level resources restarts a container. Such a change affects every container without resources of
// its own.
func podResizeRestarts(before, after *corev1.Pod) bool {
	was, is := before.Spec.Resources, after.Spec.Resources
	if was == nil {
		was = &corev1.ResourceRequirements{}
	}
	if is == nil {
		is = &corev1.ResourceRequirements{}
	}
	for _, containers := range [][]corev1.Container{after.Spec.Containers, restartableInit(after.Spec.InitContainers)} {
		for i := range containers {
			for _, policy := range containers[i].ResizePolicy {
				if policy.RestartPolicy == corev1.RestartContainer && amountDiffers(policy.ResourceName, was, is) {
					return true
				}
			}
		}
	}
	return false
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
