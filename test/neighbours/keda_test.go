package neighbours

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-project/berth/test/harness"
)

// keda is for the tests that are NOT_IN_CI. KEDA serves the API of external metrics, so that the other tests cannot run beside it.
var keda = flag.Bool("keda", false, "KEDA, Kueue, Volcano and the VerticalPodAutoscaler run in place of the other neighbours")

// installKEDA installs KEDA, and starts its operator and its API of metrics. It returns what it has started, also with an error.
func installKEDA(ctx context.Context, cluster *harness.Cluster, dir string) ([]*process, error) {
	const namespace, account, secret = "keda", "keda-operator", "kedaorg-certs"
	module, err := harness.ModuleDir(ctx, "keda", "github.com/kedacore/keda/v2")
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(4)
	if err != nil {
		return nil, err
	}
	// What runs beside the API server is on loopback, whose name a Service may have.
	edit := strings.NewReplacer("  versionPriority: 100\n", fmt.Sprintf("  versionPriority: 100\n  service: {name: keda-metrics-apiserver, namespace: keda, port: %d}\n", ports[0]),
		"  service:\n    name: keda-metrics-apiserver\n    namespace: keda\n", "", "spec:\n  ports:\n", "spec:\n  type: ExternalName\n  externalName: localhost\n  ports:\n")
	objects, err := objectsIn(filepath.Join(module, "config"), edit, "crd/bases/*.yaml", "service_account/service_account.yaml", "rbac/role.yaml", "rbac/role_binding.yaml",
		"metrics-server/role.yaml", "metrics-server/role_binding.yaml", "metrics-server/service.yaml", "metrics-server/api_service.yaml")
	if err != nil {
		return nil, err
	}
	kubeconfig, err := installed(ctx, cluster, dir, namespace, account, objects)
	if err != nil {
		return nil, err
	}
	if err := served(ctx, cluster, schema.GroupVersionKind{Group: "keda.sh", Version: "v1alpha1", Kind: "ScaledObject"}); err != nil {
		return nil, err
	}
	certs := filepath.Join(dir, "certs")
	if err := os.Mkdir(certs, 0o700); err != nil {
		return nil, err
	}
	environment := []string{"KUBECONFIG=" + kubeconfig, "POD_NAMESPACE=" + namespace, "WATCH_NAMESPACE=", "KEDA_CLUSTER_OBJECT_NAMESPACE=" + namespace}
	grpc, probes := fmt.Sprintf("127.0.0.1:%d", ports[1]), fmt.Sprintf("127.0.0.1:%d", ports[2])
	args := []string{"--enable-cert-rotation", "--enable-webhook-patching=false", "--cert-dir=" + certs, "--metrics-bind-address=0", "--health-probe-bind-address=" + probes,
		"--metrics-service-bind-address=" + grpc, "--kube-api-qps=1000", "--kube-api-burst=1000"}
	operator, adapter := &process{name: "keda-operator", dir: dir}, &process{name: "keda-adapter", dir: dir}
	both := []*process{operator, adapter}
	// The first operator makes the certificates, and ends. A kubelet mounts them for the second.
	if err := operator.launch(ctx, environment, args); err != nil {
		return both, err
	}
	if err := mount(ctx, cluster, namespace, secret, certs); err != nil {
		return both, fmt.Errorf("%w; its log is %s", err, operator.log())
	}
	if err := operator.start(ctx, cluster, "http://"+probes+"/readyz", environment, args); err != nil {
		return both, err
	}
	if err := adapter.launch(ctx, environment, []string{fmt.Sprintf("--secure-port=%d", ports[0]), "--bind-address=127.0.0.1", fmt.Sprintf("--port=%d", ports[3]), "--kubeconfig=" + kubeconfig,
		"--lister-kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig, "--client-ca-file=" + filepath.Join(certs, "ca.crt"), "--tls-cert-file=" + filepath.Join(certs, "tls.crt"),
		"--tls-private-key-file=" + filepath.Join(certs, "tls.key"), "--cert-dir=" + certs, "--metrics-service-address=" + grpc, "--metrics-service-grpc-authority=" + account + "." + namespace + ".svc.cluster.local",
		"--kube-api-qps=1000", "--kube-api-burst=1000"}); err != nil {
		return both, err
	}
	return both, cluster.WaitFor(ctx, "KEDA's API of metrics", func(ctx context.Context) (string, error) {
		if _, err := cluster.Client.Discovery().ServerResourcesForGroupVersion(podMetrics.String()); err != nil {
			return fmt.Sprintf("%v; its log is %s", err, adapter.log()), nil
		}
		return "", nil
	})
}

// TestKEDAScalesToZeroAndBack: pods come in the order of the subsets, and those of the last subset go first, also when KEDA scales a Deployment from zero and to zero.
func TestKEDAScalesToZeroAndBack(t *testing.T) {
	ns := namespace(t)
	watched(t, ns, 30)
	apply(t, ns, spreadOf("apps/v1", "Deployment", "")+budgetOf(2)+fmt.Sprintf(`---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec: {replicas: 0, selector: {matchLabels: {app: web}}, %s}
---
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: web}
spec:
  scaleTargetRef: {name: web}
  pollingInterval: 1
  cooldownPeriod: 1
  minReplicaCount: 0
  maxReplicaCount: 24
  advanced:
    horizontalPodAutoscalerConfig:
      behavior:
        scaleUp: {stabilizationWindowSeconds: 0, policies: [{type: Pods, value: 24, periodSeconds: 1}]}
        scaleDown: {stabilizationWindowSeconds: 0, policies: [{type: Percent, value: 100, periodSeconds: 1}]}
  triggers:
  - type: metrics-api
    metadata: {url: %q, valueLocation: value, targetValue: "1"}
`, template(), metrics.url+"/"+ns))
	for _, step := range []struct {
		queue  int
		layout string
	}{{12, "a=5 b=4 c=3"}, {7, "a=5 b=2 c=0"}, {20, "a=5 b=4 c=11"}, {3, "a=3 b=0 c=0"}, {0, "a=0 b=0 c=0"}, {12, "a=5 b=4 c=3"}} {
		metrics.set(ns, step.queue)
		expect(t, ns, step.layout, 0)
	}
}
