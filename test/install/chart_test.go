package install

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilversion "k8s.io/apimachinery/pkg/util/version"

	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/internal/version"
	"github.com/berth-project/berth/test/harness"
)

// command runs a program of bin in the root of the repository. It returns the output.
func command(t *testing.T, name string, args ...string) (stdout string, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(harness.BinDir(), name), args...)
	cmd.Dir = harness.Root()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w\n%s%s", name, strings.Join(args, " "), err, out.String(), errs.String())
	}
	return out.String(), nil
}

func kustomized(t *testing.T, dir string) []*unstructured.Unstructured {
	t.Helper()
	return parsed(t, "kubectl", "kustomize", dir)
}

// kubeVersion is what the chart is told of the API server, where there is none.
const kubeVersion = "1.35.4"

// templated renders the chart with these values, including its CRDs.
func templated(t *testing.T, values ...string) []*unstructured.Unstructured {
	t.Helper()
	args := []string{"template", "berth", "charts/berth", "--include-crds", "--kube-version", kubeVersion}
	for _, value := range values {
		args = append(args, "--set", value)
	}
	return parsed(t, "helm", args...)
}

func parsed(t *testing.T, name string, args ...string) []*unstructured.Unstructured {
	t.Helper()
	text, err := command(t, name, args...)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := harness.Documents(text)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// byName maps each object by kind, namespace and name. This key is unique in a cluster.
func byName(t *testing.T, objects []*unstructured.Unstructured) map[string]map[string]any {
	t.Helper()
	all := map[string]map[string]any{}
	for _, object := range objects {
		name := fmt.Sprintf("%s %s %s/%s", object.GetAPIVersion(), object.GetKind(), object.GetNamespace(), object.GetName())
		if all[name] != nil {
			t.Errorf("%s exists twice", name)
		}
		all[name] = object.Object
	}
	return all
}

// expectSame compares a set of objects with the objects of kustomize.
func expectSame(t *testing.T, kustomized, others []*unstructured.Unstructured) {
	t.Helper()
	want, got := byName(t, kustomized), byName(t, others)
	if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got))); diff != "" {
		t.Errorf("objects (-kustomize +here):\n%s", diff)
	}
	for name, object := range want {
		if other, ok := got[name]; ok {
			if diff := cmp.Diff(object, other); diff != "" {
				t.Errorf("%s (-kustomize +here):\n%s", name, diff)
			}
		}
	}
}

// kustomization renders a kustomization of all of Berth. It may name other parts than manifests/kustomization.yaml does.
func kustomization(t *testing.T, text string) []*unstructured.Unstructured {
	t.Helper()
	dir := t.TempDir()
	// Kustomize wants relative paths.
	root, err := filepath.Rel(dir, filepath.Join(harness.Root(), "manifests"))
	if err != nil {
		t.Fatal(err)
	}
	text = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n" + strings.ReplaceAll(text, "manifests", root)
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return kustomized(t, dir)
}

