package install

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/berth-project/berth/pkg/endpoint"
	"github.com/berth-project/berth/test/harness"
)

// served has objects that Berth serves, with pods that are admitted, protected, and created by it.
const served = `
apiVersion: v1
kind: Namespace
metadata: {name: served, labels: {berth.dev/admission: required}}
---
apiVersion: apps.kruise.io/v1beta1
kind: WorkloadSpread
metadata: {name: web}
spec: {targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, subsets: [{name: all}]}
---
apiVersion: policy.kruise.io/v1alpha1
kind: PodUnavailableBudget
metadata: {name: web}
spec: {selector: {matchLabels: {app: web}}, maxUnavailable: 0}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {terminationGracePeriodSeconds: 0, containers: [{name: main, image: "registry.k8s.io/pause:3.10"}]}
---
apiVersion: apps.kruise.io/v1alpha1
kind: UnitedDeployment
metadata: {name: united}
spec:
  replicas: 1
  selector: {matchLabels: {app: united}}
  template:
    deploymentTemplate:
      metadata: {labels: {app: united}}
      spec:
        template:
          metadata: {labels: {app: united}}
          spec: {terminationGracePeriodSeconds: 0, containers: [{name: main, image: "registry.k8s.io/pause:3.10"}]}
  topology: {subsets: [{name: all}]}
`

// waiting is a pod without a node that names Berth's scheduler.
const waiting = `
apiVersion: v1
kind: Pod
metadata: {name: waiting}
spec: {schedulerName: berth-scheduler, nodeSelector: {nowhere: "true"}, containers: [{name: main, image: "registry.k8s.io/pause:3.10"}]}
`

// far has a SidecarSet, and the two kinds of objects to which the hub adds a finalizer.
const far = `
apiVersion: apps.kruise.io/v1alpha1
kind: SidecarSet
metadata: {name: web}
spec: {selector: {matchLabels: {app: nothing}}, containers: [{name: log, image: "registry.k8s.io/pause:3.10"}]}
---
apiVersion: apps.kruise.io/v1alpha1
kind: UnitedDeployment
metadata: {name: far}
spec:
  replicas: 1
  selector: {matchLabels: {app: far}}
  template:
    deploymentTemplate:
      metadata: {labels: {app: far}}
      spec:
        template:
          metadata: {labels: {app: far}}
          spec: {containers: [{name: main, image: "registry.k8s.io/pause:3.10"}]}
  topology: {subsets: [{name: away, targetCluster: {name: away}}]}
---
apiVersion: federation.berth.dev/v1alpha1
kind: FederatedReplicaSet
metadata: {name: far, annotations: {federation.berth.dev/cascade: "true"}}
spec:
  replicas: 1
  selector: {matchLabels: {app: far}}
  template: {metadata: {labels: {app: far}}, spec: {containers: [{name: main, image: "registry.k8s.io/pause:3.10"}]}}
`

