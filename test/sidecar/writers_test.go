package sidecar

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
	"github.com/berth-project/berth/test/harness"
)

// changes counts by a watch of its own how often each pod was written, and which images its containers got.
type changes struct {
	mu   sync.Mutex
	seen map[string]*corev1.Pod
	// writes are revisions with another spec or other annotations. images are how often an image came, by pod and image.
	writes map[string]int
	images map[string]map[string]int
}

// changes begins to count. react is called after each revision, and may be nil.
func (w *world) changes(react func(*corev1.Pod)) *changes {
	w.Helper()
	c := &changes{seen: map[string]*corev1.Pod{}, writes: map[string]int{}, images: map[string]map[string]int{}}
	w.follow(func(kind watch.EventType, pod *corev1.Pod) {
		if kind == watch.Deleted {
			return
		}
		c.see(pod)
		if react != nil {
			react(pod)
		}
	})
	return c
}

func (c *changes) see(pod *corev1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.seen[pod.Name]
	c.seen[pod.Name] = pod
	if was == nil {
		c.images[pod.Name] = map[string]int{}
		return
	}
	if was.Generation != pod.Generation || !maps.Equal(was.Annotations, pod.Annotations) {
		c.writes[pod.Name]++
	}
	for i := range pod.Spec.Containers {
		if image := pod.Spec.Containers[i].Image; image != was.Spec.Containers[i].Image {
			c.images[pod.Name][image]++
		}
	}
}

func (c *changes) writesOf(pod string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.writes[pod]
}

// times is how often a container of the pod got the image.
func (c *changes) times(pod, image string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.images[pod][image]
}

// webhook lets another webhook change the pods of the namespace, new ones and those that are written. It gets the pod as it was too: nil if it is new.
func (w *world) webhook(change func(pod, was *corev1.Pod)) {
	w.Helper()
	asked := make(chan struct{}, 1)
	handler, err := admission.StandaloneWebhook(&admission.Webhook{Handler: admission.HandlerFunc(func(_ context.Context, request admission.Request) admission.Response {
		select {
		case asked <- struct{}{}:
		default:
		}
		pod := &corev1.Pod{}
		if err := json.Unmarshal(request.Object.Raw, pod); err != nil {
			return admission.Errored(http.StatusBadRequest, err)
		}
		var was *corev1.Pod
		if len(request.OldObject.Raw) > 0 {
			was = &corev1.Pod{}
			if err := json.Unmarshal(request.OldObject.Raw, was); err != nil {
				return admission.Errored(http.StatusBadRequest, err)
			}
		}
		change(pod, was)
		after, err := json.Marshal(pod)
		if err != nil {
			return admission.Errored(http.StatusInternalServerError, err)
		}
		return admission.PatchResponseFromRaw(request.Object.Raw, after)
	})}, admission.StandaloneOptions{Logger: klog.Background()})
	if err != nil {
		w.Fatal(err)
	}
	server := httptest.NewTLSServer(handler)
	w.Cleanup(server.Close)
	configurations, name := the.Client.AdmissionregistrationV1().MutatingWebhookConfigurations(), "other-"+w.ns
	if _, err := configurations.Create(w.Context(), &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}, Webhooks: []admissionregistrationv1.MutatingWebhook{{
		Name: name + ".berth.dev", AdmissionReviewVersions: []string{"v1"}, SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone),
		ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &server.URL, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})},
		Rules: []admissionregistrationv1.RuleWithOperations{{Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
			Rule: admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}}}},
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: w.ns}},
	}}}, metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		if err := configurations.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			w.Error(err)
		}
	})
	w.await("the API server to ask the other webhook", func(ctx context.Context) (string, error) {
		_, err := the.Client.CoreV1().Pods(w.ns).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "try"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "i"}}}},
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil || len(asked) > 0 {
			return "", err
		}
		return "it was not asked", nil
	})
}

// TestAMirrorOfImagesIsNoFight: a webhook lets all images come from a mirror, whenever a pod is written. That holds for the empty image of a hot upgrade too.
func TestAMirrorOfImagesIsNoFight(t *testing.T) {
	harness.Long(t)
	t.Parallel()
	w := newWorld(t)
	w.webhook(func(pod, _ *corev1.Pod) {
		for i := range pod.Spec.Containers {
			pod.Spec.Containers[i].Image = "mirror/" + strings.TrimPrefix(pod.Spec.Containers[i].Image, "mirror/")
		}
	})
	spec := func(version int) string {
		return fmt.Sprintf(`containers: [{name: log, image: 'log:%[1]d'}, {name: mesh, image: 'mesh:%[1]d', upgradeStrategy: {upgradeType: HotUpgrade, hotUpgradeEmptyImage: 'mesh:empty'}}]`, version)
	}
	w.set("log", "v1beta1", spec(1))
	w.deploy(3)
	w.pods(func(pod *corev1.Pod) string {
		return runs(pod, "log", "mirror/log:1") + runs(pod, "mesh-1", "mirror/mesh:1") + runs(pod, "mesh-2", "mirror/mesh:empty")
	}, 3)
	w.expectReason("log", v1beta1.ReasonReady)
	seen := w.changes(nil)
	w.set("log", "v1beta1", spec(2))
	pods := w.pods(func(pod *corev1.Pod) string {
		return runs(pod, "log", "mirror/log:2") + runs(pod, "mesh-2", "mirror/mesh:2") + runs(pod, "mesh-1", "mirror/mesh:empty")
	}, 3)
	status := w.expectReason("log", v1beta1.ReasonReady)
	if message := status.Conditions[0].Message; status.UpdatedReadyPods != 3 || !strings.Contains(message, "others have changed the image of a sidecar in 3 pods") {
		t.Errorf("got %+v", status)
	}
	for i := range pods {
		if got := seen.writesOf(pods[i].Name); got != 2 { // the update, and the last step of the hot upgrade
			t.Errorf("pod %s was written %d times", pods[i].Name, got)
		}
	}
}

