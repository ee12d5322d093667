package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	policyv1beta1 "github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	oldunited "github.com/berth-project/berth/pkg/crd/united/v1alpha1"
	unitedv1beta1 "github.com/berth-project/berth/pkg/crd/united/v1beta1"
)

// unitedArticles are the examples of the articles about UnitedDeployments, with the templates that they leave out. %s is the version.
const unitedArticles = `
apiVersion: apps.kruise.io/%[1]s
kind: UnitedDeployment
metadata: {name: sample-ud}
spec:
  replicas: 6
  selector: {matchLabels: {app: sample}}
  template:
    cloneSetTemplate:
      metadata: {labels: {app: sample}}
      spec:
        template:
          metadata: {labels: {app: sample}}
          spec: {containers: [{name: main, image: registry.k8s.io/pause:3.10}]}
  topology:
    subsets:
    - name: ecs
      nodeSelectorTerm: {matchExpressions: [{key: node-type, operator: In, values: [ecs]}]}
      maxReplicas: 2
    - name: acs-serverless
      nodeSelectorTerm: {matchExpressions: [{key: node-type, operator: In, values: [acs-virtual-kubelet]}]}
---
apiVersion: apps.kruise.io/%[1]s
kind: UnitedDeployment
metadata: {name: elastic-app}
spec:
  selector: {matchLabels: {app: elastic}}
  template:
    deploymentTemplate:
      spec:
        template:
          metadata: {labels: {app: elastic}}
          spec: {containers: [{name: main, image: registry.k8s.io/pause:3.10}]}
  topology:
    scheduleStrategy:
      type: Adaptive
      adaptive: {rescheduleCriticalSeconds: 10, unschedulableLastSeconds: 3600}
    subsets:
    - name: ecs
      nodeSelectorTerm: {matchExpressions: [{key: type, operator: NotIn, values: [acs-virtual-kubelet]}]}
    - name: acs-serverless
      nodeSelectorTerm: {matchExpressions: [{key: type, operator: In, values: [acs-virtual-kubelet]}]}
      patch: {spec: {containers: [{name: main, env: [{name: APP_RUNTIME_MODE, value: SERVERLESS}]}]}}
---
apiVersion: apps.kruise.io/%[1]s
kind: UnitedDeployment
metadata: {name: my-app}
spec:
  replicas: 4
  selector: {matchLabels: {app: my-app}}
  template:
    deploymentTemplate:
      spec:
        template:
          metadata: {labels: {app: my-app}}
          spec: {containers: [{name: main, image: registry.k8s.io/pause:3.10}]}
  topology:
    subsets:
    - name: intel
      replicas: 50%%
      nodeSelectorTerm: {matchExpressions: [{key: cpu, operator: In, values: [intel]}]}
      patch: {spec: {containers: [{name: main, resources: {limits: {cpu: 2000m, memory: 4000Mi}}}]}}
    - name: amd64
      replicas: 25%%
      nodeSelectorTerm: {matchExpressions: [{key: cpu, operator: In, values: [amd]}]}
      patch: {spec: {containers: [{name: main, resources: {limits: {cpu: 3000m, memory: 4000Mi}}}]}}
    - name: yitian-arm
      replicas: 25%%
      nodeSelectorTerm: {matchExpressions: [{key: cpu, operator: In, values: [yitian]}]}
      patch: {spec: {containers: [{name: main, resources: {limits: {cpu: 2000m, memory: 6000Mi}}}]}}
---
apiVersion: apps.kruise.io/%[1]s
kind: UnitedDeployment
metadata: {name: rollout}
spec:
  replicas: 8
  selector: {matchLabels: {app: rollout}}
  template:
    statefulSetTemplate:
      spec:
        template:
          metadata: {labels: {app: rollout}}
          spec: {containers: [{name: main, image: registry.k8s.io/pause:3.10}]}
  topology:
    subsets: [{name: subset-a, replicas: 4}, {name: subset-b, replicas: 2}, {name: subset-c, replicas: 2}]
  updateStrategy: {type: Manual, manualUpdate: {partitions: {subset-a: 2, subset-b: 1, subset-c: 1}}}
`