// TestRemovalWithBerthDead removes Berth part by part, as docs/install.md says, six times, in two clusters. Each time, all processes are killed before another part is deleted, and none
// starts after that. Of Berth nothing is left but the definitions, and no deletion waits for it. The first time there are SidecarSets and a hub too. Before the parts that have no round
// of their own, no process lives, or none has anything to do with what was deleted since the previous round: see expectRoundsSuffice.
// TestInstallWithKustomize and TestInstallWithHelm remove all parts at once, and the definitions.
func TestRemovalWithBerthDead(t *testing.T) {
	t.Parallel()
	optional := []string{"sidecar", "rules", "federation/hub"}
	for _, rounds := range [][]string{{beforeAll, "budget", "webhook"}, {"united", "controller", "scheduler"}} {
		t.Run("rounds from "+rounds[0], func(t *testing.T) {
			t.Parallel()
			c, k := start(t)
			dir := t.TempDir()
			if err := os.Symlink(harness.Root(), filepath.Join(dir, "berth")); err != nil {
				t.Fatal(err)
			}
			c = c.in(dir)
			before, parts := c.objects(t), partsOf(t)
			for _, diesBefore := range rounds {
				if !t.Run("Berth dies before "+diesBefore, func(t *testing.T) {
					if diesBefore == beforeAll {
						c.installAndUse(t, k, optional...)
						c.apply(t, "default", far)
						c.kubectl(t, "wait", "--for=jsonpath={.metadata.finalizers[0]}", "--timeout=60s", "uniteddeployment/far", "federatedreplicaset/far")
						k.kill(t)
						c.kubectl(t, "delete", "--timeout=60s", "namespace", "served")
						c.removeFinalizers(t)
						c.kubectl(t, "delete", "--timeout=60s", "uniteddeployment/far", "federatedreplicaset/far")
						c.removeParts(t, slices.Concat(optional, parts), func(string) {})
					} else {
						c.installAndUse(t, k)
						c.removeParts(t, parts, func(part string) {
							if part == diesBefore {
								expectRoundsSuffice(t, k, parts, part)
								k.kill(t)
								c.kubectl(t, "delete", "--wait=false", "namespace", "served")
							}
						})
					}
					c.expectLeft(t, before, definitions)
				}) {
					return
				}
			}
		})
	}
}

// beforeAll is the round in which Berth dies before any part is deleted.
const beforeAll = "the removal"

// expectRoundsSuffice checks why the other parts need no round. The parts before budget delete only the descheduler, which is no process that serves anybody, and network policies, which no
// process reads. Later each process ends with its part. Before the last one lives only the scheduler, and so nothing lives after it.
func expectRoundsSuffice(t *testing.T, k *kubelet, parts []string, before string) {
	t.Helper()
	first := slices.Index(parts, "budget")
	for _, part := range parts[:first] {
		if !strings.HasPrefix(part, "descheduler/") && part != "network" {
			t.Errorf("part %s comes before budget and has no round", part)
		}
	}
	order := []string{"budget", "webhook", "united", "controller", "scheduler"}
	if rest := parts[first:]; !slices.Equal(rest, append(slices.Clone(order), "policy", "base")) {
		t.Errorf("the parts %q are deleted in this order, which needs other rounds", rest)
	}
	at := slices.Index(order, before)
	waitFor(t, "the processes of the deleted parts to end", func(context.Context) (string, error) {
		for i, component := range order {
			for _, p := range k.of(component) {
				if p.running() && i < at {
					return component + " runs", nil
				}
			}
		}
		return "", nil
	})
}

// definitions stay if Berth is removed part by part.
var definitions = func() []string {
	var names []string
	for _, name := range append([]string{endpoint.UnitedDefinition}, endpoint.Definitions...) {
		names = append(names, "customresourcedefinitions//"+name)
	}
	return names
}()

// partsOf returns the parts in the order in which docs/install.md deletes them.
func partsOf(t *testing.T) []string {
	t.Helper()
	for _, line := range []string{"kubectl delete --ignore-not-found -k berth/manifests/$part", "write `sidecar`, `rules` and `federation/hub` before the other parts"} {
		if !strings.Contains(guide(t), line) {
			t.Errorf("docs/install.md does not say %q", line)
		}
	}
	loop := regexp.MustCompile(`for part in (.*); do`).FindStringSubmatch(guide(t))
	if loop == nil {
		t.Fatal("docs/install.md has no loop over the parts")
	}
	return strings.Fields(loop[1])
}

