package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/manifests"
	oldapps "github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	oldpolicy "github.com/berth-project/berth/pkg/crd/policy/v1alpha1"
	policyv1beta1 "github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/endpoint"
	"github.com/berth-project/berth/test/harness"
)

var (
	oldSpreads = oldapps.GroupVersion.WithResource(v1beta1.Resource.Resource)
	oldBudgets = oldpolicy.GroupVersion.WithResource(policyv1beta1.Resource.Resource)
)

const oldPair = `
apiVersion: apps.kruise.io/v1alpha1
kind: WorkloadSpread
metadata: {name: web}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  subsets:
  - {name: a, maxReplicas: 1, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [a]}]}}
  - name: b
    requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [b]}]}
    preferredNodeSelectorTerms: [{weight: 1, preference: {matchExpressions: [{key: disk, operator: Exists}]}}]
---
apiVersion: policy.kruise.io/v1alpha1
kind: PodUnavailableBudget
metadata:
  name: web
  annotations: {kruise.io/pub-protect-operations: "DELETE,EVICT", pub.kruise.io/protect-total-replicas: "3", policy.berth.dev/ignored-pod-selector: '{"matchLabels":{"role":"debug"}}'}
spec: {selector: {matchLabels: {app: web}}, maxUnavailable: 1}
`

