package neighbours

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	certutil "k8s.io/client-go/util/cert"

	"github.com/berth-project/berth/test/harness"
)

var verticalAutoscalers = schema.GroupVersionResource{Group: "autoscaling.k8s.io", Version: "v1", Resource: "verticalpodautoscalers"}

// installVPA installs the VerticalPodAutoscaler, and starts its updater and its webhook. Tests recommend. It returns what it has started, also with an error.
func installVPA(ctx context.Context, cluster *harness.Cluster, dir string) (started []*process, _ error) {
	const namespace = "vpa-system"
	module, err := harness.ModuleDir(ctx, "vpa", "k8s.io/autoscaler/vertical-pod-autoscaler")
	if err != nil {
		return nil, err
	}
	objects, err := objectsIn(filepath.Join(module, "deploy"), strings.NewReplacer("namespace: kube-system", "namespace: "+namespace), "vpa-v1-crd-gen.yaml", "vpa-rbac.yaml")
	if err != nil {
		return nil, err
	}
	for _, object := range objects {
		delete(object.Object, "status")
	}
	ports, err := freePorts(3)
	if err != nil {
		return nil, err
	}
	ofUpdater, err := installed(ctx, cluster, dir, namespace, "vpa-updater", objects)
	if err != nil {
		return nil, err
	}
	ofWebhook := filepath.Join(dir, "vpa-admission-controller.kubeconfig")
	if err := cluster.WriteKubeconfigAs("system:serviceaccount:"+namespace+":vpa-admission-controller", ofWebhook); err != nil {
		return nil, err
	}
	if err := served(ctx, cluster, verticalAutoscalers.GroupVersion().WithKind("VerticalPodAutoscaler")); err != nil {
		return nil, err
	}
	cert, key, err := certutil.GenerateSelfSignedCertKey("localhost", nil, nil)
	if err != nil {
		return nil, err
	}
	certFile, keyFile := filepath.Join(dir, "vpa.crt"), filepath.Join(dir, "vpa.key")
	if err := os.WriteFile(certFile, cert, 0o600); err != nil {
		return nil, err
	}
	if err := os.WriteFile(keyFile, key, 0o600); err != nil {
		return nil, err
	}
	for i, program := range []struct {
		name string
		args []string
	}{
		{"vpa-admission-controller", []string{"--kubeconfig=" + ofWebhook, "--client-ca-file=" + certFile, "--tls-cert-file=" + certFile, "--tls-private-key=" + keyFile,
			fmt.Sprintf("--port=%d", ports[2]), "--register-by-url", "--webhook-address=https://localhost", fmt.Sprintf("--webhook-port=%d", ports[2])}},
		{"vpa-updater", []string{"--kubeconfig=" + ofUpdater, "--updater-interval=3s"}},
	} {
		p := &process{name: program.name, dir: dir}
		started = append(started, p)
		address := fmt.Sprintf("127.0.0.1:%d", ports[i])
		if err := p.start(ctx, cluster, "http://"+address+"/health-check", []string{"NAMESPACE=" + namespace}, append(program.args, "--address="+address, "--kube-api-qps=1000", "--kube-api-burst=1000")); err != nil {
			return started, err
		}
	}
	return started, nil
}

// TestAVerticalAutoscalerEvictsByTheBudget: its updater evicts half of the pods at a time, and its webhook gives the new ones other requests.
func TestAVerticalAutoscalerEvictsByTheBudget(t *testing.T) {
	ns := namespace(t)
	p := promise(t, the, ns, map[string]int{"node-a": 5, "node-b": 4}, ofWorkload)
	apply(t, ns, spreadOf("apps/v1", "Deployment", "")+budgetOf(2)+fmt.Sprintf(`---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec: {replicas: 12, selector: {matchLabels: {app: web}}, %s}
`, strings.Replace(template(), "name: main,", "name: main, resources: {requests: {cpu: 100m, memory: 32Mi}},", 1)))
	expect(t, ns, "a=5 b=4 c=3", 0)
	p.atLeast(10)
	apply(t, ns, `
apiVersion: autoscaling.k8s.io/v1
kind: VerticalPodAutoscaler
metadata: {name: web}
spec: {targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, updatePolicy: {updateMode: Recreate}}
`)
	recommendation := `{"status":{"conditions":[{"type":"RecommendationProvided","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z"}],"recommendation":{"containerRecommendations":[
		{"containerName":"main","target":{"cpu":"300m","memory":"64Mi"},"lowerBound":{"cpu":"250m","memory":"48Mi"},"upperBound":{"cpu":"400m","memory":"96Mi"}}]}}}`
	if _, err := the.Dynamic.Resource(verticalAutoscalers).Namespace(ns).Patch(t.Context(), "web", types.MergePatchType, []byte(recommendation), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	want := resource.MustParse("300m")
	if err := the.WaitFor(t.Context(), "pods with the recommended requests", func(ctx context.Context) (string, error) {
		all, err := the.Pods(ctx, ns)
		for i := range all {
			if cpu := all[i].Spec.Containers[0].Resources.Requests.Cpu(); cpu.Cmp(want) != 0 {
				return fmt.Sprintf("%s requests %s", all[i].Name, cpu), err
			}
		}
		return "", err
	}); err != nil {
		t.Fatal(err)
	}
	expect(t, ns, "a=5 b=4 c=3", 0)
}