// installAndUse installs Berth with one replica of each component and these components of kustomize, and has it act on an object of each kind.
func (c *cluster) installAndUse(t *testing.T, k *kubelet, components ...string) {
	t.Helper()
	kustomizationOf(t, c.dir, "v1")
	file, err := os.OpenFile(filepath.Join(c.dir, "kustomization.yaml"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	more := "replicas: [{name: berth-scheduler, count: 1}, {name: berth-controller, count: 1}, {name: berth-united, count: 1}]\ncomponents:\n"
	for _, component := range components {
		more += "- berth/manifests/" + component + "\n"
	}
	if _, err := file.WriteString(more); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	k.revive()
	c.documented(t, "kubectl apply -k .")
	expectRunning(t, k, "scheduler", "controller", "united")
	c.awaitWatches(t)
	c.apply(t, "served", served)
	c.apply(t, "default", waiting)
	c.kubectl(t, "-n", "served", "wait", "--for=condition=Enforcing", "--timeout=60s", "podunavailablebudget/web")
	c.kubectl(t, "-n", "served", "wait", "--for=condition=Ready", "--timeout=60s", "workloadspread/web", "uniteddeployment/united")
}

// removeParts deletes part by part, calls first before each, and does then what docs/install.md says for the end.
func (c *cluster) removeParts(t *testing.T, parts []string, first func(part string)) {
	t.Helper()
	for _, part := range parts {
		first(part)
		c.kubectl(t, "delete", "--ignore-not-found", "--timeout=60s", "-k", "berth/manifests/"+part)
	}
	commands, err := harness.Commands("install.md", "## Removal")
	if err != nil {
		t.Fatal(err)
	}
	if output, err := c.run(t, "", "bash", "-euo", "pipefail", "-c", commands); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	c.documented(t, "kubectl delete pods -A --field-selector spec.schedulerName=berth-scheduler,spec.nodeName=", "--timeout=60s")
}

// removeFinalizers runs the command by which docs/install.md replaces a hub that is dead.
func (c *cluster) removeFinalizers(t *testing.T) {
	t.Helper()
	_, block, _ := strings.Cut(guide(t), "remove the finalizers:\n\n```shell\n")
	block, _, found := strings.Cut(block, "```\n")
	if !found {
		t.Fatal("docs/install.md does not say how to remove finalizers")
	}
	if output, err := c.run(t, "", "bash", "-euo", "pipefail", "-c", block); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
}

// objects returns the objects of all kinds that an installation or its removal may change, with their finalizers.
func (c *cluster) objects(t *testing.T) map[string]string {
	t.Helper()
	config := c.RESTConfig()
	config.WarningHandler = rest.NoWarnings{} // of kinds that are deprecated
	client, err := metadata.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	lists, err := c.client.Discovery().ServerPreferredResources()
	if err != nil {
		t.Fatal(err)
	}
	objects := map[string]string{}
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, resource := range list.APIResources {
			if resource.Name == "events" || resource.Name == "apiservices" || !slices.Contains(resource.Verbs, "list") {
				continue // each definition has APIServices
			}
			found, err := client.Resource(version.WithResource(resource.Name)).List(t.Context(), metav1.ListOptions{})
			if apierrors.IsNotFound(err) {
				continue // its definition was deleted since
			}
			if err != nil {
				t.Fatal(err)
			}
			for i := range found.Items {
				object := &found.Items[i]
				objects[strings.Join([]string{resource.Name, object.Namespace, object.Name}, "/")] = strings.Join(object.Finalizers, " ")
			}
		}
	}
	return objects
}

// expectLeft waits until the cluster has the objects that it had before, and more of them only if they may be left.
func (c *cluster) expectLeft(t *testing.T, before map[string]string, mayBeLeft []string) {
	t.Helper()
	waitFor(t, "the cluster to be as before", func(ctx context.Context) (string, error) {
		now := c.objects(t)
		var differ []string
		namespaces, err := c.client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		for _, n := range namespaces.Items {
			for _, condition := range n.Status.Conditions {
				if condition.Status == corev1.ConditionTrue { // what its deletion waits for
					differ = append(differ, fmt.Sprintf("namespace %s: %s", n.Name, condition.Message))
				}
			}
		}
		for name, finalizers := range now {
			if was, known := before[name]; (!known || was != finalizers) && !slices.Contains(mayBeLeft, name) {
				differ = append(differ, fmt.Sprintf("%s is left, finalizers %q", name, finalizers))
			}
		}
		for name := range before {
			if _, is := now[name]; !is {
				differ = append(differ, name+" is missing")
			}
		}
		slices.Sort(differ)
		return strings.Join(differ, "\n"), nil
	})
}
