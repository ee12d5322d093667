package kubelet

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
)

// TestAHotUpgradeLosesNoConnection: the new container gets the open port from the old one, and each pod is asked without a pause from before the upgrade until after it.
func TestAHotUpgradeLosesNoConnection(t *testing.T) {
	w := newWorld(t, "")
	set := func(image string) string {
		return w.sidecarSet(fmt.Sprintf(`
  containers:
  - name: proxy
    image: %s
    args: [serve, "--address=:9090", --hand-over=/port/socket]
    volumeMounts: [{name: port, mountPath: /port}]
    upgradeStrategy: {upgradeType: HotUpgrade, hotUpgradeEmptyImage: %q}
  volumes: [{name: port, emptyDir: {}}]
`, image, sandbox.PauseImage))
	}
	w.inject(set(sandbox.ServerImage))
	w.apply(workload{replicas: 2, pool: kept, grace: 10}.yaml())
	pods := w.ready(2)
	var stops []func() (asked int, lost []error)
	for _, pod := range pods {
		if len(pod.Spec.Containers) != 3 {
			t.Fatalf("pod %s has %d containers, want its own and two of the proxy", pod.Name, len(pod.Spec.Containers))
		}
		stops = append(stops, w.askAlways("http://"+pod.Status.PodIP+":9090/", "v1\n"))
	}
	w.apply(set(sandbox.NextServerImage))
	w.updated()
	for i, stop := range stops {
		asked, lost := stop()
		t.Logf("pod %d was asked %d times", i, asked)
		if len(lost) > 0 {
			t.Errorf("pod %d: %d answers of %d were lost: %v", i, len(lost), asked, lost)
		}
		w.waitFor(soon, "the next version", func() string {
			if answer, err := w.read("http://" + pods[i].Status.PodIP + ":9090/"); err != nil || answer != "v2\n" {
				return fmt.Sprint(answer, err)
			}
			return ""
		})
		if pod := w.pod(pods[i].Name); pod.UID != pods[i].UID || pod.Status.ContainerStatuses[0].RestartCount+pod.Status.ContainerStatuses[1].RestartCount+pod.Status.ContainerStatuses[2].RestartCount != 2 {
			t.Errorf("want two restarts in pod %s, and none of its own container: %+v", pods[i].UID, pod.Status.ContainerStatuses)
		}
	}
}

// sidecarSet is a set for the pods web of the namespace, which updates one pod at a time. more is the rest of its spec.
func (w world) sidecarSet(more string) string {
	return fmt.Sprintf(`apiVersion: apps.kruise.io/v1beta1
kind: SidecarSet
metadata: {name: %[1]s}
spec:
  selector: {matchLabels: {app: web}}
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %[1]s}}
  updateStrategy: {maxUnavailable: 1}
%[2]s`, w.namespace, strings.Trim(more, "\n"))
}

// inject creates a set, and returns when new pods get its sidecars.
func (w world) inject(set string) {
	w.Helper()
	w.apply(set)
	w.Cleanup(func() {
		if err := the.Dynamic.Resource(v1beta1.Resource).Delete(context.Background(), w.namespace, metav1.DeleteOptions{}); err != nil {
			w.Error(err)
		}
	})
	// The webhook learns of the set a moment later.
	w.waitFor(soon, "the injection into pods", func() string {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "try", Labels: map[string]string{"app": "web"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: sandbox.ServerImage}}},
		}
		tried, err := the.Client.CoreV1().Pods(w.namespace).Create(w.ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			return err.Error()
		}
		if len(tried.Spec.Containers)+len(tried.Spec.InitContainers) == 1 {
			return "there is none"
		}
		return ""
	})
}

// updated returns when all pods of the set have its latest version and are ready. updatedReadyPods counts a pod that its kubelet has not changed yet.
func (w world) updated() {
	w.Helper()
	w.waitFor(2*soon, "updated pods", func() string {
		object, err := the.Dynamic.Resource(v1beta1.Resource).Get(w.ctx, w.namespace, metav1.GetOptions{})
		if err != nil {
			w.Fatal(err)
		}
		var read v1beta1.SidecarSet
		if err := k8sruntime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &read); err != nil {
			w.Fatal(err)
		}
		ready := meta.FindStatusCondition(read.Status.Conditions, v1beta1.ReadyCondition)
		if read.Status.ObservedGeneration != read.Generation || ready == nil || ready.Status != metav1.ConditionTrue {
			return fmt.Sprintf("%+v", ready)
		}
		return ""
	})
}