var unitedResources = map[string]string{oldunited.GroupVersion.Version: "v1alpha1", unitedv1beta1.GroupVersion.Version: "v1beta1"}

func TestUnitedDeploymentsOfTheArticlesAreTaken(t *testing.T) {
	cloneSets.serve(t, true)
	for version := range unitedResources {
		t.Run(version, func(t *testing.T) {
			ns := namespace(t)
			log := create(t, ns, fmt.Sprintf(unitedArticles, version), true)
			if strings.Contains(log, "Warning") {
				t.Error(log)
			}
			// Clients of both versions see the same spec.
			for _, name := range []string{"sample-ud", "elastic-app", "my-app", "rollout"} {
				var specs []any
				for _, version := range unitedResources {
					resource := unitedv1beta1.GroupVersion.WithResource(unitedv1beta1.Resource.Resource)
					resource.Version = version
					object, err := the.Dynamic.Resource(resource).Namespace(ns).Get(t.Context(), name, getOptions)
					if err != nil {
						t.Fatal(err)
					}
					specs = append(specs, object.Object["spec"])
				}
				if diff := cmp.Diff(specs[0], specs[1]); diff != "" {
					t.Errorf("%s (-one +other):\n%s", name, diff)
				}
			}
		})
	}
}

// create creates what is in a manifest with kubectl, and returns what it says on stderr.
func create(t *testing.T, ns, manifest string, taken bool) (log string) {
	t.Helper()
	return withManifest(t, ns, "create", manifest, taken)
}

func withManifest(t *testing.T, ns, command, manifest string, taken bool) (log string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "manifest.yaml")
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	_, log, failed := kubectl(t, command, "-n", ns, "-f", file)
	if failed == taken {
		t.Fatalf("taken is %t, want %t: %s", !failed, taken, log)
	}
	return log
}

// unitedOf is a UnitedDeployment with pods of a label. %s in the fields is not replaced.
func unitedOf(version, name, fields string) string {
	return "{apiVersion: apps.kruise.io/" + version + ", kind: UnitedDeployment, metadata: {name: " + name + "}, spec: {" + fields + "}}"
}

const (
	unitedSelector = "selector: {matchLabels: {app: web}}, "
	unitedTemplate = "template: {deploymentTemplate: {spec: {template: {metadata: {labels: {app: web}}, spec: {containers: [{name: main, image: registry.k8s.io/pause:3.10}]}}}}}, "
)

