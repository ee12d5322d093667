// Package podstate says what state a pod is in, and whether a node announces its end, for everybody who reads them:
// models, controllers, plugins and commands. It reads the object alone.
package podstate

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// HasEnded is true for a pod that has succeeded or failed: nothing runs in it any more.
func HasEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// IsActive is true for a pod that has not ended and is not being deleted.
func IsActive(pod *corev1.Pod) bool { return pod.DeletionTimestamp == nil && !HasEnded(pod) }

// IsReady is true for a pod that is ready. since is when it became so, or stopped to be so. It is the pod's creation
// for one that was never ready.
func IsReady(pod *corev1.Pod) (ready bool, since time.Time) {
	c := Condition(pod, corev1.PodReady)
	if c != nil && !c.LastTransitionTime.IsZero() {
		return c.Status == corev1.ConditionTrue, c.LastTransitionTime.Time
	}
	since = pod.CreationTimestamp.Time
	for i := range pod.Status.Conditions { // OpenKruise gives the condition no time when it takes a pod out of service; that of its gate has one
		if at := pod.Status.Conditions[i].LastTransitionTime.Time; c != nil && at.After(since) {
			since = at
		}
	}
	return c != nil && c.Status == corev1.ConditionTrue, since
}

// IsUnschedulable is true for a pod without a node of which the scheduler has said that no node fits. since is when it
// first said so; zero for other pods.
func IsUnschedulable(pod *corev1.Pod) (unschedulable bool, since time.Time) {
	c := Condition(pod, corev1.PodScheduled)
	if pod.Spec.NodeName != "" || c == nil || c.Status != corev1.ConditionFalse || c.Reason != corev1.PodReasonUnschedulable {
		return false, time.Time{}
	}
	return true, c.LastTransitionTime.Time
}

// BoundSince is since when a pod has its node. Zero if its conditions do not say it.
func BoundSince(pod *corev1.Pod) time.Time {
	if c := Condition(pod, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionTrue {
		return c.LastTransitionTime.Time
	}
	return time.Time{}
}

// Condition is the first condition of a type, which is the one that Kubernetes uses if there are several. It is nil if
// there is none.
func Condition(pod *corev1.Pod, of corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == of {
			return c
		}
	}
	return nil
}

// Container is the one with a name, or nil.
func Container(containers []corev1.Container, name string) *corev1.Container {
	for i := range containers {
		if containers[i].Name == name {
			return &containers[i]
		}
	}
	return nil
}

// ContainerStatus is that of the container with a name, or nil.
func ContainerStatus(statuses []corev1.ContainerStatus, name string) *corev1.ContainerStatus {
	for i := range statuses {
		if statuses[i].Name == name {
			return &statuses[i]
		}
	}
	return nil
}
