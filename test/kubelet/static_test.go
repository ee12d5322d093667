package kubelet

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-project/berth/internal/sandbox"
)

// TestAStaticPodIsLeftToItsKubelet: it runs whatever the API says. Berth puts nothing into it, and its labels do not keep a budget from counting the pods of a workload.
func TestAStaticPodIsLeftToItsKubelet(t *testing.T) {
	w := newWorld(t, budget)
	w.inject(w.sidecarSet(fmt.Sprintf("  containers: [{name: agent, image: %q}]", sandbox.PauseImage)))
	file := filepath.Join(the.Sandbox.KubeletDir(0), "static-pods", "web.yaml")
	yaml := fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: static, namespace: %s, labels: {app: web}}\nspec: {terminationGracePeriodSeconds: 1, containers: [{name: web, image: %q}]}\n", w.namespace, sandbox.ServerImage)
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	remove := func() error { return os.Remove(file) }
	t.Cleanup(func() { _ = remove() }) // the test may have done it
	w.apply(workload{replicas: 2, pool: kept, grace: 1}.yaml())
	pods := w.ready(3)
	var static, other corev1.Pod
	for _, pod := range pods {
		if _, is := pod.Annotations[corev1.MirrorPodAnnotationKey]; is {
			static = pod
		} else {
			other = pod
		}
	}
	if len(static.Spec.Containers) != 1 {
		t.Fatalf("the static pod has %d containers, want its own", len(static.Spec.Containers))
	}
	w.counts(soon, 3, 1)
	if err := w.evict(other.Name); err != nil {
		t.Error(err)
	}
	// Nothing else may go now. The deletion of the static pod is one of its copy in the API.
	if err := the.Client.CoreV1().Pods(w.namespace).Delete(w.ctx, static.Name, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	w.waitFor(soon, "another copy", func() string {
		for _, pod := range w.pods() {
			if pod.Name == static.Name && pod.UID != static.UID {
				return ""
			}
		}
		return "there is none"
	})
	if err := w.ask(http.MethodGet, static.Status.PodIP, "/"); err != nil {
		t.Errorf("the container of the static pod: %v", err)
	}
	w.ready(3)
	w.counts(soon, 3, 1)
	if err := remove(); err != nil {
		t.Fatal(err)
	}
	w.ready(2)
	w.counts(soon, 2, 1)
}