func TestAnInvalidUnitedDeploymentIsRefusedWithAllItsErrors(t *testing.T) {
	ns := namespace(t)
	for name, tc := range map[string]struct {
		fields string
		want   []string
	}{
		"what the definition says": {unitedSelector + "template: {deploymentTemplate: {}, cloneSetTemplate: {}}, updateStrategy: {maxSurge: 0%}, topology: {scheduleStrategy: {adaptive: {unschedulableDuration: 1, unschedulableLastSeconds: 1}}, " +
			"subsets: [{name: A, replicas: -1}, {name: b, replicas: few, minReplicas: 3, maxReplicas: 2}, {name: d, replicas: 60%, maxReplicas: 200%}, {name: c, replicas: 50%, minReplicas: 30%, maxReplicas: 20%}]}",
			[]string{"spec.template: Invalid value", "children have one kind", "spec.updateStrategy.maxSurge", "must be above 0", "spec.topology.scheduleStrategy.adaptive: Invalid value", "only used with type: Adaptive",
				"spec.topology.scheduleStrategy.adaptive.unschedulableLastSeconds", "spec.topology.subsets[0].name", "must be a DNS label", "spec.topology.subsets[0].replicas", "must not be negative", "spec.topology.subsets[1].replicas",
				"must be a count or a percentage", "spec.topology.subsets[1].minReplicas", "spec.topology.subsets[3].minReplicas", "must not be greater than maxReplicas", "spec.topology.subsets[2].maxReplicas",
				"must not add up to more than 100%", "use either replicas or the others"}},
		"replicas with Adaptive": {unitedSelector + unitedTemplate + "topology: {scheduleStrategy: {type: Adaptive}, subsets: [{name: a, replicas: 1}]}", []string{"with type: Adaptive subsets take over from each other"}},
		"what the webhook says": {unitedTemplate + "topology: {subsets: [{name: a, patch: {spec: {containers: [{name: main, imagee: x}]}}, tolerations: [{operator: Equal}], nodeSelectorTerm: {matchExpressions: [{key: zone, operator: Among}]}}]}, " +
			"updateStrategy: {manualUpdate: {partitions: {z: 1}}}",
			[]string{"spec.selector: Required value", "spec.topology.subsets[0].patch.spec.containers[0].imagee", "spec.topology.subsets[0].tolerations[0].operator", "spec.topology.subsets[0].nodeSelectorTerm.matchExpressions[0].operator",
				"spec.updateStrategy.manualUpdate.partitions[z]"}},
		"two subsets of a name": {unitedSelector + unitedTemplate + "topology: {subsets: [{name: a}, {name: a}]}", []string{"spec.topology.subsets[1]: Duplicate value"}},
		"no template":           {unitedSelector + "topology: {subsets: [{name: a}]}", []string{"spec.template: Required value: needs one of"}},
	} {
		for version := range unitedResources {
			t.Run(name+" in "+version, func(t *testing.T) {
				log := create(t, ns, unitedOf(version, "bad", tc.fields), false)
				for _, want := range tc.want {
					if !strings.Contains(log, want) {
						t.Errorf("no %s in %s", want, log)
					}
				}
			})
		}
	}
	t.Run("a change that nobody may make", func(t *testing.T) {
		apply(t, ns, unitedOf("v1beta1", "web", unitedSelector+unitedTemplate+"replicas: 0, topology: {subsets: [{name: a}, {name: b}]}"))
		changed := unitedOf("v1alpha1", "web", strings.ReplaceAll(unitedSelector+unitedTemplate, "app: web", "app: shop")+"replicas: 0, topology: {subsets: [{name: a, tolerations: [{operator: Exists}]}]}")
		var log string
		if err := the.WaitFor(t.Context(), "no write of the status between the read and the write of kubectl replace", func(context.Context) (string, error) {
			if log = withManifest(t, ns, "replace", changed, false); strings.Contains(log, "(Conflict)") {
				return log, nil
			}
			return "", nil
		}); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"spec.selector: Forbidden", "spec.topology.subsets[0].tolerations: Forbidden", "add a subset with another name"} {
			if !strings.Contains(log, want) {
				t.Errorf("no %s in %s", want, log)
			}
		}
		apply(t, ns, unitedOf("v1beta1", "web", unitedSelector+"replicas: 0, topology: {subsets: [{name: a}]}")) // an empty template is possible
	})
}

