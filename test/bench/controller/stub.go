package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/manifests"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
)

// serveStub serves a webhook for the namespace stub. It answers every review with the same patch, which is similar to Berth's.
func (c *creations) serveStub(ctx context.Context) (stop func(), err error) {
	answer, err := stubAnswer()
	if err != nil {
		return nil, err
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		body, err := io.ReadAll(request.Body)
		if err != nil {
			return // the API server has given up
		}
		_, rest, _ := bytes.Cut(body, []byte(`"uid":"`))
		uid, _, _ := bytes.Cut(rest, []byte(`"`))
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, answer, uid) // the API server reports an invalid answer
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	var configuration admissionregistrationv1.MutatingWebhookConfiguration
	if err := yaml.UnmarshalStrict(manifests.MutatingWebhook, &configuration); err != nil {
		return nil, err
	}
	configuration.Name, configuration.Webhooks = stub, configuration.Webhooks[:1]
	w := &configuration.Webhooks[0]
	w.Name = "stub.berth.dev"
	w.ClientConfig = admissionregistrationv1.WebhookClientConfig{
		URL:      ptr.To(server.URL),
		CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
	}
	w.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: stub}}
	if _, err := c.Client.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(ctx, &configuration, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	return server.Close, c.WaitFor(ctx, "the API server to know the stub", func(ctx context.Context) (string, error) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "probe-", OwnerReferences: c.owners[stub][:1]}, Spec: podSpec()}
		made, err := c.fast.CoreV1().Pods(stub).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil || made.Annotations[v1beta1.ConstraintsAnnotation] != "" {
			return "", err
		}
		return "it does not ask", nil
	})
}

// stubAnswer returns a review with a placeholder for the UID.
func stubAnswer() (string, error) {
	spread := &v1beta1.WorkloadSpread{}
	if err := yaml.Unmarshal([]byte(spreadOver("web-0")), spread); err != nil {
		return "", err
	}
	policy, errs := subset.Compile(spread, nil)
	if policy == nil {
		return "", errs.ToAggregate()
	}
	pod := &corev1.Pod{}
	policy.Constraints.AddTo(pod)
	patch := []map[string]any{
		{"op": "add", "path": "/spec/schedulerName", "value": v1beta1.SchedulerName},
		{"op": "add", "path": "/metadata/annotations", "value": pod.Annotations},
		{"op": "add", "path": "/spec/affinity", "value": pod.Spec.Affinity},
	}
	for i := range pod.Spec.Tolerations {
		patch = append(patch, map[string]any{"op": "add", "path": "/spec/tolerations/-", "value": pod.Spec.Tolerations[i]})
	}
	content, err := json.Marshal(patch)
	if err != nil {
		return "", err
	}
	return `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"%s","allowed":true,"patchType":"JSONPatch","patch":"` +
		base64.StdEncoding.EncodeToString(content) + `"}}`, nil
}
