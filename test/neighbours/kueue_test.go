package neighbours

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/test/harness"
)

// installKueue installs Kueue, which makes its certificates by itself, and starts it. It returns what it has started, also with an error.
func installKueue(ctx context.Context, cluster *harness.Cluster, dir string) ([]*process, error) {
	const namespace, account = "kueue-system", "kueue-controller-manager"
	p := &process{name: "kueue", dir: dir}
	module, err := harness.ModuleDir(ctx, "kueue", "sigs.k8s.io/kueue")
	if err != nil {
		return nil, err
	}
	text, err := exec.CommandContext(ctx, filepath.Join(harness.BinDir(), "kubectl"), "kustomize", filepath.Join(module, "config", "default")).Output()
	if err != nil {
		return nil, fmt.Errorf("rendering Kueue's manifests: %w", err)
	}
	objects, err := harness.Documents(string(text))
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(2)
	if err != nil {
		return nil, err
	}
	objects = slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool {
		return slices.Contains([]string{"Namespace", "Deployment", "APIService"}, o.GetKind())
	})
	for _, object := range objects {
		onLoopback(object, int64(ports[0]))
	}
	kubeconfig, err := installed(ctx, cluster, dir, namespace, account, objects)
	if err != nil {
		return nil, err
	}
	certs, config := filepath.Join(dir, "kueue-certs"), filepath.Join(dir, "kueue.yaml")
	if err := os.Mkdir(certs, 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(config, fmt.Appendf(nil, `
apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
namespace: %s
health: {healthProbeBindAddress: "127.0.0.1:%d"}
metrics: {bindAddress: "0"}
webhook: {port: %d, certDir: %s}
leaderElection: {leaderElect: false}
clientConnection: {qps: 1000, burst: 1000}
internalCertManagement: {enable: true, webhookServiceName: kueue-webhook-service, webhookSecretName: kueue-webhook-server-cert}
integrations: {frameworks: [batch/job, pod, deployment]}
`, namespace, ports[1], ports[0], certs), 0o600); err != nil {
		return nil, err
	}
	if err := p.launch(ctx, []string{"KUBECONFIG=" + kubeconfig}, []string{"--config=" + config, "--feature-gates=VisibilityOnDemand=false"}); err != nil {
		return nil, err
	}
	started := []*process{p}
	if err := mount(ctx, cluster, namespace, "kueue-webhook-server-cert", certs); err != nil {
		return started, fmt.Errorf("%w; its log is %s", err, p.log())
	}
	if err := p.ready(ctx, cluster, fmt.Sprintf("http://127.0.0.1:%d/readyz", ports[1])); err != nil {
		return started, err
	}
	return started, cluster.ApplyYAML(ctx, namespace, "{apiVersion: kueue.x-k8s.io/v1beta1, kind: ResourceFlavor, metadata: {name: any}}")
}

// onLoopback makes a webhook, a converter or a Service of what runs beside the API server one that the API server reaches.
func onLoopback(object *unstructured.Unstructured, port int64) {
	switch object.GetKind() {
	case "Service":
		object.Object["spec"] = map[string]any{"type": string(corev1.ServiceTypeExternalName), "externalName": "localhost"}
	case "CustomResourceDefinition":
		delete(object.Object, "status")
		if _, has, _ := unstructured.NestedMap(object.Object, "spec", "conversion", "webhook", "clientConfig", "service"); has {
			_ = unstructured.SetNestedField(object.Object, port, "spec", "conversion", "webhook", "clientConfig", "service", "port") // it is a map
		}
	case "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration":
		for _, webhook := range object.Object["webhooks"].([]any) {
			_ = unstructured.SetNestedField(webhook.(map[string]any), port, "clientConfig", "service", "port")
		}
	}
}

// queues are a queue of a namespace for so many pods.
func queues(name string, pods int) string {
	return fmt.Sprintf(`---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata: {name: %[1]s}
spec:
  namespaceSelector: {}
  resourceGroups:
  - coveredResources: [pods]
    flavors: [{name: any, resources: [{name: pods, nominalQuota: %[2]d}]}]
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: LocalQueue
metadata: {name: queue}
spec: {clusterQueue: %[1]s}
---
`, name, pods)
}

