package harness

import (
	"context"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/manifests"
)

// ServePodWebhook serves a webhook with the rules of Berth's pod.berth.dev, for new pods of one namespace. It gives each pod the same JSON patch; with none,
// it does nothing. It shows what any webhook costs the API server. Returns when the API server calls it.
func (c *Cluster) ServePodWebhook(ctx context.Context, namespace string, patch []byte) (stop func(), err error) {
	answer := `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"%s","allowed":true`
	if len(patch) > 0 {
		answer += `,"patchType":"JSONPatch","patch":"` + base64.StdEncoding.EncodeToString(patch) + `"`
	}
	answer += "}}"
	var called atomic.Bool
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		body, err := io.ReadAll(request.Body)
		if err != nil {
			return // the API server has given up
		}
		called.Store(true)
		_, rest, _ := strings.Cut(string(body), `"uid":"`)
		uid, _, _ := strings.Cut(rest, `"`)
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, answer, uid) // the API server reports an invalid answer
	}))
	server.StartTLS() // HTTP/1.1, as Berth's webhooks speak
	defer func() {
		if err != nil {
			server.Close()
		}
	}()
	var configuration admissionregistrationv1.MutatingWebhookConfiguration
	if err := yaml.UnmarshalStrict(manifests.MutatingWebhook, &configuration); err != nil {
		return nil, err
	}
	configuration.Name, configuration.Webhooks = namespace, configuration.Webhooks[:1]
	w := &configuration.Webhooks[0]
	w.Name = "stub.berth.dev"
	w.ClientConfig = admissionregistrationv1.WebhookClientConfig{
		URL:      ptr.To(server.URL),
		CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
	}
	w.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}}
	if _, err := c.Client.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(ctx, &configuration, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	probe := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "probe-", OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "probe", UID: "probe", Controller: ptr.To(true)}}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "registry.k8s.io/pause:3.10"}}},
	}
	return server.Close, c.WaitFor(ctx, "the API server to call the webhook", func(ctx context.Context) (string, error) {
		if _, err := c.Client.CoreV1().Pods(namespace).Create(ctx, probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
			return "", err
		}
		if called.Load() {
			return "", nil
		}
		return "it does not call", nil
	})
}
