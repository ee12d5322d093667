package kubelet

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestAKubeletThatEvictsPodsTakesRoomOfTheBudget: a node with too little memory asks nobody. Pods on other nodes must wait for the pods in their place.
func TestAKubeletThatEvictsPodsTakesRoomOfTheBudget(t *testing.T) {
	endedByTheirNode(newWorld(t, budget), func(w world, _ []corev1.Pod) {
		// By that threshold the node has too little memory, however much it has. The kubelet evicts only if it measures disks too.
		w.reconfigure("memory.available: 0%", "memory.available: 99%", "localStorageCapacityIsolation: false", "localStorageCapacityIsolation: true")
	})
}

// TestANodeThatShutsDownTakesRoomOfTheBudget: its kubelet asks nobody before it ends all pods. Each gets its grace period, and the machine goes down when they have ended.
func TestANodeThatShutsDownTakesRoomOfTheBudget(t *testing.T) {
	endedByTheirNode(newWorld(t, budget), func(w world, pods []corev1.Pod) {
		w.reconfigure("imageGCHighThresholdPercent: 100", "imageGCHighThresholdPercent: 100\nshutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 1s")
		w.waitFor(soon, "the kubelet to hold back a shutdown", login.missing)
		w.known(pods) // by the kubelet that has started again
		w.counts(soon, 3, 1)
		began := time.Now()
		released, err := login.shutDown()
		if err != nil {
			w.Fatal(err)
		}
		select {
		case <-released:
		case <-time.After(soon):
			w.Fatal("the kubelet does not let the machine go down")
		}
		if took := time.Since(began); took < 2*time.Second {
			w.Errorf("the machine may go down after %s, before the containers have ended", took)
		}
	})
}

// endedByTheirNode runs two pods on a node that ends them, and a third one elsewhere.
func endedByTheirNode(w world, end func(w world, pods []corev1.Pod)) {
	w.Helper()
	w.takeNode()
	load := workload{replicas: 2, pool: changed, grace: 10, args: []string{"--end-after=2s"}}
	w.apply(load.yaml())
	pods := w.ready(2)
	load.replicas, load.pool = 3, kept
	w.apply(load.yaml())
	all := w.ready(3)
	stays := slices.IndexFunc(all, func(pod corev1.Pod) bool { return pod.Spec.NodeName != pods[0].Spec.NodeName })
	w.counts(soon, 3, 1)
	load.args = []string{"--ready-after=1h"} // new pods serve when this test says so
	w.apply(load.yaml())

	end(w, pods)
	for _, pod := range pods {
		w.waitFor(2*soon, "the end of "+pod.Name, func() string {
			now := w.pod(pod.Name).Status
			for _, condition := range now.Conditions { // the phase depends on the exit status of the container
				if condition.Type == corev1.DisruptionTarget && condition.Reason == corev1.PodReasonTerminationByKubelet && now.Phase != corev1.PodRunning {
					return ""
				}
			}
			return fmt.Sprintf("%+v", now)
		})
	}
	w.counts(soon, 1, 0)
	w.refuses(all[stays].Name)
	w.waitFor(soon, "two pods in their place", func() string {
		told := 0
		for _, pod := range w.pods() {
			if slices.Contains(pod.Spec.Containers[0].Args, load.args[0]) && pod.Status.PodIP != "" && w.ask(http.MethodPut, pod.Status.PodIP, "/ready") == nil {
				told++
			}
		}
		if told != 2 {
			return fmt.Sprintf("%d answer", told)
		}
		return ""
	})
	w.counts(soon, 3, 1)
}
