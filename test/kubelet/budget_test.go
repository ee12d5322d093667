package kubelet

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/internal/sandbox"
)

// TestLogsAndExecReachContainers is for users of the sandbox.
func TestLogsAndExecReachContainers(t *testing.T) {
	w := newWorld(t, workload{replicas: 1, pool: kept}.yaml())
	pod := w.ready(1)[0].Name
	if got := w.kubectl(w.ctx, "logs", pod); !strings.Contains(got, "version v1 serves") {
		t.Errorf("logs: %s", got)
	}
	if got := w.kubectl(w.ctx, "exec", pod, "--", "/container", "say", "hello"); got != "hello\n" {
		t.Errorf("exec: %s", got)
	}
}

// TestAPodUpdatedToAnotherTagOfItsImageCountsAgain: containerd reports the same name of an image whatever name a pod has, so the status of such a pod never names the image of its
// spec.
func TestAPodUpdatedToAnotherTagOfItsImageCountsAgain(t *testing.T) {
	tags := sandbox.TaggedImages()
	w := newWorld(t, budget+workload{replicas: 2, pool: kept, grace: 1, image: tags[0]}.yaml())
	pods := w.ready(2)
	w.counts(soon, 2, 1)
	next := tags[1]
	if pods[0].Status.ContainerStatuses[0].Image == next {
		next = tags[2]
	}
	patch := fmt.Appendf(nil, `{"spec": {"containers": [{"name": "web", "image": %q}]}}`, next)
	if _, err := the.Client.CoreV1().Pods(w.namespace).Patch(w.ctx, pods[0].Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	w.refuses(pods[1].Name)
	w.waitFor(soon, "a new container", func() string {
		if statuses := w.pod(pods[0].Name).Status.ContainerStatuses; statuses[0].RestartCount == 0 || !statuses[0].Ready {
			return "no restart yet"
		}
		return ""
	})
	if reported := w.pod(pods[0].Name).Status.ContainerStatuses[0].Image; reported == next {
		t.Errorf("the node reports %s, so this test proves nothing", reported)
	}
	w.refuses(pods[1].Name)
	// Two minutes and the grace period after the restart the doubt about such a pod ends.
	w.counts(4*time.Minute, 2, 1)
	for _, pod := range pods {
		w.waitFor(soon, "an eviction", func() string {
			if err := w.evict(pod.Name); err != nil {
				return err.Error()
			}
			return ""
		})
	}
}

// TestADrainKeepsTheBudgetWhilePodsEndSlowly: pods take seconds to be ready, and seconds to end.
func TestADrainKeepsTheBudgetWhilePodsEndSlowly(t *testing.T) {
	load := workload{replicas: 4, pool: drained, grace: 10, args: []string{"--ready-after=2s", "--end-after=3s"}}
	w := newWorld(t, budget+load.yaml())
	w.ready(4)
	w.counts(soon, 4, 1)
	load.pool = kept // for new pods
	w.apply(load.yaml())
	stop := w.readyPods()
	began := time.Now()
	node := w.pods()[0].Spec.NodeName
	if got := w.kubectl(w.ctx, "drain", node, "--timeout=150s"); !strings.Contains(got, "node/"+node+" drained") {
		t.Errorf("drain: %s", got)
	}
	t.Logf("the drain of 4 pods took %s", time.Since(began).Round(time.Second))
	w.ready(4)
	if least := stop(); least < 3 {
		t.Errorf("%d pods were ready, want 3", least)
	}
	if got := w.kubectl(w.ctx, "uncordon", node); !strings.Contains(got, "uncordoned") {
		t.Error(got)
	}
}

// readyPods counts the pods that are ready and do not terminate, at each change, until the returned function is called. It returns the least.
func (w world) readyPods() (stop func() (least int)) {
	watch, err := the.Client.CoreV1().Pods(w.namespace).Watch(w.ctx, metav1.ListOptions{})
	if err != nil {
		w.Fatal(err)
	}
	least, done := 1<<30, make(chan struct{})
	go func() {
		defer close(done)
		ready, began := map[types.UID]bool{}, 0
		for event := range watch.ResultChan() {
			pod, ok := event.Object.(*corev1.Pod)
			if !ok {
				continue
			}
			delete(ready, pod.UID)
			if event.Type != "DELETED" && pod.DeletionTimestamp == nil && isReady(pod) {
				ready[pod.UID] = true
			}
			if began = max(began, len(ready)); began >= 4 { // the first events tell of the pods that exist
				least = min(least, len(ready))
			}
		}
	}()
	return func() int {
		watch.Stop()
		<-done
		return least
	}
}

// TestAContainerThatEndsCountsAgainstTheBudget: the kubelet restarts it in place, and other pods must wait for it.
func TestAContainerThatEndsCountsAgainstTheBudget(t *testing.T) {
	w := newWorld(t, budget+workload{replicas: 3, pool: kept, grace: 1, args: []string{"--ready-after=4s"}}.yaml())
	pods := w.ready(3)
	w.counts(soon, 3, 1)
	_ = w.ask(http.MethodPost, pods[0].Status.PodIP, "/exit") // nobody answers
	w.counts(soon, 2, 0)
	w.refuses(pods[1].Name)
	w.counts(soon, 3, 1)
	pod := w.pod(pods[0].Name)
	if restarts := pod.Status.ContainerStatuses[0].RestartCount; pod.UID != pods[0].UID || restarts != 1 {
		t.Errorf("the container was restarted %d times in pod %s, want once in %s", restarts, pod.UID, pods[0].UID)
	}
	if err := w.evict(pods[1].Name); err != nil {
		t.Error(err)
	}
}

// TestAPodInACrashLoopIsMissingUntilItIsReplaced: also while its kubelet waits before the next start.
func TestAPodInACrashLoopIsMissingUntilItIsReplaced(t *testing.T) {
	w := newWorld(t, budget+workload{replicas: 3, pool: kept, grace: 1, args: []string{"--ready-after=1s"}}.yaml())
	pods := w.ready(3)
	w.counts(soon, 3, 1)
	w.waitFor(soon, "a crash loop", func() string {
		_ = w.ask(http.MethodPost, pods[0].Status.PodIP, "/exit") // nobody answers
		if state := w.pod(pods[0].Name).Status.ContainerStatuses[0].State; state.Waiting == nil || state.Waiting.Reason != "CrashLoopBackOff" {
			return fmt.Sprintf("%+v", state)
		}
		return ""
	})
	w.counts(soon, 2, 0)
	w.refuses(pods[1].Name)
	if err := w.evict(pods[0].Name); err != nil {
		t.Errorf("the pod that does not serve: %v", err)
	}
	w.ready(3)
	w.counts(soon, 3, 1)
}

// observes is true if the pod's kubelet says which spec it has seen, as those from 1.34 on do.
func observes(pod *corev1.Pod) bool { return pod.Status.ObservedGeneration > 0 }

// TestAChangeThatRestartsNothingCostsTheBudgetNothing, also if the image has several names on the node, so that the status of one of the pods never names the image of its spec.
func TestAChangeThatRestartsNothingCostsTheBudgetNothing(t *testing.T) {
	tags := sandbox.TaggedImages()
	other := workload{replicas: 1, pool: kept, grace: 1, image: tags[1]}.yaml()
	w := newWorld(t, budget+workload{replicas: 1, pool: kept, grace: 1, image: tags[0]}.yaml()+strings.NewReplacer("metadata: {name: web}", "metadata: {name: other}", "app: web}", "app: web, of: other}").Replace(other))
	pods := w.ready(2)
	w.counts(soon, 2, 1)
	for _, pod := range pods {
		patch := `{"spec": {"containers": [{"name": "web", "resources": {"requests": {"cpu": "2m"}}}]}}`
		if _, err := the.Client.CoreV1().Pods(w.namespace).Patch(w.ctx, pod.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "resize"); err != nil {
			t.Fatal(err)
		}
		patch = fmt.Sprintf(`{"spec": {"ephemeralContainers": [{"name": "debug", "image": %q}]}}`, sandbox.PauseImage)
		if _, err := the.Client.CoreV1().Pods(w.namespace).Patch(w.ctx, pod.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "ephemeralcontainers"); err != nil {
			t.Fatal(err)
		}
	}
	differs := false
	for _, pod := range pods {
		w.waitFor(soon, "a container to debug", func() string {
			now := w.pod(pod.Name)
			if statuses := now.Status.EphemeralContainerStatuses; len(statuses) == 0 || statuses[0].State.Running == nil || observes(now) && now.Status.ObservedGeneration < now.Generation {
				return fmt.Sprintf("%+v", now.Status)
			}
			differs = differs || now.Status.ContainerStatuses[0].Image != now.Spec.Containers[0].Image
			return ""
		})
	}
	if !differs {
		t.Error("no node reports another image, so this test proves nothing")
	}
	w.counts(soon, 2, 1) // a doubt would last for two minutes
	for _, pod := range pods {
		if restarts := w.pod(pod.Name).Status.ContainerStatuses[0].RestartCount; restarts != 0 {
			t.Errorf("the container of %s was restarted", pod.Name)
		}
	}
}

// TestAResizeThatANodeHasNoRoomForCostsTheBudgetNothing: neither one that it can never carry out, nor one that waits.
func TestAResizeThatANodeHasNoRoomForCostsTheBudgetNothing(t *testing.T) {
	w := newWorld(t, budget+workload{replicas: 2, pool: kept, grace: 1, cpu: "50m"}.yaml())
	pods := w.ready(2)
	w.counts(soon, 2, 1)
	node, err := the.Client.CoreV1().Nodes().Get(w.ctx, pods[1].Spec.NodeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i, tc := range []struct{ reason, cpu string }{{corev1.PodReasonInfeasible, "4000"}, {corev1.PodReasonDeferred, node.Status.Allocatable.Cpu().String()}} {
		patch := fmt.Appendf(nil, `{"spec": {"containers": [{"name": "web", "resources": {"requests": {"cpu": %q}}}]}}`, tc.cpu)
		if tc.reason == corev1.PodReasonDeferred {
			// Another pod has a little of the node, so that it would have room for the resize if it were alone.
			w.apply(fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: other}\nspec:\n  nodeName: %s\n  containers: [{name: other, image: %q, resources: {requests: {cpu: 100m}}}]\n",
				pods[i].Spec.NodeName, sandbox.PauseImage))
			w.waitFor(soon, "the other pod", func() string {
				if !isReady(w.pod("other")) {
					return "not ready"
				}
				return ""
			})
		}
		if _, err := the.Client.CoreV1().Pods(w.namespace).Patch(w.ctx, pods[i].Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "resize"); err != nil {
			t.Fatal(err)
		}
		w.waitFor(soon, "resize "+tc.reason, func() string {
			for _, condition := range w.pod(pods[i].Name).Status.Conditions {
				if condition.Type == corev1.PodResizePending && condition.Reason == tc.reason {
					return ""
				}
			}
			return "no such condition"
		})
		w.counts(soon, 2, 1)
	}
	if restarts := w.pod(pods[0].Name).Status.ContainerStatuses[0].RestartCount + w.pod(pods[1].Name).Status.ContainerStatuses[0].RestartCount; restarts != 0 {
		t.Errorf("%d containers were restarted", restarts)
	}
}

