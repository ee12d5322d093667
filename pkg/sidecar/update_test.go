package sidecar

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// TestAnUpdateLeavesAmountsOfOthers: somebody has raised the memory. The set changes the CPU, and then the memory too.
func TestAnUpdateLeavesAmountsOfOthers(t *testing.T) {
	set := func(requests string) *Policy {
		return compile(t, "s", "{selector: {matchLabels: {app: x}}, containers: [{name: log, image: i, resources: {requests: {"+requests+"}}}]}")
	}
	pod := podOf(t, "{spec: {containers: [{name: app, image: i}]}}")
	inject(pod, set("cpu: 100m, memory: 10Mi, ephemeral-storage: 1Gi"))
	container := containerOf(pod, "log")
	container.Resources.Requests[corev1.ResourceMemory] = resource.MustParse("20Mi")
	for requests, want := range map[string]string{
		"cpu: 200m, memory: 10Mi, ephemeral-storage: 1Gi": "200m 20Mi 1Gi",
		"cpu: 200m, memory: 30Mi, ephemeral-storage: 1Gi": "200m 30Mi 1Gi",
		"cpu: 200m, memory: 10Mi":                         "200m 20Mi 0",
	} {
		has := containerOf(set(requests).Resized(pod), "log").Resources.Requests
		if got := fmt.Sprint(has.Cpu(), " ", has.Memory(), " ", has.StorageEphemeral()); got != want {
			t.Errorf("%s: got %s, want %s", requests, got, want)
		}
	}
	if set("cpu: 100m, memory: 10Mi, ephemeral-storage: 1Gi").Resized(pod) != nil {
		t.Error("resized for nothing")
	}
}
