package neighbours

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/manifests"
	"github.com/berth-project/berth/pkg/cli"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	policyv1beta1 "github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/endpoint"
	"github.com/berth-project/berth/test/harness"
)

// The workloads of the migration: the Deployment web and the CloneSet clones change all the time, and still never changes.
const (
	migratedQuota        = 3 // of subset a, for each revision of web
	migratedMinAvailable = 5 // of web
	migratedSpread       = `
apiVersion: apps.kruise.io/v1alpha1
kind: WorkloadSpread
metadata: {name: %[1]s}
spec:
  targetRef: {apiVersion: %[2]s, kind: %[3]s, name: %[1]s}
  subsets:
  - {name: a, maxReplicas: 3, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [a]}]}, patch: {metadata: {labels: {in: a}}}}
  - {name: b, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [b]}]}}
---
`
	migratedBudget = `
apiVersion: policy.kruise.io/v1alpha1
kind: PodUnavailableBudget
metadata: {name: web}
spec: {selector: {matchLabels: {app: web}}, minAvailable: 5}
`
	migratedWorkload = `
apiVersion: %[2]s
kind: %[3]s
metadata: {name: %[1]s}
spec:
  replicas: %[4]d
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec: {containers: [{name: main, image: registry.k8s.io/pause:3.9}]}
`
)

// program starts a program that ends with the test.
func program(t *testing.T, log, path string, args ...string) *exec.Cmd {
	t.Helper()
	file, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	p := exec.CommandContext(context.Background(), path, args...)
	p.Stdout, p.Stderr = file, file
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Process.Kill() // it may have ended
		_ = p.Wait()
		if t.Failed() {
			if text, err := os.ReadFile(log); err == nil {
				t.Logf("%s:\n%s", log, text[max(0, len(text)-8000):])
			}
		}
		_ = file.Close() // nobody reads it any more
	})
	return p
}

// withoutBerth makes the cluster one on which Berth never was.
func withoutBerth(ctx context.Context, cluster *harness.Cluster) error {
	for _, name := range berths {
		if err := cluster.Dynamic.Resource(definitions).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			return err
		}
		if err := cluster.WaitFor(ctx, "the end of "+name, func(ctx context.Context) (string, error) {
			_, err := cluster.Dynamic.Resource(definitions).Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return "", nil
			}
			return "it is there", err
		}); err != nil {
			return err
		}
	}
	return nil
}

// TestMigrationFromOpenKruiseAndBack walks docs/migration.md with live workloads: pods are evicted, updated in place, scaled and rolled out all the time. While Berth decides, no
// subset is over its quota and the budget holds. Nothing is lost, and no pod restarts by the migration.
func TestMigrationFromOpenKruiseAndBack(t *testing.T) { migrateAndBack(t, stable) }

// TestMigrationFromTheNewestOpenKruiseAndBack is the same with a version that stores v1beta1.
func TestMigrationFromTheNewestOpenKruiseAndBack(t *testing.T) { migrateAndBack(t, newest) }

