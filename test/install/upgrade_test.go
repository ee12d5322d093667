package install

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/berth-project/berth/test/checker"
	"github.com/berth-project/berth/test/harness"
)

var previousPrograms = flag.String("previous-programs", "", "directory with the programs of the previous version; empty: those of bin run under its manifests")

// previousVersion is the version before this one. Its chart is in testdata. Until there is a release, it is the state of the main branch that testdata/README.md names.
const previousVersion = "v0.1.0"

// load is a workload of its own, which is changed all the time. Its budget never lets fewer than four pods be available, and its scale-downs never leave fewer than eight.
const load = `
apiVersion: apps.kruise.io/v1alpha1
kind: WorkloadSpread
metadata: {name: load}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: load}
  subsets:
  - {name: a, maxReplicas: 3, requiredNodeSelectorTerm: {matchExpressions: [{key: topology.kubernetes.io/zone, operator: In, values: [zone-a]}]}}
  - {name: b, maxReplicas: 4, requiredNodeSelectorTerm: {matchExpressions: [{key: topology.kubernetes.io/zone, operator: In, values: [zone-b]}]}}
  - {name: c, requiredNodeSelectorTerm: {matchExpressions: [{key: topology.kubernetes.io/zone, operator: In, values: [zone-c]}]}}
---
apiVersion: policy.kruise.io/v1alpha1
kind: PodUnavailableBudget
metadata: {name: load}
spec: {selector: {matchLabels: {app: load}}, minAvailable: 4}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: load}
spec:
  replicas: 8
  selector: {matchLabels: {app: load}}
  template:
    metadata: {labels: {app: load}}
    spec: {containers: [{name: main, image: "registry.k8s.io/pause:3.10"}]}
`

// available counts the pods of a workload that are Ready, at every event of the API server.
type available struct {
	ready map[string]bool
	least int
	// allowed and refused count evictions.
	allowed, refused int
}

// disturb scales the workload load, and evicts its pods as fast as the budget lets it, until it is stopped. stop returns what it has seen.
func (c *cluster) disturb(t *testing.T) (stop func() available) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	seen := available{ready: map[string]bool{}}
	pods := c.client.CoreV1().Pods("default")
	isReady := func(pod *corev1.Pod) bool {
		return pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.Conditions, func(is corev1.PodCondition) bool {
			return is.Type == corev1.PodReady && is.Status == corev1.ConditionTrue
		})
	}
	list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: "app=load"})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		if isReady(&list.Items[i]) {
			seen.ready[list.Items[i].Name] = true
		}
	}
	seen.least = len(seen.ready)
	watching, err := pods.Watch(ctx, metav1.ListOptions{LabelSelector: "app=load", ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	watched, evicted := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		for e := range watching.ResultChan() {
			pod, is := e.Object.(*corev1.Pod)
			if !is {
				if ctx.Err() == nil {
					t.Errorf("the watch of pods: %v", e.Object)
				}
				return
			}
			delete(seen.ready, pod.Name)
			if e.Type != watch.Deleted && isReady(pod) {
				seen.ready[pod.Name] = true
			}
			seen.least = min(seen.least, len(seen.ready))
		}
		if ctx.Err() == nil {
			t.Error("the watch of pods ended, so events are missing")
		}
	}()
	go func() {
		defer close(evicted)
		random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // pods to disturb
		deployments := c.client.AppsV1().Deployments("default")
		for turn := 0; ctx.Err() == nil; turn++ {
			if turn%10 == 0 {
				if scale, err := deployments.GetScale(ctx, "load", metav1.GetOptions{}); err == nil {
					scale.Spec.Replicas = 8 + random.Int32N(5)
					if _, err := deployments.UpdateScale(ctx, "load", scale, metav1.UpdateOptions{}); err != nil && ctx.Err() == nil && !apierrors.IsConflict(err) {
						t.Error(err)
					}
				}
			}
			list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: "app=load"})
			if err != nil || len(list.Items) == 0 {
				continue
			}
			pod := &list.Items[random.IntN(len(list.Items))]
			err = pods.EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod.Name}})
			switch {
			case err == nil:
				seen.allowed++
			case ctx.Err() == nil:
				seen.refused++
			}
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond): // a load, and not an attack
			}
		}
	}()
	return func() available {
		cancel()
		<-watched
		<-evicted
		return seen
	}
}

