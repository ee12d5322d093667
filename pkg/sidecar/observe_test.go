package sidecar

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
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
		if is.Over != tc.over || is.Out() == tc.over {
			t.Errorf("%s: over %v, out %v", name, is.Over, is.Out())
		}
	}
}

// What a running pod keeps is a new version, with which the pod is not updated. Annotations are written in place.
func TestWhatIsANewVersion(t *testing.T) {
	const base = "image: i, volumeMounts: [{name: v, mountPath: /v}]}], volumes: [{name: v, configMap: {name: v1}}], initContainers: [{name: init, image: 'init:1'}], imagePullSecrets: [{name: s1}], patchPodMetadata: [{annotations: {a: v1}, patchPolicy: Overwrite}]"
	policy := func(from, to string) *Policy {
		return compile(t, "s", "{selector: {matchLabels: {app: x}}, containers: [{name: log, "+strings.ReplaceAll(base, from, to)+"}")
	}
	for name, tc := range map[string]struct{ from, to, why string }{
		"nothing":           {"", "", ""},
		"a volume":          {"configMap: {name: v1}", "configMap: {name: v2}", "volumes, init containers or pull secrets have changed"},
		"an init container": {"init:1", "init:2", "volumes, init containers or pull secrets have changed"},
		"a pull secret":     {"s1", "s2", "volumes, init containers or pull secrets have changed"},
		"an annotation":     {"a: v1", "a: v2", ""},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app"}}}}
		inject(pod, policy("", ""))
		p := policy(tc.from, tc.to)
		is, _ := p.Observe(pod, now)
		if is.Updated != (tc.from == "") || is.Why != tc.why {
			t.Errorf("%s: updated %v, why %q", name, is.Updated, is.Why)
		}
		set(pod, v1beta1.GivenAnnotation, "s", given{Fixed: p.Fixed, Containers: map[string]givenContainer{"log": {Image: "i"}}}) // as an earlier version of Berth wrote it
		if is, _ := p.Observe(pod, now); is.Updated != (tc.to != "a: v2") || is.Why != "" {
			t.Errorf("%s, for a pod of an earlier version of Berth: updated %v, why %q", name, is.Updated, is.Why)
		}
		if after, restarts := p.Update(pod, "s-2", now); tc.to == "a: v2" && (restarts || after.Annotations["a"] != "v2") {
			t.Errorf("%s: restarts %v, %v", name, restarts, after.Annotations)
		}
	}
}

// The hashes are in the annotations of running pods. If this test fails after an upgrade of k8s.io/api, the encoding of
// containers has changed, and no pod could be updated.
func TestHashesStay(t *testing.T) {
	p := compile(t, "s", "{selector: {matchLabels: {app: x}}, initContainers: [{name: init, image: i}], containers: [{name: log, image: i, resources: {requests: {cpu: 1}}, env: [{name: A, value: b}]}], volumes: [{name: v, emptyDir: {}}]}")
	if got := p.Hash + " " + p.Fixed + " " + p.Rest; got != "804272a31c5697375960a0b8b1033f3f f6c013f9727d22cbd444ca131cbb1fe3 ed8394642d48e7d0a16084b30d6d12b4" {
		t.Errorf("got %s", got)
	}
}