// expectAdmitted waits until so many pods of web are ready in each subset, and so many wait for Kueue.
func expectAdmitted(t *testing.T, ns, layout string, waiting int) {
	t.Helper()
	if err := the.WaitFor(t.Context(), fmt.Sprintf("%s, and %d waiting", layout, waiting), func(ctx context.Context) (string, error) {
		all, err := the.Pods(ctx, ns)
		if err != nil {
			return "", err
		}
		count, gated := map[string]int{}, 0
		for i := range all {
			pod := &all[i]
			switch {
			case isAvailable(pod):
				count[pod.Spec.NodeName]++
			case slices.ContainsFunc(pod.Spec.SchedulingGates, func(gate corev1.PodSchedulingGate) bool { return gate.Name == "kueue.x-k8s.io/admission" }):
				gated++
			default:
				return pod.Name + " neither runs nor waits for Kueue", nil
			}
		}
		if is := fmt.Sprintf("a=%d b=%d c=%d", count["node-a"], count["node-b"], count["node-c"]); is != layout || gated != waiting {
			return fmt.Sprintf("%s, and %d waiting", is, gated), nil
		}
		return "", nil
	}); err != nil {
		t.Fatal(err)
	}
}

// TestKueueAdmitsJobsThatASpreadDivides: a Job gets its layout when Kueue admits it. A second Job waits until the first is gone, and then gets its own.
func TestKueueAdmitsJobsThatASpreadDivides(t *testing.T) {
	ns := namespace(t)
	watched(t, ns, 24)
	job := func(name string) string {
		return strings.ReplaceAll(spreadOf("batch/v1", "Job", ""), "name: web", "name: "+name) + fmt.Sprintf(`---
apiVersion: batch/v1
kind: Job
metadata: {name: %s, labels: {kueue.x-k8s.io/queue-name: queue}}
spec:
  parallelism: 12
  completions: 12
  template: {metadata: {labels: {app: %[1]s}}, spec: {restartPolicy: Never, terminationGracePeriodSeconds: 0, containers: [{name: main, image: %s}]}}
`, name, oldImage)
	}
	apply(t, ns, queues(ns, 12)+job("web"))
	expectAdmitted(t, ns, "a=5 b=4 c=3", 0)
	apply(t, ns, job("next"))
	jobs := the.Client.BatchV1().Jobs(ns)
	if err := the.WaitFor(t.Context(), "the next Job to wait", func(ctx context.Context) (string, error) {
		next, err := jobs.Get(ctx, "next", metav1.GetOptions{})
		if err == nil && !slices.ContainsFunc(next.Status.Conditions, func(c batchv1.JobCondition) bool { return c.Type == batchv1.JobSuspended }) {
			return fmt.Sprint(next.Status), nil
		}
		return "", err
	}); err != nil {
		t.Fatal(err)
	}
	expectAdmitted(t, ns, "a=5 b=4 c=3", 0)
	if err := jobs.Delete(t.Context(), "web", metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}); err != nil {
		t.Fatal(err)
	}
	if err := the.WaitFor(t.Context(), "the end of the first Job's pods", func(ctx context.Context) (string, error) {
		all, err := the.Pods(ctx, ns)
		if slices.ContainsFunc(all, func(pod corev1.Pod) bool { return pod.Labels["app"] == "web" }) {
			return "some are there", err
		}
		return "", err
	}); err != nil {
		t.Fatal(err)
	}
	expectAdmitted(t, ns, "a=5 b=4 c=3", 0)
}

// TestPodsThatWaitForKueueTakeNoSlots: of a Deployment whose pods Kueue admits one by one, those that run fill the subsets in order, whichever they are.
func TestPodsThatWaitForKueueTakeNoSlots(t *testing.T) {
	for _, binding := range []v1beta1.BindingMode{v1beta1.LateBinding, v1beta1.GatedBinding} {
		t.Run(string(binding), func(t *testing.T) {
			ns := namespace(t)
			watched(t, ns, 12)
			apply(t, ns, queues(ns, 7)+strings.NewReplacer("v1alpha1", "v1beta1", "requiredNodeSelectorTerm", "requiredNodeSelector").Replace(spreadOf("apps/v1", "Deployment", "binding: "+string(binding)))+fmt.Sprintf(`
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {kueue.x-k8s.io/queue-name: queue}}
spec: {replicas: 12, selector: {matchLabels: {app: web}}, %s}
`, template()))
			expectAdmitted(t, ns, "a=5 b=2 c=0", 5)
			apply(t, ns, queues(ns, 12))
			expectAdmitted(t, ns, "a=5 b=4 c=3", 0)
		})
	}
}