// placesOf are the nodes of the example's pods, by UID.
func (c *cluster) placesOf(t *testing.T) map[string]string {
	t.Helper()
	pods, err := c.client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app=api"})
	if err != nil {
		t.Fatal(err)
	}
	places := map[string]string{}
	for _, pod := range pods.Items {
		places[string(pod.UID)] = pod.Spec.NodeName
	}
	return places
}

// helm runs Helm, and waits until what it has changed is there.
func (c *cluster) helm(t *testing.T, args ...string) {
	t.Helper()
	if output, err := c.run(t, "", "helm", append(args, "--namespace=kube-system", "--wait", "--timeout=80s")...); err != nil {
		t.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, output)
	}
}

// chartOf are arguments of Helm: the chart of a version in the registry.
func (r *registry) chartOf(version string) []string {
	return []string{"oci://" + r.address + "/berth-project/charts/berth", "--version", strings.TrimPrefix(version, "v"), "--plain-http"}
}

// inUse is a cluster with two workloads that have spreads and budgets. One of them is scaled and evicted all the time, and the other one rests.
type inUse struct {
	*cluster
	k      *kubelet
	r      *registry
	quotas *checker.Checker
	// places are the nodes of the pods that rest.
	places      map[string]string
	stop        func() available
	stopWatches context.CancelFunc
}

