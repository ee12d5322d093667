package sidecar

import (
	"bufio"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-project/berth/test/harness"
)

// TestAResizeIsFollowedByOneWrite although the kubelet reports the resize in between.
func TestAResizeIsFollowedByOneWrite(t *testing.T) {
	w := newWorld(t)
	spec := func(version, cpu string) string {
		return "updateStrategy: {maxUnavailable: 100%}, containers: [{name: log, image: 'log:" + version + "', resources: {requests: {cpu: " + cpu + "}}}]"
	}
	w.set("log", "v1beta1", spec("1", "10m"))
	const replicas = 40
	w.deploy(replicas)
	w.pods(func(pod *corev1.Pod) string { return runs(pod, "log", "log:1") }, replicas)
	before := staleWrites(t)
	w.set("log", "v1beta1", spec("2", "20m"))
	w.pods(func(pod *corev1.Pod) string {
		if got := container(pod, "log").Resources.Requests.Cpu().String(); got != "20m" {
			return got
		}
		return runs(pod, "log", "log:2")
	}, replicas)
	// A pod may change for another reason just then. With the resourceVersion of the resize, a third of them is stale.
	if stale := staleWrites(t) - before; stale > replicas/10 {
		t.Errorf("%d of %d pods needed another write", stale, replicas)
	}
}

// staleWrites is how many writes of all controllers came too late.
func staleWrites(t *testing.T) (sum int) {
	t.Helper()
	all, err := harness.ControllersMetrics(t.Context(), the.Sandbox)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range all {
		for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
			if value, found := strings.CutPrefix(lines.Text(), `berth_sidecarset_writes_total{outcome="stale"} `); found {
				n, err := strconv.Atoi(value)
				if err != nil {
					t.Fatal(err)
				}
				sum += n
			}
		}
	}
	return sum
}