// child makes a Deployment that a UnitedDeployment controls. The UnitedDeployment gets no template, so that its controller leaves the child alone.
func child(t *testing.T, ns, name string, replicas int) {
	t.Helper()
	const spec = unitedSelector + "replicas: %d, topology: {subsets: [{name: a}, {name: b}]}"
	united := the.Dynamic.Resource(unitedv1beta1.Resource).Namespace(ns)
	if _, err := united.Get(t.Context(), "shop", getOptions); apierrors.IsNotFound(err) {
		apply(t, ns, unitedOf("v1beta1", "shop", unitedTemplate+fmt.Sprintf(spec, 0)))
	}
	apply(t, ns, unitedOf("v1beta1", "shop", fmt.Sprintf(spec, 2*replicas)))
	owner, err := united.Get(t.Context(), "shop", getOptions)
	if err != nil {
		t.Fatal(err)
	}
	apply(t, ns, fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata:
  name: %[1]s
  labels: {app: web, apps.kruise.io/subset-name: %[1]s}
  ownerReferences: [{apiVersion: %[2]s, kind: UnitedDeployment, name: shop, uid: %[3]s, controller: true, blockOwnerDeletion: true}]
spec:
  replicas: %[4]d
  selector: {matchLabels: {app: web, apps.kruise.io/subset-name: %[1]s}}
  template:
    metadata: {labels: {app: web, apps.kruise.io/subset-name: %[1]s}}
    spec: {containers: [{name: main, image: registry.k8s.io/pause:3.10}]}
`, name, unitedv1beta1.GroupVersion, owner.GetUID(), replicas))
}

func TestASpreadOfAChildIsRefused(t *testing.T) {
	pools(t, "a", "b")
	ns := namespace(t)
	spread := func(name, kind, max string) string {
		return spreadFor(name, map[string]string{"Deployment": "apps/v1", "UnitedDeployment": "apps.kruise.io/v1alpha1"}[kind], kind, name, fmt.Sprintf(twoPools, max))
	}
	create(t, ns, spread("b", "Deployment", "1"), true)
	child(t, ns, "a", 1)
	child(t, ns, "b", 1)
	for what, manifest := range map[string]string{"the child": spread("a", "Deployment", "1"), "the UnitedDeployment": spread("shop", "UnitedDeployment", "1")} {
		waitFor(t, "the refusal of a spread of "+what, func(context.Context) (string, error) { // the webhook's cache sees the child soon
			file := filepath.Join(t.TempDir(), "spread.yaml")
			if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
				return "", err
			}
			_, log, failed := kubectl(t, "create", "--dry-run=server", "-n", ns, "-f", file)
			if !failed || !strings.Contains(log, "spec.targetRef") || !strings.Contains(log, "put the numbers into spec.topology.subsets of the UnitedDeployment") {
				return "taken: " + log, nil
			}
			return "", nil
		})
	}
	waitFor(t, "a warning for a spread that was there first", func(context.Context) (string, error) {
		file := filepath.Join(t.TempDir(), "spread.yaml")
		if err := os.WriteFile(file, []byte(spread("b", "Deployment", "2")), 0o600); err != nil {
			return "", err
		}
		_, log, failed := kubectl(t, "replace", "--dry-run=server", "-n", ns, "-f", file)
		if failed && !strings.Contains(log, "(Conflict)") { // its status may be written between the read and the write of kubectl replace
			return "", fmt.Errorf("refused: %s", log)
		}
		if !strings.Contains(log, "Warning: spec.targetRef: Deployment b is a child of UnitedDeployment shop") {
			return log, nil
		}
		return "", nil
	})
}

// TestABudgetOfAUnitedDeploymentCoversThePodsOfAllChildren: they are found through their owners and the scale subresource, as those of any workload.
func TestABudgetOfAUnitedDeploymentCoversThePodsOfAllChildren(t *testing.T) {
	pools(t, "a", "b")
	ns := namespace(t)
	t.Cleanup(func() {
		if err := the.Dynamic.Resource(policyv1beta1.Resource).Namespace(ns).Delete(context.Background(), "shop", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	child(t, ns, "a", 2)
	child(t, ns, "b", 2)
	status := []byte(`{"status":{"replicas":4,"labelSelector":"app=web"}}`)
	if _, err := the.Dynamic.Resource(unitedv1beta1.Resource).Namespace(ns).Patch(t.Context(), "shop", types.MergePatchType, status, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	apply(t, ns, plain("other", 1)) // its pod does not count
	apply(t, ns, "{apiVersion: policy.kruise.io/v1beta1, kind: PodUnavailableBudget, metadata: {name: shop}, spec: {targetRef: {apiVersion: apps.kruise.io/v1beta1, kind: UnitedDeployment, name: shop}, minAvailable: 100%}}")
	expectEnforced(t, ns, "shop", 4)
	total := func(object *unstructured.Unstructured) int64 {
		total, _, _ := unstructured.NestedInt64(object.Object, "status", "totalReplicas")
		return total
	}
	budget, err := the.Dynamic.Resource(policyv1beta1.Resource).Namespace(ns).Get(t.Context(), "shop", getOptions)
	if err != nil {
		t.Fatal(err)
	}
	if got := total(budget); got != 4 {
		t.Errorf("the budget is of %d replicas, want 4", got)
	}
	pods, err := the.Pods(t.Context(), ns)
	if err != nil {
		t.Fatal(err)
	}
	for i := range pods {
		err := the.Client.CoreV1().Pods(ns).Delete(t.Context(), pods[i].Name, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
		if refused := apierrors.IsTooManyRequests(err); refused != (pods[i].Labels["app"] == "web") {
			t.Errorf("pod %s of %s: %v", pods[i].Name, pods[i].Labels["app"], err)
		}
	}
}