func TestTheChartIsTheManifests(t *testing.T) {
	t.Run("with all defaults", func(t *testing.T) { expectSame(t, kustomized(t, "manifests"), templated(t)) })
	const parts = "resources: [manifests/base, manifests/crd, manifests/policy, manifests/scheduler, manifests/controller, manifests/united, manifests/webhook, manifests/budget, " +
		"manifests/network, manifests/descheduler/%s]"
	for name, tc := range map[string]struct{ kustomization, value string }{
		"with the descheduler as a Deployment":   {fmt.Sprintf(parts, "deployment"), "descheduler.mode=deployment"},
		"with the descheduler as a Job":          {fmt.Sprintf(parts, "job"), "descheduler.mode=job"},
		"with certificates of cert-manager":      {"resources: [manifests]\ncomponents: [manifests/webhook/cert-manager]", "certificates.source=cert-manager"},
		"with metrics, alerts and the dashboard": {"resources: [manifests, manifests/observe]", "observe.podMonitor=true,observe.rules=true,observe.dashboard=true"},
		"with SidecarSets":                       {"resources: [manifests]\ncomponents: [manifests/sidecar]", "sidecarSets.enabled=true"},
		"with rules":                             {"resources: [manifests]\ncomponents: [manifests/rules]", "spreadRules.enabled=true"},
		"with the hub of a federation":           {"resources: [manifests]\ncomponents: [manifests/federation/hub]", "federation.enabled=true"},
		"with images from elsewhere": {"resources: [manifests]\nimages:\n" +
			"- {name: ghcr.io/berth-project/berth-scheduler, newName: registry.example.com/berth-scheduler, newTag: v1}\n" +
			"- {name: ghcr.io/berth-project/berth-controller, newName: registry.example.com/berth-controller, newTag: v1}\n" +
			"- {name: ghcr.io/berth-project/berth-descheduler, newName: registry.example.com/berth-descheduler, newTag: v1}\n",
			"image.registry=registry.example.com,image.tag=v1"},
	} {
		t.Run(name, func(t *testing.T) { expectSame(t, kustomization(t, tc.kustomization), templated(t, tc.value)) })
	}
	for part, tc := range map[string]struct{ value, component string }{
		"scheduler":           {"scheduler.enabled=false", "scheduler"},
		"budget":              {"budgets.enabled=false", ""},
		"descheduler/cronjob": {"descheduler.mode=none", "descheduler"},
		"network":             {"networkPolicy.enabled=false", ""},
	} {
		t.Run("without "+part, func(t *testing.T) {
			want := byName(t, templated(t))
			for name := range byName(t, kustomized(t, "manifests/"+part)) {
				delete(want, name)
			}
			delete(want, "networking.k8s.io/v1 NetworkPolicy berth-system/berth-"+tc.component)
			got := byName(t, templated(t, tc.value))
			if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got))); diff != "" {
				t.Errorf("objects (-want +got):\n%s", diff)
			}
		})
	}
}

// TestThePartsAreTheWhole: docs/install.md deletes all of these parts one by one to keep the CRDs.
func TestThePartsAreTheWhole(t *testing.T) {
	var all []*unstructured.Unstructured
	for _, part := range []string{"descheduler/cronjob", "network", "budget", "webhook", "united", "controller", "scheduler", "policy", "base", "crd"} {
		all = append(all, kustomized(t, "manifests/"+part)...)
	}
	expectSame(t, kustomized(t, "manifests"), all)
}

func TestTheChartHasNothingToComplainAbout(t *testing.T) {
	output, err := command(t, "helm", "lint", "--strict", "charts/berth")
	if err != nil {
		t.Error(err)
	}
	if strings.Contains(output, "WARNING") || strings.Contains(output, "ERROR") {
		t.Error(output)
	}
}