func migrateAndBack(t *testing.T, version string) {
	t.Parallel()
	cluster, err := harness.Start(t.Context(), sandbox.Config{Name: "migration", Dir: t.TempDir(), Without: []string{product.Scheduler, product.Controller}}, product.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Sandbox.Stop)
	ctx, end := context.WithCancel(t.Context())
	defer end()
	wait := func(what string, condition func(context.Context) (string, error)) {
		t.Helper()
		if err := cluster.WaitFor(ctx, what, condition); err != nil {
			t.Fatal(err)
		}
	}
	ns, err := cluster.CreateNamespace(ctx, "shop")
	if err != nil {
		t.Fatal(err)
	}
	if err := cluster.Sandbox.CreateNodes(ctx, []*corev1.Node{sandbox.NewNode("node-a", "zone-a", map[string]string{"pool": "a"}, nil, nil), sandbox.NewNode("node-b", "zone-a", map[string]string{"pool": "b"}, nil, nil)}); err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	defer running.Wait()
	defer end()
	again := func(every time.Duration, do func(context.Context) error) {
		running.Go(func() {
			for ticker := time.NewTicker(every); ; {
				select {
				case <-ctx.Done():
					ticker.Stop()
					return
				case <-ticker.C:
					if err := do(ctx); err != nil && ctx.Err() == nil {
						t.Error(err)
					}
				}
			}
		})
	}
	running.Go(func() { restartContainers(ctx, cluster) })
	if err := withoutBerth(ctx, cluster); err != nil {
		t.Fatal(err)
	}
	k, err := install(ctx, cluster, version, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer k.stop()
	start := func(gates string, environment ...string) {
		t.Helper()
		if err := k.start(t.Context(), gates, environment...); err != nil {
			t.Fatal(err)
		}
	}
	start(gatesBefore)
	k.expectControllers(t, map[string]bool{"workloadspread": true, "sidecarset": true, "uniteddeployment": true})

	// Live workloads.
	p := promise(t, cluster, ns, map[string]int{"node-a": migratedQuota}, func(pod *corev1.Pod) string { return pod.Labels["pod-template-hash"] })
	text := migratedBudget
	for _, w := range [][3]string{{"web", "apps/v1", "Deployment"}, {"still", "apps/v1", "Deployment"}, {"clones", "apps.kruise.io/v1alpha1", "CloneSet"}} {
		text += "---" + fmt.Sprintf(migratedSpread, w[0], w[1], w[2]) + fmt.Sprintf(migratedWorkload, w[0], w[1], w[2], 7)
	}
	if err := cluster.ApplyYAML(ctx, ns, text); err != nil {
		t.Fatal(err)
	}
	podsOf := func(app string) ([]corev1.Pod, error) {
		list, err := cluster.Client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
		if err != nil {
			return nil, err
		}
		return slices.DeleteFunc(list.Items, func(pod corev1.Pod) bool { return !isAvailable(&pod) }), nil
	}
	for _, app := range []string{"web", "still", "clones"} {
		wait("the pods of "+app, func(context.Context) (string, error) {
			pods, err := podsOf(app)
			if len(pods) < 7 {
				return fmt.Sprintf("%d are available", len(pods)), err
			}
			return "", err
		})
	}
	still, err := podsOf("still")
	if err != nil {
		t.Fatal(err)
	}
	var evicted, updated, changed atomic.Int32
	// The pod may be gone, its budget may be exhausted, or the webhook of the product that is being removed has just ended.
	expected := func(err error) error {
		if apierrors.IsNotFound(err) || apierrors.IsTooManyRequests(err) || apierrors.IsForbidden(err) || apierrors.IsConflict(err) || apierrors.IsInternalError(err) ||
			err != nil && strings.Contains(err.Error(), ".kb.io\" denied the request") { // OpenKruise, which cannot convert until step definitions
			return nil
		}
		return err
	}
	// More evictions at once than any budget allows.
	again(400*time.Millisecond, func(ctx context.Context) error {
		pods, err := podsOf("web")
		if err != nil {
			return err
		}
		var evicting errgroup.Group
		for i := range pods {
			evicting.Go(func() error {
				err := cluster.Client.CoreV1().Pods(ns).EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pods[i].Name, Namespace: ns}})
				if err == nil {
					evicted.Add(1)
				}
				return expected(err)
			})
		}
		return evicting.Wait()
	})
	again(3*time.Second, func(ctx context.Context) error {
		n := changed.Add(1)
		patch := fmt.Sprintf(`{"spec":{"replicas":%d}}`, 6+n%3)
		if n%4 == 0 {
			patch = fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"revision":"%d"}}}}}`, n)
		}
		_, err := cluster.Client.AppsV1().Deployments(ns).Patch(ctx, "web", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
		return expected(err)
	})
	again(2*time.Second, func(ctx context.Context) error {
		pods, err := podsOf("clones")
		if err != nil {
			return err
		}
		patch := fmt.Sprintf(`{"spec":{"updateStrategy":{"type":"InPlaceIfPossible"},%s}}`, containers(fmt.Sprintf("registry.k8s.io/pause:%d", updated.Add(1))))
		if n := updated.Load(); n%5 == 0 && len(pods) > 0 {
			patch = fmt.Sprintf(`{"spec":{"replicas":%d,"scaleStrategy":{"podsToDelete":[%q]}}}`, 6+n%2, pods[rand.IntN(len(pods))].Name)
		}
		_, err = cluster.Dynamic.Resource(cloneSets).Namespace(ns).Patch(ctx, "clones", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return expected(err)
	})
	live := func(whose string) { // until the workloads have lived on for a while
		t.Helper()
		pods, gone, updates, changes := p.placed(), evicted.Load(), updated.Load(), changed.Load()
		wait("pods of "+whose, func(context.Context) (string, error) {
			if p.placed() >= pods+10 && evicted.Load() >= gone+5 && updated.Load() >= updates+3 && changed.Load() >= changes+4 {
				return "", nil
			}
			return fmt.Sprintf("%d placed, %d evicted, %d updates, %d changes", p.placed()-pods, evicted.Load()-gone, updated.Load()-updates, changed.Load()-changes), nil
		})
		p.report(t, whose)
	}
	live("OpenKruise")

	backup := filepath.Join(t.TempDir(), "before")
	migrate := func(args ...string) (out string, done bool) {
		t.Helper()
		cmd := exec.CommandContext(ctx, filepath.Join(harness.BinDir(), "kubectl-berth"), append([]string{"migrate", "--from=kruise", "--backup=" + backup, "--kubeconfig=" + cluster.Sandbox.Kubeconfig()}, args...)...)
		text, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		t.Logf("%s\n%s", strings.Join(args, " "), text)
		return string(text), err == nil
	}
	expect := func(done bool, args []string, parts ...string) string {
		t.Helper()
		out, is := migrate(args...)
		for _, part := range parts {
			if is != done || !strings.Contains(strings.Join(strings.Fields(out), " "), part) {
				t.Fatalf("migrate %s: done %t, without %q:\n%s", args, is, part, out)
			}
		}
		return out
	}
	before := k.state(t, ns)
	expect(false, []string{"--dry-run=client"}, "save needed", "install needed", "definitions needed", "webhooks needed", "gates needed")
	if diff := cmp.Diff(before, k.state(t, ns)); diff != "" {
		t.Fatalf("a dry run changed (-before +after)\n%s", diff)
	}
	expect(false, nil, "save done copies", "install yours install Berth")
	for file, part := range map[string]string{"workloadspreads": "requiredNodeSelectorTerm", "podunavailablebudgets": "minAvailable", "definitions": "openAPIV3Schema", "webhooks": "vworkloadspread.kb.io"} {
		if copied, err := os.ReadFile(filepath.Join(backup, file+".yaml")); err != nil || !strings.Contains(string(copied), part) {
			t.Errorf("the copies in %s: %v\n%s", file, err, copied)
		}
	}
	kubectl := func(args ...string) {
		t.Helper()
		text, err := exec.CommandContext(ctx, filepath.Join(harness.BinDir(), "kubectl"), append(args, "--kubeconfig="+cluster.Sandbox.Kubeconfig())...).CombinedOutput()
		if err != nil {
			t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, text)
		}
	}
	for _, file := range []string{"apps.kruise.io_workloadspreads.yaml", "policy.kruise.io_podunavailablebudgets.yaml"} {
		if version == newest {
			continue // its definitions serve v1beta1
		}
		kubectl("apply", "--server-side", "--force-conflicts", "-f", filepath.Join(harness.Root(), "manifests", "crd", file))
	}
	stop := startBerth(t, cluster)
	wait("Berth", func(context.Context) (string, error) {
		configuration, err := cluster.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(ctx, "berth-webhook", metav1.GetOptions{})
		if err != nil || len(configuration.Webhooks[0].ClientConfig.CABundle) > 0 {
			return "", err
		}
		return "no authority", nil
	})
	out := expect(false, nil, "definitions done the definitions become", "webhooks done OpenKruise does not check", "gates yours set the feature gates")
	_, gates, _ := strings.Cut(out, `--set featureGates="`)
	gates, _, _ = strings.Cut(gates, `"`)
	if want := `KruiseDaemon=false\,PodUnavailableBudgetDeleteGate=false\,WorkloadSpread=false`; gates != want {
		t.Fatalf("gates %s, want %s", gates, want)
	}
	start(strings.ReplaceAll(gates, `\,`, ","))
	k.expectControllers(t, map[string]bool{"workloadspread": false, "sidecarset": true, "uniteddeployment": true})
	switched := time.Now()
	wait("the end of the migration", func(context.Context) (string, error) {
		out, done := migrate()
		if !done {
			return out, nil
		}
		return "", nil
	})
	wait("all pods of web", func(context.Context) (string, error) {
		pods, err := podsOf("web")
		if len(pods) < 6 {
			return fmt.Sprintf("%d are available", len(pods)), err
		}
		return "", err
	})
	p.atLeast(migratedMinAvailable)
	live("Berth")
	spread, err := cluster.Spread(ctx, ns, "web")
	if err != nil || len(spread.Status.SubsetStatuses) != 2 || len(spread.Status.SubsetStatuses[0].CreatingPods) > 0 {
		t.Errorf("the status is not Berth's: %+v, %v", spread.Status, err)
	}
	expect(true, nil, "All steps are done.") // nothing has come back
	doctor := exec.CommandContext(ctx, filepath.Join(harness.BinDir(), "kubectl-berth"), "doctor", "-o=json", "--kubeconfig="+cluster.Sandbox.Kubeconfig())
	result, _ := doctor.Output() // the exit code is 1 if anything is wrong
	var found struct{ Items []cli.Check }
	if err := json.Unmarshal(result, &found); err != nil {
		t.Fatalf("%v: %s", err, result)
	}
	for _, check := range found.Items {
		if slices.Contains([]string{"definitions", "conversion", "webhooks"}, check.Name) && check.Result != "ok" || check.Name == "one controller" && tellsOfAfter(t, check.Says, switched) {
			t.Errorf("doctor: %+v", check)
		}
	}

	// Back, by the commands of the page.
	start(gatesBefore)
	kubectl("-n", system, "rollout", "status", "deployment", "kruise-controller-manager", "--timeout=5m")
	kubectl("replace", "-f", filepath.Join(backup, "webhooks.yaml"))
	live("both")
	p.atLeast(0) // between both
	for _, name := range endpoint.Definitions {
		if version == newest {
			continue // it stores v1beta1, too
		}
		kubectl("patch", "customresourcedefinition", name, "--type=json", `--patch=[
			{"op": "test", "path": "/spec/versions/1/name", "value": "v1alpha1"},
			{"op": "replace", "path": "/spec/versions/1/storage", "value": true},
			{"op": "replace", "path": "/spec/versions/2/storage", "value": false}]`)
		kubectl("wait", "customresourcedefinition", name, "--for=jsonpath={.status.storedVersions[0]}=v1alpha1", "--timeout=5m")
	}
	stop()
	kubectl("replace", "-f", filepath.Join(backup, "definitions.yaml"))
	kubectl("delete", "pods", "-A", "--field-selector", "spec.schedulerName=berth-scheduler,spec.nodeName=")
	live("OpenKruise again")
	if diff := cmp.Diff(before, k.state(t, ns)); diff != "" {
		t.Errorf("it is not as before (-before +after)\n%s", diff)
	}
	after, err := podsOf("still")
	if err != nil {
		t.Fatal(err)
	}
	for i := range still {
		at := slices.IndexFunc(after, func(pod corev1.Pod) bool { return pod.UID == still[i].UID })
		if at < 0 || after[at].Status.ContainerStatuses[0].RestartCount > 0 {
			t.Errorf("pod %s of a workload that nobody changed is gone or was restarted", still[i].Name)
		}
	}
	end()
	t.Logf("%d pods of web were placed, %d evicted, with %d changes, and the CloneSet was changed %d times", p.placed(), evicted.Load(), changed.Load(), updated.Load())

	// Which of its controllers OpenKruise runs.
	start(gatesBefore, "CUSTOM_RESOURCE_ENABLE=CloneSet,StatefulSet")
	k.expectControllers(t, map[string]bool{"sidecarset": true, "uniteddeployment": true}) // it restricts nothing
	if err := leaveToBerth(t.Context(), cluster, "sidecarsets.apps.kruise.io", false); err != nil {
		t.Fatal(err)
	}
	start(gatesBefore)
	k.expectControllers(t, map[string]bool{"sidecarset": version == newest, "uniteddeployment": true}) // the newest runs it for v1beta1
}