// setImage writes the image of container log, and annotations, as a user would.
func setImage(ctx context.Context, pod *corev1.Pod, image string, annotations map[string]string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}, "spec": map[string]any{"containers": []any{map[string]any{"name": "log", "image": image}}}})
	if err != nil {
		return err
	}
	_, err = the.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{FieldManager: "stranger"})
	return err
}

// TestAWriterOfTheOldImageIsNamed: somebody writes the old image whenever a pod gets the new one. Berth leaves it to him, and says so.
func TestAWriterOfTheOldImageIsNamed(t *testing.T) {
	harness.Long(t)
	t.Parallel()
	w := newWorld(t)
	spec := func(version int) string {
		return fmt.Sprintf(`updateStrategy: {maxUnavailable: 2}, containers: [{name: log, image: 'log:%d'}]`, version)
	}
	w.set("log", "v1beta1", spec(1))
	w.deploy(3)
	seen := w.changes(func(pod *corev1.Pod) {
		if container(pod, "log").Image == "log:2" {
			if err := setImage(t.Context(), pod, "log:1", map[string]string{}); err != nil {
				t.Error(err)
			}
		}
	})
	w.set("log", "v1beta1", spec(2))
	w.await("the pods to have the old image again", func(ctx context.Context) (string, error) {
		set, err := w.read(ctx, "log")
		if err != nil || strings.Contains(fmt.Sprint(set.Status.Conditions), "others have changed the image of a sidecar in 3 pods") {
			return "", err
		}
		return fmt.Sprint(set.Status), nil
	})
	status := w.expectReason("log", v1beta1.ReasonReady)
	for _, pod := range w.pods(func(pod *corev1.Pod) string { return runs(pod, "log", "log:1") }, 3) {
		if got := seen.times(pod.Name, "log:2"); got != 1 || !strings.Contains(status.Conditions[0].Message, pod.Name) {
			t.Errorf("pod %s got the new image %d times; status %+v", pod.Name, got, status)
		}
	}
	w.set("log", "v1beta1", spec(3))
	w.pods(func(pod *corev1.Pod) string { return runs(pod, "log", "log:3") }, 3)
	if status := w.expectReason("log", v1beta1.ReasonReady); strings.Contains(status.Conditions[0].Message, "others") {
		t.Errorf("got %+v", status)
	}
}

// TestOneWhoUndoesUpdatesIsLeftAlone: somebody restores a pod as it was before each update, at admission or afterwards. Berth does not write it again and again, says so,
// and goes on with other pods and other sets.
func TestOneWhoUndoesUpdatesIsLeftAlone(t *testing.T) {
	harness.Long(t)
	t.Parallel()
	for name, afterwards := range map[string]bool{"at admission": false, "afterwards": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			spec := func(name string, version int) string {
				return fmt.Sprintf(`containers: [{name: %[1]s, image: '%[1]s:%[2]d'}]`, name, version)
			}
			w.set("log", "v1beta1", spec("log", 1))
			w.setFor("other", "other", "v1beta1", spec("other", 1))
			w.deploy(4)
			w.deployAs("other", 3)
			all := w.podsOf("web", func(pod *corev1.Pod) string { return runs(pod, "log", "log:1") }, 4)
			var mu sync.Mutex
			victim, tries := all[0].DeepCopy(), 0
			is := func(pod *corev1.Pod) bool {
				mu.Lock()
				defer mu.Unlock()
				return victim != nil && pod.Name == victim.Name && container(pod, "log").Image == "log:2"
			}
			react := func(pod *corev1.Pod) {
				if is(pod) {
					if err := setImage(t.Context(), pod, "log:1", all[0].Annotations); err != nil && !apierrors.IsConflict(err) {
						t.Error(err)
					}
				}
			}
			if !afterwards {
				react = nil
				w.webhook(func(pod, was *corev1.Pod) {
					if was != nil && is(pod) {
						mu.Lock()
						tries++
						mu.Unlock()
						pod.Annotations, pod.Spec.Containers = was.Annotations, was.Spec.Containers
					}
				})
			}
			seen := w.changes(react)
			w.set("log", "v1beta1", spec("log", 2))
			w.expectReason("log", v1beta1.ReasonRefused)
			w.podsOf("web", func(pod *corev1.Pod) string {
				if pod.Name == all[0].Name {
					return runs(pod, "log", "log:1")
				}
				return runs(pod, "log", "log:2")
			}, 4)
			w.setFor("other", "other", "v1beta1", spec("other", 2))
			w.podsOf("other", func(pod *corev1.Pod) string { return runs(pod, "other", "other:2") }, 3)
			w.expectReason("other", v1beta1.ReasonReady)
			status := w.expectReason("log", v1beta1.ReasonRefused)
			if message := status.Conditions[0].Message; !strings.Contains(message, "3 of 4") || !strings.Contains(message, "somebody undoes") || !strings.Contains(message, all[0].Name) {
				t.Errorf("got %s", message)
			}
			mu.Lock()
			if !afterwards && tries != 1 || afterwards && seen.times(all[0].Name, "log:2") != 1 {
				t.Errorf("pod %s was updated %d times, and with %d writes that were undone at once", all[0].Name, seen.times(all[0].Name, "log:2"), tries)
			}
			victim = nil
			mu.Unlock()
			w.set("log", "v1beta1", spec("log", 3)) // another version is tried at once
			w.podsOf("web", func(pod *corev1.Pod) string { return runs(pod, "log", "log:3") }, 4)
			w.expectReason("log", v1beta1.ReasonReady)
		})
	}
}