// TestTheChartAndTheProgramsRunWithTheSameAPIServers: the programs say it to kubectl berth doctor, and the chart to Helm.
func TestTheChartAndTheProgramsRunWithTheSameAPIServers(t *testing.T) {
	content, err := os.ReadFile(filepath.Join(harness.Root(), "charts", "berth", "Chart.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var chart struct{ KubeVersion string }
	if err := yaml.Unmarshal(content, &chart); err != nil {
		t.Fatal(err)
	}
	oldest, newest := utilversion.MustParseGeneric(version.Lines[0]), utilversion.MustParseGeneric(version.Lines[len(version.Lines)-1])
	if want := fmt.Sprintf(">= %d.%d.0-0 < %d.%d.0-0", oldest.Major(), oldest.Minor(), newest.Major(), newest.Minor()+2); chart.KubeVersion != want {
		t.Errorf("Chart.yaml has kubeVersion %q, the programs run with %q", chart.KubeVersion, want)
	}
}

// TestTheChartOfALineTakesItsAPIServers, also those whose vendors write something behind the version, which SemVer reads as a pre-release.
func TestTheChartOfALineTakesItsAPIServers(t *testing.T) {
	for i, line := range version.Lines {
		name := line
		if i == 0 { // that of go.mod
			name = ""
		}
		tag := *releaseVersion + suffixOf(name)
		chart := filepath.Join(distWith(t, name, filepath.Join(harness.Root(), "bin")), "charts", "berth-"+strings.TrimPrefix(tag, "v")+".tgz")
		for _, server := range []string{
			"v1.34.17-eks-123", "v1.35.0", "v1.35.4-gke.100", "v1.36.4-gke.100", "v1.36.2+k3s1", "v1.36.0-eks-abc+def", "v1.37.0-alpha.1", "v1.37.0-gke.1", "v1.37.1", "v1.38.2-gke.7", "v1.39.0-gke.1",
		} {
			wanted, err := version.LineFor(server)
			if err != nil {
				t.Fatal(err)
			}
			output, err := command(t, "helm", "template", "berth", chart, "--kube-version", server)
			switch {
			case wanted == line && (err != nil || !strings.Contains(output, "/berth-scheduler:"+tag)):
				t.Errorf("line %s, API server %s: %v, want images of %s", line, server, err, tag)
			case wanted != line && (err == nil || !strings.Contains(err.Error(), "chart requires kubeVersion")):
				t.Errorf("line %s, API server %s: %v, want a refusal", line, server, err)
			}
		}
	}
}

func TestWrongValuesAreRefused(t *testing.T) {
	for value, want := range map[string]string{
		"united.image=mine":                                    "at '/united': additional properties 'image' not allowed",
		"replicas=3":                                           "additional properties 'replicas' not allowed",
		"scheduler.replica=3":                                  "at '/scheduler': additional properties 'replica' not allowed",
		"scheduler.replicas=three":                             "at '/scheduler/replicas': got string, want integer",
		"controller.replicas=-1":                               "at '/controller/replicas': minimum: got -1, want 0",
		"unitedDeployments.enabled=no-thanks":                  "at '/unitedDeployments/enabled': got string, want boolean",
		"nodeAutoscaler=yes":                                   "at '/nodeAutoscaler': value must be one of 'auto', 'present', 'absent'",
		"migrateFrom=elsewhere":                                "at '/migrateFrom': value must be one of '', 'kruise'",
		"certificates.source=letsencrypt":                      "at '/certificates/source': value must be one of 'managed', 'cert-manager'",
		"descheduler.mode=daemon":                              "at '/descheduler/mode': value must be one of 'cronjob', 'job', 'deployment', 'none'",
		"descheduler.interval=often":                           "at '/descheduler/interval'",
		"image.pullPolicy=Sometimes":                           "at '/image/pullPolicy'",
		"admission.excludedNamespaces={Kube_System}":           "at '/admission/excludedNamespaces/0'",
		"networkPolicy.metricsFrom[0].namespace=monitoring":    "at '/networkPolicy/metricsFrom/0': additional properties 'namespace' not allowed",
		"networkPolicy.webhookFrom[0].cidr=10.0.0.0/28":        "at '/networkPolicy/webhookFrom/0': additional properties 'cidr' not allowed",
		"controller.podDisruptionBudget.maxUnavailable=most":   "at '/controller/podDisruptionBudget/maxUnavailable'",
		"scheduler.topologySpreadConstraints[0].topologyKey=a": "at '/scheduler/topologySpreadConstraints/0': missing properties",
		"scheduler.resources.request.cpu=1":                    "at '/scheduler/resources': additional properties 'request' not allowed",
		// Kubernetes fills in the lease name of the cluster's own scheduler.
		"scheduler.config=profiles: []": `scheduler.config: leaderElection is {"leaderElect":true,"resourceName":"kube-scheduler","resourceNamespace":"kube-system"}`,
		`scheduler.config=leaderElection: {resourceNamespace: berth-system\, resourceName: kube-scheduler}`:                       `"resourceName":"kube-scheduler"`,
		`scheduler.config=leaderElection: {resourceName: berth-scheduler}`:                                                        `"resourceNamespace":"kube-system"`,
		`scheduler.config=leaderElection: {leaderElect: false\, resourceNamespace: berth-system\, resourceName: berth-scheduler}`: `"leaderElect":false`,
		"scheduler.config=mine": "scheduler.config: error unmarshaling JSON",
	} {
		t.Run(value, func(t *testing.T) {
			if _, err := command(t, "helm", "template", "berth", "charts/berth", "--kube-version", kubeVersion, "--set", value); err == nil {
				t.Error("it was taken")
			} else if !strings.Contains(err.Error(), want) {
				t.Errorf("%v\nwant: %s", err, want)
			}
		})
	}
}

func TestValuesReachTheirObjects(t *testing.T) {
	find := func(t *testing.T, objects []*unstructured.Unstructured, kind, name string) *unstructured.Unstructured {
		t.Helper()
		for _, object := range objects {
			if object.GetKind() == kind && object.GetName() == name {
				return object
			}
		}
		t.Fatalf("there is no %s %s", kind, name)
		return nil
	}
	podSpec := []string{"spec", "template", "spec"}
	for name, tc := range map[string]struct {
		values     string
		kind, name string
		path       []string
		want       any
	}{
		"replicas":                 {"controller.replicas=3", "Deployment", "berth-controller", []string{"spec", "replicas"}, int64(3)},
		"pull secrets":             {"image.pullSecrets={mine}", "Deployment", "berth-scheduler", append(podSpec, "imagePullSecrets"), []any{map[string]any{"name": "mine"}}},
		"priority class":           {"scheduler.priorityClassName=urgent", "Deployment", "berth-scheduler", append(podSpec, "priorityClassName"), "urgent"},
		"node selector":            {"controller.nodeSelector.pool=infra", "Deployment", "berth-controller", append(podSpec, "nodeSelector"), map[string]any{"pool": "infra"}},
		"tolerations":              {"controller.tolerations[0].operator=Exists", "Deployment", "berth-controller", append(podSpec, "tolerations"), []any{map[string]any{"operator": "Exists"}}},
		"affinity":                 {"scheduler.affinity.nodeAffinity.x=y", "Deployment", "berth-scheduler", append(podSpec, "affinity"), map[string]any{"nodeAffinity": map[string]any{"x": "y"}}},
		"a spread of one's own":    {"scheduler.topologySpreadConstraints[0].maxSkew=2,scheduler.topologySpreadConstraints[0].topologyKey=zone,scheduler.topologySpreadConstraints[0].whenUnsatisfiable=DoNotSchedule,scheduler.topologySpreadConstraints[0].labelSelector.matchLabels.a=b", "Deployment", "berth-scheduler", append(podSpec, "topologySpreadConstraints"), []any{map[string]any{"maxSkew": int64(2), "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": map[string]any{"matchLabels": map[string]any{"a": "b"}}}}},
		"annotations":              {"controller.podAnnotations.a=b", "Deployment", "berth-controller", []string{"spec", "template", "metadata", "annotations"}, map[string]any{"a": "b"}},
		"disruption budget":        {"scheduler.podDisruptionBudget.maxUnavailable=50%", "PodDisruptionBudget", "berth-scheduler", []string{"spec", "maxUnavailable"}, "50%"},
		"schedule":                 {"descheduler.schedule=@hourly", "CronJob", "berth-descheduler", []string{"spec", "schedule"}, "@hourly"},
		"policy":                   {"descheduler.policy=mine", "ConfigMap", "berth-descheduler-policy", []string{"data"}, map[string]any{"policy.yaml": "mine"}},
		"labels of the PodMonitor": {"observe.podMonitor=true,observe.labels.release=mine", "PodMonitor", "berth", []string{"metadata", "labels"}, map[string]any{"release": "mine"}},
		"labels of the alerts":     {"observe.rules=true,observe.labels.release=mine", "PrometheusRule", "berth", []string{"metadata", "labels"}, map[string]any{"release": "mine"}},
		"what may be called":       {"networkPolicy.egress[0].ports[0].port=6443", "NetworkPolicy", "berth-scheduler", []string{"spec", "policyTypes"}, []any{"Ingress", "Egress"}},
		"who may ask the webhook": {"networkPolicy.webhookFrom[0].ipBlock.cidr=10.0.0.0/28", "NetworkPolicy", "berth-controller", []string{"spec", "ingress"}, []any{
			map[string]any{"from": []any{map[string]any{"ipBlock": map[string]any{"cidr": "10.0.0.0/28"}}}, "ports": []any{map[string]any{"port": int64(9443), "protocol": "TCP"}}},
			map[string]any{"from": []any{map[string]any{"namespaceSelector": map[string]any{}}}, "ports": []any{map[string]any{"port": int64(8443), "protocol": "TCP"}}}}},
		"who may ask for metrics": {"networkPolicy.metricsFrom[0].podSelector.matchLabels.app=prometheus", "NetworkPolicy", "berth-scheduler", []string{"spec", "ingress"}, []any{map[string]any{"from": []any{map[string]any{"podSelector": map[string]any{"matchLabels": map[string]any{"app": "prometheus"}}}}, "ports": []any{map[string]any{"port": int64(10259), "protocol": "TCP"}}}}},
	} {
		t.Run(name, func(t *testing.T) {
			object := find(t, templated(t, tc.values), tc.kind, tc.name)
			got, _, err := unstructured.NestedFieldNoCopy(object.Object, tc.path...)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%v (-want +got):\n%s", tc.path, diff)
			}
		})
	}
	container := func(t *testing.T, objects []*unstructured.Unstructured, name string) map[string]any {
		t.Helper()
		containers, _, err := unstructured.NestedSlice(find(t, objects, "Deployment", name).Object, append(podSpec, "containers")...)
		if err != nil || len(containers) != 1 {
			t.Fatalf("containers %v: %v", containers, err)
		}
		return containers[0].(map[string]any)
	}
	t.Run("image, pull policy, resources and arguments of a component", func(t *testing.T) {
		got := container(t, templated(t, "image.pullPolicy=Always", "controller.image=mine/controller@sha256:1", "controller.extraArgs={--v=4}", "controller.resources.limits.memory=1Gi"), "berth-controller")
		for field, want := range map[string]any{
			"image": "mine/controller@sha256:1", "imagePullPolicy": "Always", "args": []any{"--webhook-certs=managed", "--metrics-bind-address=:8443", "--v=4"},
			"resources": map[string]any{"requests": map[string]any{"cpu": "100m", "memory": "128Mi"}, "limits": map[string]any{"memory": "1Gi"}},
		} {
			if diff := cmp.Diff(want, got[field]); diff != "" {
				t.Errorf("%s (-want +got):\n%s", field, diff)
			}
		}
	})
	t.Run("a node autoscaler that Berth cannot see", func(t *testing.T) {
		got := container(t, templated(t, "nodeAutoscaler=present"), "berth-controller")["args"]
		if diff := cmp.Diff([]any{"--webhook-certs=managed", "--metrics-bind-address=:8443", "--node-autoscaler=present"}, got); diff != "" {
			t.Errorf("args (-want +got):\n%s", diff)
		}
	})
	t.Run("a controller without webhooks", func(t *testing.T) {
		objects := templated(t, "admission.enabled=false", "budgets.enabled=false")
		for _, object := range objects {
			if kind := object.GetKind(); strings.HasSuffix(kind, "WebhookConfiguration") || kind == "Service" || kind == "Secret" {
				t.Errorf("%s %s is left", kind, object.GetName())
			}
		}
		if diff := cmp.Diff([]any{"--webhooks=false", "--metrics-bind-address=:8443", "--budgets=false"}, container(t, objects, "berth-controller")["args"]); diff != "" {
			t.Errorf("args (-want +got):\n%s", diff)
		}
	})
	t.Run("UnitedDeployments that are left alone", func(t *testing.T) {
		objects := templated(t, "unitedDeployments.enabled=false")
		for _, object := range objects {
			if object.GetName() == "berth-united" {
				t.Errorf("%s %s is left", object.GetKind(), object.GetName())
			}
		}
		if diff := cmp.Diff([]any{"--webhook-certs=managed", "--metrics-bind-address=:8443", "--united-deployments=false"}, container(t, objects, "berth-controller")["args"]); diff != "" {
			t.Errorf("args (-want +got):\n%s", diff)
		}
		left := byName(t, templated(t))
		for name := range byName(t, kustomized(t, "manifests/united")) {
			delete(left, name)
		}
		delete(left, "networking.k8s.io/v1 NetworkPolicy berth-system/berth-united")
		if diff := cmp.Diff(slices.Sorted(maps.Keys(left)), slices.Sorted(maps.Keys(byName(t, objects)))); diff != "" {
			t.Errorf("objects (-want +got):\n%s", diff)
		}
	})
	t.Run("a hub that leaves UnitedDeployments alone", func(t *testing.T) {
		objects := templated(t, "unitedDeployments.enabled=false", "federation.enabled=true", "controller.image=mine/controller:1")
		got := container(t, objects, "berth-united")
		want := []any{"--only-workloads=true", "--metrics-bind-address=:8443", "--shutdown-delay=0s", "--united-deployments=false", "--federation=true"}
		if diff := cmp.Diff(want, got["args"]); diff != "" || got["image"] != "mine/controller:1" {
			t.Errorf("image %s, args (-want +got):\n%s", got["image"], diff)
		}
		for _, object := range objects {
			if object.GetName() == "berth-united" && strings.HasPrefix(object.GetKind(), "ClusterRole") {
				t.Errorf("%s %s is left", object.GetKind(), object.GetName())
			}
		}
	})
	t.Run("a configuration of the scheduler has a name of its own", func(t *testing.T) {
		objects := templated(t, `scheduler.config=leaderElection: {resourceNamespace: berth-system\, resourceName: berth-scheduler}`)
		var name string
		for _, object := range objects {
			if object.GetKind() == "ConfigMap" && strings.HasPrefix(object.GetName(), "berth-scheduler-config-") {
				name = object.GetName()
			}
		}
		volumes, _, err := unstructured.NestedSlice(find(t, objects, "Deployment", "berth-scheduler").Object, append(podSpec, "volumes")...)
		if err != nil {
			t.Fatal(err)
		}
		want := []any{map[string]any{"name": "config", "configMap": map[string]any{"name": name}}}
		if diff := cmp.Diff(want, volumes); diff != "" {
			t.Errorf("volumes (-want +got):\n%s", diff)
		}
		if shipped := byName(t, templated(t)); shipped["v1 ConfigMap berth-system/"+name] != nil {
			t.Errorf("%s is also the name of the configuration that is shipped", name)
		}
	})
	t.Run("namespaces that are left alone", func(t *testing.T) {
		objects := templated(t, "admission.excludedNamespaces={infra}", "budgets.excludedNamespaces={kube-system,data}")
		for _, configuration := range []struct {
			kind, name string
			want       []any
		}{
			{"MutatingWebhookConfiguration", "berth-webhook", []any{"infra", "berth-system"}},
			{"MutatingWebhookConfiguration", "berth-budget", []any{"kube-system", "data", "berth-system"}},
			{"ValidatingWebhookConfiguration", "berth-budget", []any{"kube-system", "data", "berth-system"}},
			{"ValidatingAdmissionPolicy", "berth-eviction", []any{"kube-system", "data", "berth-system"}},
		} {
			object := find(t, objects, configuration.kind, configuration.name)
			lists := excludedNamespaces(object.Object)
			if len(lists) == 0 {
				t.Errorf("%s %s excludes no namespace", configuration.kind, configuration.name)
			}
			for _, got := range lists {
				if diff := cmp.Diff(configuration.want, got); diff != "" {
					t.Errorf("%s %s (-want +got):\n%s", configuration.kind, configuration.name, diff)
				}
			}
		}
	})
}

// excludedNamespaces returns the namespace names that selectors anywhere in the object exclude.
func excludedNamespaces(value any) (lists [][]any) {
	switch value := value.(type) {
	case map[string]any:
		if names, ok := value["values"].([]any); ok && value["key"] == "kubernetes.io/metadata.name" {
			return [][]any{names}
		}
		for _, field := range value {
			lists = append(lists, excludedNamespaces(field)...)
		}
	case []any:
		for _, item := range value {
			lists = append(lists, excludedNamespaces(item)...)
		}
	}
	return lists
}