var mostRecently = regexp.MustCompile(`most recently at (\S+Z)`)

// tellsOfAfter is true if the doctor names a program that wrote a status after a moment. For half an hour it also names those that wrote before, with the time: OpenKruise may have
// written once more before it was switched off.
func tellsOfAfter(t *testing.T, says string, moment time.Time) bool {
	t.Helper()
	for _, found := range mostRecently.FindAllStringSubmatch(says, -1) {
		at, err := time.Parse("2006-01-02 15:04:05Z", moment.UTC().Format(time.DateOnly)+" "+found[1])
		if err != nil {
			t.Fatal(err)
		}
		if at.After(moment) {
			return true
		}
	}
	return false
}

// state is what a migration changes and gives back: definitions, webhooks and the specs of the objects.
func (k *kruise) state(t *testing.T, ns string) map[string]any {
	t.Helper()
	state := map[string]any{}
	for _, name := range berths {
		object, err := k.cluster.Dynamic.Resource(definitions).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		stored, _, _ := unstructured.NestedStringSlice(object.Object, "status", "storedVersions")
		state[name] = []any{object.Object["spec"], object.GetAnnotations(), object.GetLabels(), stored}
	}
	configuration, err := k.cluster.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(t.Context(), "kruise-validating-webhook-configuration", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var template []admissionregistrationv1.ValidatingWebhook
	if err := json.Unmarshal([]byte(configuration.Annotations["template"]), &template); err != nil {
		t.Fatal(err)
	}
	state["webhooks"], state["template"] = namesOf(configuration.Webhooks), namesOf(template)
	for _, resource := range []string{v1beta1.Resource.Resource, policyv1beta1.Resource.Resource} {
		of := v1beta1.Resource
		if resource == policyv1beta1.Resource.Resource {
			of = policyv1beta1.Resource
		}
		of.Version = "v1alpha1"
		list, err := k.cluster.Dynamic.Resource(of).Namespace(ns).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			spec, _ := list.Items[i].Object["spec"].(map[string]any)
			if strategy, _ := spec["scheduleStrategy"].(map[string]any); len(strategy) == 0 && resource == v1beta1.Resource.Resource {
				spec["scheduleStrategy"] = map[string]any{"type": "Fixed"} // the default of both, which Berth writes
			}
			state[resource+" "+list.Items[i].GetName()] = spec
		}
	}
	return state
}

