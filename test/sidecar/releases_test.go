package sidecar

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
	"github.com/berth-project/berth/test/harness"
)

// release is a set with a version and an update strategy, as the articles write it.
func release(version int, strategy string) string {
	return fmt.Sprintf("containers: [{name: log, image: 'log:%d'}], updateStrategy: {type: RollingUpdate, %s}", version, strategy)
}

// label labels some of the pods, and returns their names.
func (w *world) label(pods []corev1.Pod, key, value string) (names []string) {
	w.Helper()
	for _, pod := range pods {
		patch := fmt.Sprintf(`{"metadata": {"labels": {%q: %q}}}`, key, value)
		if _, err := the.Client.CoreV1().Pods(w.ns).Patch(w.Context(), pod.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			w.Fatal(err)
		}
		names = append(names, pod.Name)
	}
	return names
}

// latest are the names of the pods with an image.
func latest(pods []corev1.Pod, image string) (names []string) {
	for i := range pods {
		if container(&pods[i], "log").Image == image {
			names = append(names, pods[i].Name)
		}
	}
	return names
}

// stands waits until the set has nothing to do, and returns its pods.
func (w *world) stands(pods int) []corev1.Pod {
	w.Helper()
	w.expectReason("log", v1beta1.ReasonReady)
	return w.pods(notReady, pods)
}

// TestTheArticlesReleases: a first batch and the rest, a canary by a label, and pods of one application at even distances.
func TestTheArticlesReleases(t *testing.T) {
	harness.Long(t)
	t.Parallel()
	w := newWorld(t)
	const replicas = 6
	w.set("log", "v1alpha1", release(1, "maxUnavailable: 50%"))
	w.deploy(replicas)

	w.set("log", "v1alpha1", release(2, "partition: 4, maxUnavailable: 50%"))
	if got := latest(w.stands(replicas), "log:2"); len(got) != 2 {
		t.Errorf("with partition 4, %v have the latest version", got)
	}
	w.set("log", "v1alpha1", release(2, "maxUnavailable: 50%"))
	if got := latest(w.stands(replicas), "log:2"); len(got) != replicas {
		t.Errorf("without a partition, %v have the latest version", got)
	}

	canary := w.label(w.pods(notReady, replicas)[:1], "canary.release", "true")
	w.set("log", "v1alpha1", release(3, "selector: {matchLabels: {canary.release: 'true'}}, maxUnavailable: 50%"))
	if got := latest(w.stands(replicas), "log:3"); !slices.Equal(got, canary) {
		t.Errorf("%v have the latest version, want %v", got, canary)
	}
	if status := w.expectReason("log", v1beta1.ReasonReady); !strings.Contains(status.Conditions[0].Message, "updateStrategy.selector does not pick 5 older ones") {
		t.Errorf("got %s", status.Conditions[0].Message)
	}
	w.set("log", "v1alpha1", release(3, "maxUnavailable: 50%"))
	scattered := w.label(w.stands(replicas)[:3], "app_name", "nginx")

	var mu sync.Mutex
	var order []string
	w.follow(func(event watch.EventType, pod *corev1.Pod) {
		mu.Lock()
		defer mu.Unlock()
		if container(pod, "log").Image == "log:4" && !slices.Contains(order, pod.Name) {
			order = append(order, pod.Name)
		}
	})
	w.set("log", "v1alpha1", release(4, "maxUnavailable: 1, scatterStrategy: [{key: app_name, value: nginx}]"))
	if got := latest(w.stands(replicas), "log:4"); len(got) != replicas {
		t.Fatalf("%v have the latest version", got)
	}
	mu.Lock()
	defer mu.Unlock()
	for i := 0; i < len(order); i += 2 { // in each two there is one of both
		if len(order) != replicas || slices.Contains(scattered, order[i]) == slices.Contains(scattered, order[i+1]) {
			t.Fatalf("%v were updated in this order; %v are scattered", order, scattered)
		}
	}
}
