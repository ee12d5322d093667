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
		return fmt.Sprintf(`apiVersion: apps.kruise.io/v1beta1
kind: SidecarSet
metadata: {name: %[1]s}
spec:
  selector: {matchLabels: {app: web}}
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %[1]s}}
  containers:
  - name: proxy
    image: %[2]s
    args: [serve, "--address=:9090", --hand-over=/port/socket]
    volumeMounts: [{name: port, mountPath: /port}]
    upgradeStrategy: {upgradeType: HotUpgrade, hotUpgradeEmptyImage: %[3]q}
  volumes: [{name: port, emptyDir: {}}]
  updateStrategy: {maxUnavailable: 1}
`, w.namespace, image, sandbox.PauseImage)
	}
	w.apply(set(sandbox.ServerImage))
	t.Cleanup(func() {
		if err := the.Dynamic.Resource(v1beta1.Resource).Delete(context.Background(), w.namespace, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
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
		if len(tried.Spec.Containers) == 1 {
			return "there is none"
		}
		return ""
	})
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
	w.waitFor(2*soon, "two updated pods", func() string {
		object, err := the.Dynamic.Resource(v1beta1.Resource).Get(w.ctx, w.namespace, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var read v1beta1.SidecarSet
		if err := k8sruntime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &read); err != nil {
			t.Fatal(err)
		}
		// updatedReadyPods counts a pod that its kubelet has not changed yet.
		ready := meta.FindStatusCondition(read.Status.Conditions, v1beta1.ReadyCondition)
		if read.Status.ObservedGeneration != read.Generation || ready == nil || ready.Status != metav1.ConditionTrue {
			return fmt.Sprintf("%+v", ready)
		}
		return ""
	})
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

func (w world) read(url string) (string, error) {
	request, err := http.NewRequestWithContext(w.ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	answer, err := askers.Do(request)
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
			if answer, err := w.read(url); err != nil {
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