func namesOf(webhooks []admissionregistrationv1.ValidatingWebhook) string {
	var names []string
	for i := range webhooks {
		names = append(names, webhooks[i].Name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// startBerth starts Berth beside OpenKruise, with OpenKruise's UnitedDeployments. stop ends and removes it, without the definitions.
func startBerth(t *testing.T, cluster *harness.Cluster) (stop func()) {
	t.Helper()
	dir := t.TempDir()
	ports, err := freePorts(3)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(dir, "controller.kubeconfig")
	if err := cluster.WriteKubeconfigAs("system:serviceaccount:berth-system:berth-controller", kubeconfig); err != nil {
		t.Fatal(err)
	}
	url := fmt.Sprintf("https://localhost:%d", ports[1])
	var configurations []*unstructured.Unstructured
	for content, configuration := range map[string]runtime.Object{
		string(manifests.ValidatingWebhook): &admissionregistrationv1.ValidatingWebhookConfiguration{}, string(manifests.MutatingWebhook): &admissionregistrationv1.MutatingWebhookConfiguration{},
		string(manifests.BudgetWebhook): &admissionregistrationv1.ValidatingWebhookConfiguration{}, string(manifests.EvictionWebhook): &admissionregistrationv1.MutatingWebhookConfiguration{}} {
		if err := yaml.UnmarshalStrict([]byte(content), configuration); err != nil {
			t.Fatal(err)
		}
		for _, webhook := range endpoint.WebhooksOf(configuration) {
			*webhook.Client = admissionregistrationv1.WebhookClientConfig{URL: &url}
		}
		object, err := harness.Unstructured(configuration)
		if err != nil {
			t.Fatal(err)
		}
		configurations = append(configurations, object)
	}
	settings := map[string]any{}
	if err := yaml.Unmarshal(manifests.SchedulerConfig, &settings); err != nil {
		t.Fatal(err)
	}
	settings["clientConnection"] = map[string]any{"kubeconfig": cluster.Sandbox.Kubeconfig(), "qps": 1000, "burst": 1000}
	settings["leaderElection"] = map[string]any{"leaderElect": true, "leaseDuration": "5s", "renewDeadline": "4s", "retryPeriod": "500ms"}
	text, err := yaml.Marshal(settings)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "scheduler.yaml"), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	programs := []*exec.Cmd{
		program(t, filepath.Join(dir, "scheduler.log"), filepath.Join(harness.BinDir(), "berth-scheduler"), "--config="+filepath.Join(dir, "scheduler.yaml"), "--bind-address=127.0.0.1",
			fmt.Sprintf("--secure-port=%d", ports[2]), "--cert-dir="+dir, "--authentication-kubeconfig="+cluster.Sandbox.Kubeconfig(), "--authorization-kubeconfig="+cluster.Sandbox.Kubeconfig(), "--v=2"),
		program(t, filepath.Join(dir, "controller.log"), filepath.Join(harness.BinDir(), "berth-controller"), "--kubeconfig="+kubeconfig, "--metrics-bind-address=0", "--united-deployments=false",
			fmt.Sprintf("--health-probe-bind-address=127.0.0.1:%d", ports[0]), "--webhook-host=127.0.0.1", fmt.Sprintf("--webhook-port=%d", ports[1]),
			"--cert-dir="+filepath.Join(dir, "certs"), "--shutdown-delay=0", "--leader-elect=false"),
	}
	for _, object := range configurations {
		if err := cluster.Apply(t.Context(), "", object); err != nil {
			t.Fatal(err)
		}
	}
	return func() {
		for _, object := range configurations {
			client, err := cluster.Resource(object, "")
			if err == nil {
				err = client.Delete(t.Context(), object.GetName(), metav1.DeleteOptions{})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		for _, p := range programs {
			if err := p.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			_ = p.Wait() // it ends by the signal
		}
	}
}
