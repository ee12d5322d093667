package sidecar

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// A sidecar that has ended in a pod that does not restart it never gets another image. It holds up no other pod.
func TestASidecarThatHasEnded(t *testing.T) {
	p := compile(t, "s", "{"+oneContainer+"}")
	for name, tc := range map[string]struct {
		policy corev1.RestartPolicy
		exit   int32
		over   bool
	}{
		"in a pod that restarts":              {corev1.RestartPolicyAlways, 0, false},
		"in a pod that never restarts":        {corev1.RestartPolicyNever, 1, true},
		"well, in one that restarts failures": {corev1.RestartPolicyOnFailure, 0, true},
		"with a failure":                      {corev1.RestartPolicyOnFailure, 1, false},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: tc.policy, Containers: []corev1.Container{{Name: "app"}}}}
		inject(pod, p)
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "log", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: tc.exit}}}}
		is, _ := p.Observe(pod, now)
		if is.Over != tc.over || (is.Why != "") != tc.over || is.Out() == tc.over {
			t.Errorf("%s: over %v, why %q, out %v", name, is.Over, is.Why, is.Out())
		}
	}
}
