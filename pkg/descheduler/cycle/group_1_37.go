//go:build kubernetes_1_37

package cycle

import corev1 "k8s.io/api/core/v1"

// isOfGroup is true for a pod of a pod group of Kubernetes. It would come back to the subset of its group.
func isOfGroup(pod *corev1.Pod) bool { return pod.Spec.SchedulingGroup != nil }