// TestAJobEndsBesideItsSidecar: a native sidecar serves, and is updated, while the container of the Job runs on, and does not keep the Job from ending.
func TestAJobEndsBesideItsSidecar(t *testing.T) {
	w := newWorld(t, "")
	set := func(image string) string {
		return w.sidecarSet(fmt.Sprintf(`
  initContainers:
  - name: agent
    image: %s
    args: [serve, "--address=:9090"]
    restartPolicy: Always
`, image))
	}
	w.inject(set(sandbox.ServerImage))
	w.apply(fmt.Sprintf(`apiVersion: batch/v1
kind: Job
metadata: {name: web}
spec:
  backoffLimit: 0
  template:
    metadata: {labels: {app: web}}
    spec:
      restartPolicy: Never
      nodeSelector: {pool: kept}
      terminationGracePeriodSeconds: 5
      containers: [{name: web, image: %q, readinessProbe: {httpGet: {path: /ready, port: 8080}, periodSeconds: 1}}]
`, sandbox.ServerImage))
	pod := w.ready(1)[0]
	agent := "http://" + pod.Status.PodIP + ":9090/"
	if answer, err := w.read(agent); err != nil || answer != "v1\n" {
		t.Errorf("the sidecar: %q, %v", answer, err)
	}
	w.apply(set(sandbox.NextServerImage))
	w.updated()
	w.waitFor(soon, "the next version", func() string {
		if answer, err := w.read(agent); err != nil || answer != "v2\n" {
			return fmt.Sprint(answer, err)
		}
		return ""
	})
	if now := w.pod(pod.Name).Status.ContainerStatuses[0]; now.ContainerID != pod.Status.ContainerStatuses[0].ContainerID {
		t.Errorf("the container of the Job was restarted: %+v", now)
	}
	_ = w.ask(http.MethodPost, pod.Status.PodIP, "/exit?status=0") // nobody answers
	if got := w.kubectl(w.ctx, "wait", "job/web", "--for=condition=Complete", "--timeout=90s"); !strings.Contains(got, "condition met") {
		t.Error(got)
	}
}

// TestASidecarThatCannotBePulledStopsAtOnePod: the rest of the pods go on with the version before, which a rollback gives back to all.
func TestASidecarThatCannotBePulledStopsAtOnePod(t *testing.T) {
	w := newWorld(t, budget)
	set := func(image string) string {
		return w.sidecarSet(fmt.Sprintf(`
  containers:
  - name: agent
    image: %s
    args: [serve, "--address=:9090"]
`, image))
	}
	w.inject(set(sandbox.ServerImage))
	w.apply(workload{replicas: 3, pool: kept, grace: 1}.yaml())
	pods := w.ready(3)
	w.counts(soon, 3, 1)
	w.apply(set("127.0.0.1:1/server:v2")) // nobody listens there
	var waits string
	w.waitFor(soon, "a pull that is tried again later", func() string {
		for _, pod := range w.pods() {
			for _, status := range pod.Status.ContainerStatuses {
				if status.State.Waiting != nil && status.State.Waiting.Reason == "ImagePullBackOff" {
					waits = pod.Name
					return ""
				}
			}
		}
		return "there is none"
	})
	w.counts(soon, 2, 0)
	for _, pod := range w.pods() {
		if pod.Name == waits {
			continue
		}
		w.refuses(pod.Name)
		if pod.Generation != 1 || !isReady(&pod) {
			t.Errorf("pod %s was updated too, or is not ready: %+v", pod.Name, pod.Status)
		}
	}
	w.apply(set(sandbox.ServerImage))
	w.updated()
	within := soon
	if !observes(w.pod(waits)) {
		within = 2 * soon // until the approval expires
	}
	w.counts(within, 3, 1)
	for _, pod := range pods {
		if now := w.pod(pod.Name); now.UID != pod.UID || !isReady(now) {
			t.Errorf("pod %s is another, or not ready", pod.Name)
		}
	}
}

func (w world) read(url string) (string, error) { return w.readBy(askers, url) }

func (w world) readBy(client *http.Client, url string) (string, error) {
	request, err := http.NewRequestWithContext(w.ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	answer, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return string(body), err
}

// askAlways asks again as soon as there is an answer, with a new connection each time, until the returned function is called. It begins when the first answer is the expected one.
func (w world) askAlways(url, first string) (stop func() (asked int, lost []error)) {
	w.waitFor(soon, url, func() string {
		if answer, err := w.read(url); err != nil || answer != first {
			return fmt.Sprint(answer, err)
		}
		return ""
	})
	// An answer that comes late, as on a busy machine, is not lost.
	patient := &http.Client{Timeout: 30 * time.Second, Transport: askers.Transport}
	done, ended := make(chan struct{}), make(chan struct{})
	asked, lost := 0, []error(nil)
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			case <-time.After(time.Millisecond):
			}
			asked++
			if answer, err := w.readBy(patient, url); err != nil {
				lost = append(lost, err)
			} else if !strings.HasPrefix(answer, "v") {
				lost = append(lost, fmt.Errorf("answer %q", answer))
			}
		}
	}()
	return func() (int, []error) {
		close(done)
		<-ended
		return asked, lost
	}
}