func (c *cluster) putToUse(t *testing.T, k *kubelet, r *registry) *inUse {
	t.Helper()
	client, err := dynamic.NewForConfig(c.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	watching, stopWatching := context.WithCancel(t.Context())
	t.Cleanup(stopWatching)
	quotas, err := checker.Start(watching, client)
	if err != nil {
		t.Fatal(err)
	}
	c.kubectl(t, "apply", "-f", example)
	c.apply(t, "default", budget+"\n---"+load)
	for _, name := range []string{"api", "load"} {
		c.kubectl(t, "rollout", "status", "deployment/"+name, "--timeout=60s")
		c.kubectl(t, "wait", "--for=condition=Enforcing", "--timeout=60s", "podunavailablebudget/"+name)
	}
	c.expectZones(t, "zone-a:2 zone-b:2 zone-c:6")
	return &inUse{c, k, r, quotas, c.placesOf(t), c.disturb(t), stopWatching}
}

// upgrade does what docs/install.md says, with the chart of a release: the definitions first.
func (c *inUse) upgrade(t *testing.T, to string) {
	t.Helper()
	unpacked := t.TempDir()
	if output, err := c.run(t, "", "helm", append([]string{"pull", "--untar", "--untardir", unpacked}, c.r.chartOf(to)...)...); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	c.kubectl(t, "apply", "--server-side", "--force-conflicts", "-f", filepath.Join(unpacked, "berth", "crds"))
	c.helm(t, append([]string{"upgrade", "berth", "--reset-then-reuse-values", "--set", "image.tag="}, c.r.chartOf(to)...)...)
	c.expectUnmoved(t, to)
}

func (c *inUse) rollback(t *testing.T, to string) {
	t.Helper()
	c.helm(t, "rollback", "berth")
	c.expectUnmoved(t, to)
}

// expectUnmoved expects that a version runs, binds pods of the workload that does not rest, and leaves those of the other one where they are.
func (c *inUse) expectUnmoved(t *testing.T, version string) {
	t.Helper()
	expectRunning(t, c.k, "scheduler", "controller")
	expectImages(t, c.cluster, version)
	before := c.quotas.Binds()
	waitFor(t, "pods to be bound", func(context.Context) (string, error) {
		if bound := c.quotas.Binds() - before; bound < 10 {
			return fmt.Sprintf("%d are", bound), nil
		}
		return "", nil
	})
	if now := c.placesOf(t); !maps.Equal(c.places, now) {
		t.Errorf("with %s, pods that nobody has touched are %v, before they were %v", version, now, c.places)
	}
}

// end ends the load, and expects that no quota and no budget was broken.
func (c *inUse) end(t *testing.T) {
	t.Helper()
	seen := c.stop()
	c.stopWatches()
	t.Logf("%d evictions were allowed, %d refused; at least %d of the pods were available; %d binds", seen.allowed, seen.refused, seen.least, c.quotas.Binds())
	if seen.least < 4 {
		t.Errorf("only %d pods were available, the budget wants 4", seen.least)
	}
	if seen.allowed < 10 || seen.refused == 0 {
		t.Errorf("the load was none: %d evictions were allowed, %d refused", seen.allowed, seen.refused)
	}
	for _, violation := range c.quotas.Violations() {
		t.Error(violation)
	}
}

// TestUpgradeFromThePreviousVersion installs the chart of the previous version, upgrades it to this one from a registry, rolls it back, with -dist upgrades it again, and removes it. Meanwhile
// a workload is scaled and evicted all the time: no quota and no budget is broken. Another workload rests: none of its pods moves.
func TestUpgradeFromThePreviousVersion(t *testing.T) {
	t.Parallel()
	r := startRegistry(t, dist(t))
	c, k := start(t)
	k.use(func(ctx context.Context, reference string) (string, error) {
		if strings.HasSuffix(reference, ":"+previousVersion) {
			dir := filepath.Join(harness.Root(), "bin")
			if *previousPrograms != "" {
				dir = *previousPrograms
			}
			return filepath.Join(dir, imageName(reference)), nil
		}
		i, err := r.pull(ctx, reference)
		return i.program(), err
	})
	c.helm(t, "install", "berth", filepath.Join("test", "install", "testdata", "berth-"+previousVersion[1:]+".tgz"), "--set", "image.tag="+previousVersion)
	expectRunning(t, k, "scheduler", "controller")
	c.awaitWatches(t)

	used := c.putToUse(t, k, r)
	used.upgrade(t, releaseTag())
	used.rollback(t, previousVersion)
	if *distFlag != "" { // it takes half a minute, in which make test learns little
		used.upgrade(t, releaseTag())
	}
	used.end(t)

	c.apply(t, "default", "{apiVersion: v1, kind: Namespace, metadata: {name: left}}")
	c.apply(t, "left", load)
	c.kubectl(t, "-n", "left", "rollout", "status", "deployment/load", "--timeout=60s")
	before := c.examplePods(t)
	c.helm(t, "uninstall", "berth")
	if now := c.placesOf(t); !maps.Equal(used.places, now) {
		t.Errorf("after the removal, pods that nobody has touched are %v, before they were %v", now, used.places)
	}
	c.expectNothingBlocked(t)
	c.kubectl(t, "patch", "deployment/api", "--type=json", "-p", `[{"op": "remove", "path": "/spec/template/spec/schedulerName"}]`)
	c.kubectl(t, "rollout", "status", "deployment/api", "--timeout=60s")
	if after := c.examplePods(t); slices.Equal(before, after) {
		t.Error("a rollout after the removal replaced no pod")
	}
}

func expectImages(t *testing.T, c *cluster, version string) {
	t.Helper()
	for _, image := range strings.Fields(c.kubectl(t, "-n", berthSystem, "get", "deployments,cronjobs", "-o", "jsonpath={..containers[*].image}")) {
		if !strings.HasSuffix(image, ":"+version) {
			t.Errorf("image %s, want version %s", image, version)
		}
	}
}

// expectNothingBlocked does what users do to pods and objects of a cluster from which Berth was removed. All protection is gone with it.
func (c *cluster) expectNothingBlocked(t *testing.T) {
	t.Helper()
	pods := strings.Fields(c.kubectl(t, "get", "pods", "-l", "app=load", "-o", "name"))
	c.kubectl(t, append([]string{"delete", "--timeout=60s"}, pods...)...)
	c.kubectl(t, "annotate", "workloadspread/load", "podunavailablebudget/load", "touched=yes")
	c.kubectl(t, "delete", "--timeout=60s", "workloadspread/load", "podunavailablebudget/load")
	c.kubectl(t, "delete", "--timeout=60s", "namespace", "left")
	node := strings.Fields(c.kubectl(t, "get", "nodes", "-o", "name"))[0]
	c.kubectl(t, "annotate", node, "touched=yes")
	left := c.kubectl(t, "get", "-o", "name", "mutatingwebhookconfigurations,validatingwebhookconfigurations,validatingadmissionpolicies,validatingadmissionpolicybindings")
	for line := range strings.Lines(left) {
		if strings.Contains(line, "berth") {
			t.Errorf("%s is left", strings.TrimSpace(line))
		}
	}
}

// TestRefusedInstallations: what Berth cannot run on is refused by kubectl berth doctor, which changes nothing, and by Helm, which creates the definitions of a chart
// before it asks the chart, and nothing else.
func TestRefusedInstallations(t *testing.T) {
	t.Parallel()
	c, _ := start(t)
	objects := func() string {
		return c.kubectl(t, "get", "-A", "-o", `jsonpath={range .items[*]}{.kind}/{.metadata.namespace}/{.metadata.name}{"\n"}{end}`,
			"namespaces,customresourcedefinitions,clusterroles,clusterrolebindings,roles,rolebindings,serviceaccounts,services,deployments,cronjobs,secrets,configmaps,mutatingwebhookconfigurations,"+
				"validatingwebhookconfigurations,validatingadmissionpolicies,validatingadmissionpolicybindings,flowschemas,prioritylevelconfigurations,networkpolicies,poddisruptionbudgets")
	}
	unchanged := func(before string) {
		t.Helper()
		known := strings.Split(before, "\n")
		for line := range strings.Lines(objects()) {
			line = strings.TrimSpace(line)
			if !slices.Contains(known, line) && !strings.HasPrefix(line, "CustomResourceDefinition/") {
				t.Errorf("%s was created", line)
			}
		}
	}
	before := objects()
	helm := []string{"helm", "install", "berth", chartOf(t), "--namespace=kube-system"}

	old := c.behind(t, "v1.33.4")
	old.expectRefused(t, "the API server is Kubernetes v1.33.4, and this version of Berth runs with", "kubectl", "berth", "doctor", "--before-install")
	if now := objects(); now != before {
		t.Errorf("the doctor has changed something:\n%s\nbefore:\n%s", now, before)
	}
	c.expectRefused(t, "certificates.source is cert-manager, and the cluster has no definition certificates.cert-manager.io: install cert-manager first", append(helm, "--set", "certificates.source=cert-manager")...)
	old.expectRefused(t, "chart requires kubeVersion", helm...)
	unchanged(before)

	c.pretendKruise(t, "vworkloadspread.kb.io", "workloadspreads")
	before = objects()
	const beside = "OpenKruise serves WorkloadSpreads and PodUnavailableBudgets in this cluster (ValidatingWebhookConfiguration kruise-validating-webhook-configuration, webhook vworkloadspread.kb.io)"
	c.expectRefused(t, beside, "kubectl", "berth", "doctor", "--before-install")
	c.expectRefused(t, beside, helm...)
	if now := objects(); now != before {
		t.Errorf("beside OpenKruise something has changed:\n%s\nbefore:\n%s", now, before)
	}

	c.pretendKruise(t, "vuniteddeployment.kb.io", "uniteddeployments")
	before = objects()
	const united = "OpenKruise serves UnitedDeployments in this cluster (ValidatingWebhookConfiguration kruise-validating-webhook-configuration, webhook vuniteddeployment.kb.io)"
	c.expectRefused(t, united, "kubectl", "berth", "doctor", "--before-install", "--migrate-from=kruise")
	c.expectRefused(t, united, append(helm, "--set", "migrateFrom=kruise")...)
	if now := objects(); now != before {
		t.Errorf("beside UnitedDeployments of OpenKruise something has changed:\n%s\nbefore:\n%s", now, before)
	}

	for _, kind := range []string{"Certificate", "Issuer"} {
		plural := strings.ToLower(kind) + "s"
		c.apply(t, "default", fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[1]s.cert-manager.io}
spec:
  group: cert-manager.io
  scope: Namespaced
  names: {kind: %[2]s, plural: %[1]s}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`, plural, kind))
	}
	c.kubectl(t, "berth", "doctor", "--before-install", "--migrate-from=kruise", "--united-deployments=false")
	if output, err := c.run(t, "", "helm", append(helm[1:], "--set", "migrateFrom=kruise,certificates.source=cert-manager,unitedDeployments.enabled=false", "--dry-run=server")...); err != nil {
		t.Errorf("a migration with cert-manager is refused: %v\n%s", err, output)
	}
}

// pretendKruise leaves of OpenKruise's webhooks the one for a resource.
func (c *cluster) pretendKruise(t *testing.T, webhook, resource string) {
	t.Helper()
	c.apply(t, "default", fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: kruise-validating-webhook-configuration}
webhooks:
- name: %s
  admissionReviewVersions: [v1]
  sideEffects: None
  clientConfig: {service: {name: kruise-webhook-service, namespace: kruise-system, path: /validate}}
  rules: [{apiGroups: [apps.kruise.io], apiVersions: [v1alpha1], operations: [CREATE], resources: [%s]}]
`, webhook, resource))
}