// TestAPodOfALostKubeletHoldsItsSlot: its container answers all the time, so nobody may take its place under a quota of running pods. For the budget it is missing.
func TestAPodOfALostKubeletHoldsItsSlot(t *testing.T) {
	load := workload{replicas: 1, pool: lost, grace: 1}
	w := newWorld(t, quota("TerminationComplete")+budget+load.yaml())
	orphan := w.ready(1)[0]
	load.pool, load.replicas = kept, 3
	w.apply(load.yaml())
	w.waitFor(soon, "two pods, and one that waits", func() string { return w.bound(2, 1) })
	stop := w.answers()

	resume, err := the.Sandbox.Halt(sandbox.Kubelet, slices.Index(pools, lost))
	if err != nil {
		t.Fatal(err)
	}
	defer resume()
	w.waitFor(2*soon, "the pod to be not ready", func() string {
		if isReady(w.pod(orphan.Name)) {
			return "it is ready"
		}
		return ""
	})
	w.counts(soon, 1, 0)
	for _, pod := range w.pods() {
		if isReady(&pod) {
			w.refuses(pod.Name)
		}
	}
	// It is missing already, so it may go.
	if err := the.Client.CoreV1().Pods(w.namespace).Delete(w.ctx, orphan.Name, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	w.waitFor(soon, "another pod that waits in its place", func() string { return w.bound(2, 2) })
	if err := w.ask(http.MethodGet, orphan.Status.PodIP, "/"); err != nil {
		t.Errorf("the container without a kubelet does not answer: %v", err)
	}
	resume()
	w.waitFor(soon, "the pod to be gone and another to have its slot", func() string { return w.bound(2, 1) })
	w.counts(soon, 2, 0)
	if _, most := stop(); most != 2 {
		t.Errorf("%d containers answered at a time under a quota of 2", most)
	}
}

// TestAKilledContainerdChangesNothing: containers run on, and the kubelet finds them again. The budget counts them.
func TestAKilledContainerdChangesNothing(t *testing.T) {
	w := newWorld(t, budget+workload{replicas: 2, pool: restarted, grace: 1}.yaml())
	pods := w.ready(2)
	w.counts(soon, 2, 1)
	stop := w.answers()
	if err := the.Sandbox.Signal(sandbox.Containerd, slices.Index(pools, restarted), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	w.known(pods)
	w.counts(soon, 2, 1)
	least, _ := stop()
	restarts := 0
	for _, pod := range pods { // a kubelet that looks while containerd starts may take the sandbox of a pod for changed
		restarts += int(w.pod(pod.Name).Status.ContainerStatuses[0].RestartCount)
	}
	if least < 2-restarts {
		t.Errorf("%d containers answered, and %d were restarted; want 2 together", least, restarts)
	}
}

// known returns when the kubelet of the pods, which has started again or whose containerd has, knows them.
func (w world) known(pods []corev1.Pod) {
	w.Helper()
	for _, pod := range pods {
		w.waitFor(soon, "exec", func() string {
			if got := w.kubectl(w.ctx, "exec", pod.Name, "--", "/container", "say", "hello"); got != "hello\n" {
				return got
			}
			return ""
		})
	}
}