// TestClientsOfBothVersionsSeeTheSameObject: what a client of one version writes, a client of the other version reads and changes, and the status is the
// same for both.
func TestClientsOfBothVersionsSeeTheSameObject(t *testing.T) {
	pools(t, "a", "b")
	ns := namespace(t)
	t.Cleanup(func() {
		if err := the.Dynamic.Resource(policyv1beta1.Resource).Namespace(ns).Delete(context.Background(), "web", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	apply(t, ns, oldPair)
	apply(t, ns, plain("web", 3))
	expectPlaces(t, ns, "a=1 b=2")
	expectEnforced(t, ns, "web", 3)
	expectCondition(t, ns, "web", "True", v1beta1.ReasonSpreadReady)

	read := func(resource schema.GroupVersionResource) *unstructured.Unstructured {
		t.Helper()
		object, err := the.Dynamic.Resource(resource).Namespace(ns).Get(t.Context(), "web", getOptions)
		if err != nil {
			t.Fatal(err)
		}
		return object
	}
	expect := func(object *unstructured.Unstructured, want string, path ...string) {
		t.Helper()
		got, _, err := unstructured.NestedFieldNoCopy(object.Object, path...)
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		if string(text) != want {
			t.Errorf("%s %v: got %s, want %s", object.GetAPIVersion(), path, text, want)
		}
	}
	spread, budget := read(v1beta1.Resource), read(policyv1beta1.Resource)
	subsets, _, _ := unstructured.NestedSlice(spread.Object, "spec", "subsets")
	b, _ := subsets[1].(map[string]any)
	second := &unstructured.Unstructured{Object: b}
	expect(second, `{"matchExpressions":[{"key":"pool","operator":"In","values":["b"]}]}`, "requiredNodeSelector")
	expect(second, `[{"preference":{"matchExpressions":[{"key":"disk","operator":"Exists"}]},"weight":1}]`, "preferredNodeSelector")
	expect(second, `null`, "requiredNodeSelectorTerm")
	expect(budget, `["DELETE","EVICT"]`, "spec", "protectOperations")
	expect(budget, `3`, "spec", "protectTotalReplicas")
	expect(budget, `{"matchLabels":{"role":"debug"}}`, "spec", "ignoredPodSelector")
	expect(budget, `null`, "metadata", "annotations", policyv1beta1.ProtectOperationsAnnotation)

	// A client of v1beta1 changes what a client of v1alpha1 reads.
	patch := []byte(`[{"op":"replace","path":"/spec/protectOperations","value":["EVICT"]},{"op":"remove","path":"/spec/protectTotalReplicas"}]`)
	if _, err := the.Dynamic.Resource(policyv1beta1.Resource).Namespace(ns).Patch(t.Context(), "web", types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	old := read(oldBudgets)
	expect(old, `"EVICT"`, "metadata", "annotations", policyv1beta1.ProtectOperationsAnnotation)
	expect(old, `null`, "metadata", "annotations", policyv1beta1.ProtectTotalReplicasAnnotation)
	expect(old, `null`, "spec", "protectOperations")

	for _, pair := range [][2]schema.GroupVersionResource{{oldSpreads, v1beta1.Resource}, {oldBudgets, policyv1beta1.Resource}} {
		waitFor(t, "the same status in both versions", func(ctx context.Context) (string, error) {
			var all [2]map[string]any
			for i := range pair {
				object, err := the.Dynamic.Resource(pair[i]).Namespace(ns).Get(ctx, "web", getOptions)
				if err != nil {
					return "", err
				}
				all[i] = map[string]any{"status": object.Object["status"], "uid": object.GetUID(), "generation": object.GetGeneration()}
			}
			return cmp.Diff(all[0], all[1]), nil
		})
		// kubectl prints the same columns.
		waitFor(t, "the same columns in both versions", func(context.Context) (string, error) {
			var all [2]string
			for i, resource := range pair {
				out, log, failed := kubectl(t, "get", resource.Resource+"."+resource.Version+"."+resource.Group, "-n", ns, "-o", "wide")
				if failed {
					t.Fatal(log)
				}
				all[i] = out
			}
			return cmp.Diff(all[0], all[1]), nil
		})
	}
}

// TestAnIgnoredPodIsNotProtected: a budget neither refuses the deletion of a pod that ignoredPodSelector selects nor counts the pod.
func TestAnIgnoredPodIsNotProtected(t *testing.T) {
	pools(t, "a")
	ns := namespace(t)
	t.Cleanup(func() {
		if err := the.Dynamic.Resource(policyv1beta1.Resource).Namespace(ns).Delete(context.Background(), "web", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	apply(t, ns, plain("web", 3))
	apply(t, ns, `{apiVersion: policy.kruise.io/v1beta1, kind: PodUnavailableBudget, metadata: {name: web}, `+
		`spec: {selector: {matchLabels: {app: web}}, maxUnavailable: 0, ignoredPodSelector: {matchLabels: {role: debug}}}}`)
	expectEnforced(t, ns, "web", 3)
	pods := expectPods(t, ns, 3)
	remove := func() error {
		return the.Client.CoreV1().Pods(ns).Delete(t.Context(), pods[0].Name, metav1.DeleteOptions{})
	}
	if err := remove(); !apierrors.IsTooManyRequests(err) {
		t.Errorf("got %v, want the budget to refuse", err)
	}
	if _, err := the.Client.CoreV1().Pods(ns).Patch(t.Context(), pods[0].Name, types.MergePatchType, []byte(`{"metadata":{"labels":{"role":"debug"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := remove(); err != nil {
		t.Errorf("the pod is ignored: %v", err)
	}
	expectEnforced(t, ns, "web", 3) // its replacement counts
}

// TestBadInputNamesTheFieldsOfItsVersion: every violation at once, with the path that the client knows.
func TestBadInputNamesTheFieldsOfItsVersion(t *testing.T) {
	const terms = "{targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, subsets: [{name: a, %[1]s: {matchExpressions: [{key: pool, operator: Among, values: [b]}]}}, " +
		"{name: b, %[2]s: [{weight: 200, preference: {matchExpressions: [{key: pool, operator: Is}]}}]}]}"
	ns := namespace(t)
	for name, tc := range map[string]struct {
		manifest string
		want     []string
		not      string
	}{
		"a spread of v1alpha1": {"{apiVersion: apps.kruise.io/v1alpha1, kind: WorkloadSpread, metadata: {name: bad}, spec: " +
			fmt.Sprintf(terms, "requiredNodeSelectorTerm", "preferredNodeSelectorTerms") + "}",
			[]string{"spec.subsets[0].requiredNodeSelectorTerm.matchExpressions[0].operator", "spec.subsets[1].preferredNodeSelectorTerms[0].weight",
				"spec.subsets[1].preferredNodeSelectorTerms[0].preference.matchExpressions[0].operator"}, "NodeSelector."},
		"a spread of v1beta1": {"{apiVersion: apps.kruise.io/v1beta1, kind: WorkloadSpread, metadata: {name: bad}, spec: " +
			fmt.Sprintf(terms, "requiredNodeSelector", "preferredNodeSelector") + "}",
			[]string{"spec.subsets[0].requiredNodeSelector.matchExpressions[0].operator", "spec.subsets[1].preferredNodeSelector[0].weight",
				"spec.subsets[1].preferredNodeSelector[0].preference.matchExpressions[0].operator"}, "SelectorTerm"},
		"a field of the other version": {"{apiVersion: apps.kruise.io/v1beta1, kind: WorkloadSpread, metadata: {name: bad}, spec: " +
			"{targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, subsets: [{name: a, requiredNodeSelectorTerm: {}}]}}",
			[]string{`unknown field "spec.subsets[0].requiredNodeSelectorTerm"`}, "none"},
		"a budget of v1alpha1": {`{apiVersion: policy.kruise.io/v1alpha1, kind: PodUnavailableBudget, metadata: {name: bad, annotations: {kruise.io/pub-protect-operations: "DELETE,FLY", ` +
			`pub.kruise.io/protect-total-replicas: many, policy.berth.dev/ignored-pod-selector: role=debug}}, spec: {selector: {matchLabels: {app: web}}, maxUnavailable: 1}}`,
			[]string{"metadata.annotations[kruise.io/pub-protect-operations]", "FLY", "metadata.annotations[pub.kruise.io/protect-total-replicas]",
				"metadata.annotations[policy.berth.dev/ignored-pod-selector]"}, "spec."},
		"a budget of v1beta1": {`{apiVersion: policy.kruise.io/v1beta1, kind: PodUnavailableBudget, metadata: {name: bad}, spec: {selector: {matchLabels: {app: web}}, maxUnavailable: 1, ` +
			`protectOperations: [DELETE, FLY], protectTotalReplicas: -1}}`,
			[]string{"spec.protectOperations[1]", "FLY", "spec.protectTotalReplicas"}, "annotations"},
		"selectors of a budget of v1beta1": {`{apiVersion: policy.kruise.io/v1beta1, kind: PodUnavailableBudget, metadata: {name: bad}, spec: {selector: {}, maxUnavailable: 1, ignoredPodSelector: {}}}`,
			[]string{"spec.selector", "spec.ignoredPodSelector"}, "annotations"},
		"an empty selector in v1alpha1": {`{apiVersion: policy.kruise.io/v1alpha1, kind: PodUnavailableBudget, metadata: {name: bad, annotations: {policy.berth.dev/ignored-pod-selector: "{}"}}, ` +
			`spec: {selector: {matchLabels: {app: web}}, maxUnavailable: 1}}`, []string{"metadata.annotations[policy.berth.dev/ignored-pod-selector]: Invalid value"}, "spec."},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "bad.yaml")
			if err := os.WriteFile(file, []byte(tc.manifest), 0o600); err != nil {
				t.Fatal(err)
			}
			_, log, failed := kubectl(t, "create", "-n", ns, "-f", file)
			if !failed {
				t.Fatalf("it was created: %s", log)
			}
			for _, path := range tc.want {
				if !strings.Contains(log, path) {
					t.Errorf("no %s in %s", path, log)
				}
			}
			if strings.Contains(log, tc.not) {
				t.Errorf("%s names %s", log, tc.not)
			}
		})
	}
}

// TestUpgradeAndStorageMigration begins with objects of a definition that has only v1alpha1. A new controller and scheduler start although reading these
// objects needs the conversion that the controller offers. The controller has them stored again. After that the scheduler places pods of an existing spread while
// nobody converts. At the end Berth is removed, although it is dead.
func TestUpgradeAndStorageMigration(t *testing.T) {
	harness.Long(t)
	t.Parallel() // it has a cluster of its own
	cluster, err := harness.Start(t.Context(), sandbox.Config{Name: "upgrade", Dir: t.TempDir(), Without: []string{product.Scheduler, product.Controller, product.DefaultScheduler}},
		product.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Sandbox.Stop)
	ctx := t.Context()
	definitions := cluster.Dynamic.Resource(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"))
	wait := func(what string, condition func(context.Context) (string, error)) {
		t.Helper()
		if err := cluster.WaitFor(ctx, what, condition); err != nil {
			t.Fatal(err)
		}
	}

	// The old definitions, and an object of each kind.
	for _, content := range manifests.CRDs() {
		var definition apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(content, &definition); err != nil {
			t.Fatal(err)
		}
		if err := definitions.Delete(ctx, definition.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		wait("the definition to be gone", func(ctx context.Context) (string, error) {
			_, err := definitions.Get(ctx, definition.Name, getOptions)
			if apierrors.IsNotFound(err) {
				return "", nil
			}
			return definition.Name, err
		})
		definition.Spec.Conversion = nil
		definition.Spec.Versions = definition.Spec.Versions[:1]
		definition.Spec.Versions[0].Storage = true
		object, err := harness.Unstructured(&definition)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := definitions.Create(ctx, object, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	ns, err := cluster.CreateNamespace(ctx, "upgrade")
	if err != nil {
		t.Fatal(err)
	}
	wait("the old kinds", func(ctx context.Context) (string, error) {
		for _, resource := range []schema.GroupVersionResource{oldSpreads, oldBudgets} {
			if _, err := cluster.Dynamic.Resource(resource).List(ctx, metav1.ListOptions{}); err != nil {
				return err.Error(), nil //nolint:nilerr // it is not served yet
			}
		}
		return "", nil
	})
	if err := cluster.ApplyYAML(ctx, ns, oldPair); err != nil {
		t.Fatal(err)
	}
	if err := cluster.Sandbox.CreateNodes(ctx, []*corev1.Node{sandbox.NewNode("node-a", "zone-a", map[string]string{"pool": "a"}, nil, nil), sandbox.NewNode("node-b", "zone-a", map[string]string{"pool": "b"}, nil, nil)}); err != nil {
		t.Fatal(err)
	}

	// The new definitions, then the new controller, which is the only one that converts, and the new scheduler.
	ports := freePorts(t, 3)
	updated, err := product.DefinitionsAt(fmt.Sprintf("https://localhost:%d%s", ports[1], endpoint.Conversion), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, content := range updated {
		if err := cluster.ApplyYAML(ctx, "", string(content)); err != nil {
			t.Fatal(err)
		}
	}
	controller := startProgram(t, "berth-controller", "--kubeconfig="+kubeconfigAs(t, cluster, "system:serviceaccount:berth-system:berth-controller"), "--metrics-bind-address=0",
		fmt.Sprintf("--health-probe-bind-address=127.0.0.1:%d", ports[0]), "--webhook-host=127.0.0.1", fmt.Sprintf("--webhook-port=%d", ports[1]),
		"--cert-dir="+filepath.Join(t.TempDir(), "certs"), "--shutdown-delay=0", "--leader-elect=false")
	startScheduler(t, cluster, ports[2])
	wait("the controller to be ready", func(ctx context.Context) (string, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/readyz?verbose", ports[0]), nil)
		if err != nil {
			return "", err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err.Error(), nil //nolint:nilerr // it does not listen yet
		}
		defer response.Body.Close()
		text, _ := io.ReadAll(response.Body) // what arrived is shown
		if response.StatusCode != http.StatusOK {
			return string(text), nil
		}
		return "", nil
	})
	pods := func(want string) {
		t.Helper()
		wait("pods "+want, func(ctx context.Context) (string, error) {
			all, err := cluster.Pods(ctx, ns)
			places := map[string]int{}
			for i := range all {
				places[all[i].Labels[v1beta1.SubsetLabel]]++
			}
			if got := fmt.Sprintf("a=%d b=%d", places["a"], places["b"]); got != want {
				return got, err
			}
			return "", err
		})
	}
	deployment := strings.Replace(plain("web", 2), "spec: {containers", "spec: {schedulerName: berth-scheduler, containers", 1)
	if err := cluster.ApplyYAML(ctx, ns, deployment); err != nil {
		t.Fatal(err)
	}
	pods("a=1 b=1")
	wait("a status", func(ctx context.Context) (string, error) {
		spread, err := cluster.Spread(ctx, ns, "web")
		if err != nil || meta.IsStatusConditionTrue(spread.Status.Conditions, v1beta1.ConditionReady) {
			return "", err
		}
		return fmt.Sprintf("%+v", spread.Status), nil
	})

	expectStored := func(version string) {
		t.Helper()
		wait("only "+version+" to be stored", func(ctx context.Context) (string, error) {
			for _, name := range endpoint.Definitions {
				definition, err := definitions.Get(ctx, name, getOptions)
				if err != nil {
					return "", err
				}
				if stored, _, _ := unstructured.NestedStringSlice(definition.Object, "status", "storedVersions"); strings.Join(stored, "+") != version {
					return fmt.Sprintf("%s: %v", name, stored), nil
				}
			}
			return "", nil
		})
	}
	expectStored("v1beta1")

	// Nobody converts any more.
	if err := controller.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = controller.Wait() // it was killed
	other := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": oldapps.GroupVersion.String(), "kind": "WorkloadSpread", "metadata": map[string]any{"name": "other"}, "spec": map[string]any{
			"targetRef": map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "name": "other"}, "subsets": []any{map[string]any{"name": "a"}}}}}
	if _, err := cluster.Dynamic.Resource(oldSpreads).Namespace(ns).Create(ctx, other, metav1.CreateOptions{}); err == nil {
		t.Error("a client of v1alpha1 wrote an object although nobody converts")
	}
	if _, err := cluster.Spread(ctx, ns, "web"); err != nil {
		t.Errorf("reading the stored version: %v", err)
	}
	startScheduler(t, cluster, freePorts(t, 1)[0]) // a new one, whose caches are empty
	if err := cluster.ApplyYAML(ctx, ns, strings.Replace(deployment, "replicas: 2", "replicas: 4", 1)); err != nil {
		t.Fatal(err)
	}
	pods("a=1 b=3")

	// Somebody had the API server store v1alpha1 again, and nobody has converted since. The commands of docs/install.md end what hangs then.
	storeOld := `[{"op":"replace","path":"/spec/versions/0/storage","value":true},{"op":"replace","path":"/spec/versions/1/storage","value":false}]`
	if _, err := definitions.Patch(ctx, endpoint.Definitions[0], types.JSONPatchType, []byte(storeOld), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	wait("an object of v1alpha1", func(ctx context.Context) (string, error) {
		if _, err := cluster.Dynamic.Resource(oldSpreads).Namespace(ns).Create(ctx, other, metav1.CreateOptions{}); err != nil {
			return err.Error(), nil //nolint:nilerr // the API server does not know of the change yet
		}
		return "", nil
	})
	namespaces := cluster.Client.CoreV1().Namespaces()
	if err := namespaces.Delete(ctx, ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	wait("the namespace to hang", func(ctx context.Context) (string, error) {
		left, err := namespaces.Get(ctx, ns, getOptions)
		if err != nil {
			return "", err
		}
		if hangs := slices.ContainsFunc(left.Status.Conditions, func(c corev1.NamespaceCondition) bool {
			return c.Type == corev1.NamespaceDeletionContentFailure && c.Status == corev1.ConditionTrue
		}); hangs {
			return "", nil
		}
		return fmt.Sprintf("%+v", left.Status), nil
	})
	commands, err := harness.Commands("install.md", "## Removal")
	if err != nil {
		t.Fatal(err)
	}
	script := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", commands)
	script.Env = append(os.Environ(), "KUBECONFIG="+cluster.Sandbox.Kubeconfig(), "PATH="+harness.BinDir()+string(os.PathListSeparator)+os.Getenv("PATH"))
	if out, err := script.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	gone := func(what string, get func(context.Context) error) {
		t.Helper()
		wait(what+" to be gone", func(ctx context.Context) (string, error) {
			err := get(ctx)
			if apierrors.IsNotFound(err) {
				return "", nil
			}
			return what + " is there", err
		})
	}
	gone("the namespace", func(ctx context.Context) error { _, err := namespaces.Get(ctx, ns, getOptions); return err })
	for _, name := range append(slices.Clone(endpoint.Definitions), endpoint.UnitedDefinition) {
		if err := definitions.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		gone(name, func(ctx context.Context) error { _, err := definitions.Get(ctx, name, getOptions); return err })
	}
}

// kubeconfigAs writes a kubeconfig with which the administrator acts as this user, with no more rights than that user has.
func kubeconfigAs(t *testing.T, cluster *harness.Cluster, user string) string {
	t.Helper()
	config, err := clientcmd.LoadFromFile(cluster.Sandbox.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	for _, who := range config.AuthInfos {
		who.Impersonate = user
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// startProgram starts a program of Berth, which ends with the test.
func startProgram(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), name+".log"))
	if err != nil {
		t.Fatal(err)
	}
	program := exec.CommandContext(t.Context(), filepath.Join(harness.BinDir(), name), args...)
	program.Stdout, program.Stderr = log, log
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			if text, err := os.ReadFile(log.Name()); err == nil {
				t.Logf("%s:\n%s", name, text[max(0, len(text)-5000):])
			}
		}
		_ = log.Close() // nobody reads it any more
	})
	return program
}

// schedulers run one at a time.
var scheduler *exec.Cmd

// startScheduler ends the scheduler that this test has started before, and starts another.
func startScheduler(t *testing.T, cluster *harness.Cluster, port int) {
	t.Helper()
	if scheduler != nil {
		_ = scheduler.Process.Signal(syscall.SIGKILL) // it may have ended
		_ = scheduler.Wait()
	}
	settings := map[string]any{}
	if err := yaml.Unmarshal(manifests.SchedulerConfig, &settings); err != nil {
		t.Fatal(err)
	}
	settings["clientConnection"] = map[string]any{"kubeconfig": cluster.Sandbox.Kubeconfig(), "qps": 1000, "burst": 1000}
	settings["leaderElection"] = map[string]any{"leaderElect": true, "leaseDuration": "5s", "renewDeadline": "4s", "retryPeriod": "500ms"}
	text, err := yaml.Marshal(settings)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	scheduler = startProgram(t, "berth-scheduler", "--config="+path, "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port), "--cert-dir="+t.TempDir(),
		"--authentication-kubeconfig="+cluster.Sandbox.Kubeconfig(), "--authorization-kubeconfig="+cluster.Sandbox.Kubeconfig(), "--v=2")
	t.Cleanup(func() { scheduler = nil })
}