// expectRefused expects that a command fails and says this.
func (c *cluster) expectRefused(t *testing.T, want string, args ...string) {
	t.Helper()
	output, err := c.run(t, "", args[0], args[1:]...)
	if err == nil || !strings.Contains(output, want) {
		t.Errorf("%s: %v, %s\nwant %q", strings.Join(args, " "), err, output, want)
	}
}

// TestTheDoctorNamesFaults breaks a running installation in two ways. The doctor names each fault, and is content again when it is repaired.
func TestTheDoctorNamesFaults(t *testing.T) {
	t.Parallel()
	c, k, dir := installWithKustomize(t)
	says := func(what, want string) {
		t.Helper()
		waitFor(t, what, func(context.Context) (string, error) {
			output, err := c.run(t, "", "kubectl", "berth", "doctor")
			if (err == nil) == (want == "") && strings.Contains(output, want) {
				return "", nil
			}
			return output, nil
		})
	}
	says("a doctor without a complaint", "")
	for what, fault := range map[string]struct{ change, want string }{
		// A Service without endpoints alone breaks no connection that is there.
		"a controller that does not run": {"-n berth-system scale deployment berth-controller --replicas=0", "see whether Service berth-webhook has endpoints"},
		"a scheduler that does not run":  {"-n berth-system scale deployment berth-scheduler --replicas=0", "berth-scheduler has no available pod"},
	} {
		c.kubectl(t, strings.Fields(fault.change)...)
		says("the doctor to name "+what, fault.want)
		c.in(dir).documented(t, "kubectl apply -k .")
		expectRunning(t, k, "scheduler", "controller", "united")
		says("a doctor without a complaint after "+what, "")
	}
	// A node autoscaler comes, and goes. The controller looks with the rights that it was installed with.
	c.kubectl(t, "create", "deployment", "shop", "--image=registry.k8s.io/pause:3.10", "--replicas=0")
	if _, err := c.run(t, `
apiVersion: apps.kruise.io/v1beta1
kind: WorkloadSpread
metadata: {name: shop, namespace: default}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: shop}
  scheduleStrategy: {binding: Late}
  subsets: [{name: normal, maxReplicas: 1}, {name: elastic}]
`, "kubectl", "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	says("a doctor without a complaint about a late-bound spread", "")
	c.kubectl(t, "-n", "kube-system", "create", "configmap", "cluster-autoscaler-status")
	says("the doctor to name a spread that binds late beside a node autoscaler", "WorkloadSpread default/shop binds late, and the node autoscaler (cluster-autoscaler) knows no quotas")
	c.kubectl(t, "-n", "kube-system", "delete", "configmap", "cluster-autoscaler-status")
	says("a doctor without a complaint after the node autoscaler has gone", "")
}

// behind is the cluster behind a proxy that says another version of it.
func (c *cluster) behind(t *testing.T, version string) *cluster {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	address := serveAs(t, c, version)
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: %q}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n", address)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return &cluster{c.Sandbox, c.client, c.dir, path}
}
