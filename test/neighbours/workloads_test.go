package neighbours

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	unitedv1beta1 "github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/test/harness"
)

var (
	cloneSets    = schema.GroupVersionResource{Group: "apps.kruise.io", Version: "v1alpha1", Resource: "clonesets"}
	advancedSets = schema.GroupVersionResource{Group: "apps.kruise.io", Version: "v1beta1", Resource: "statefulsets"}
)

const (
	oldImage = "registry.k8s.io/pause:3.9"
	newImage = "registry.k8s.io/pause:3.10"
	// revisionLabel is what OpenKruise calls the revision of a pod.
	revisionLabel = "controller-revision-hash"
)

// inPool is a term for the nodes of a pool.
func inPool(pool string) string {
	return "{matchExpressions: [{key: pool, operator: In, values: [" + pool + "]}]}"
}

// spreadOf is a spread of at most 5 pods of the workload web in a, at most 4 in b, and all others in c. The strategy is a field.
func spreadOf(apiVersion, kind, strategy string) string {
	return fmt.Sprintf(`
apiVersion: apps.kruise.io/v1alpha1
kind: WorkloadSpread
metadata: {name: web}
spec:
  targetRef: {apiVersion: %s, kind: %s, name: web}
  scheduleStrategy: {%s}
  subsets:
  - {name: a, maxReplicas: 5, requiredNodeSelectorTerm: %s}
  - {name: b, maxReplicas: 4, requiredNodeSelectorTerm: %s}
  - {name: c, requiredNodeSelectorTerm: %s}
`, apiVersion, kind, strategy, inPool("a"), inPool("b"), inPool("c"))
}

// budgetOf is a budget for the pods of web.
func budgetOf(maxUnavailable int) string {
	return fmt.Sprintf(`---
apiVersion: policy.kruise.io/v1alpha1
kind: PodUnavailableBudget
metadata: {name: web}
spec: {selector: {matchLabels: {app: web}}, maxUnavailable: %d}
`, maxUnavailable)
}

// pods is a template of pods. OpenKruise asks for the gate where a user wants a StatefulSet to be updated in place, and adds it to pods of CloneSets.
func pods(image string) string {
	return "{metadata: {labels: {app: web}}, spec: {readinessGates: [{conditionType: InPlaceUpdateReady}], containers: [{name: main, image: " + image + "}]}}"
}

// namespace makes a namespace for a test that runs beside others.
func namespace(t *testing.T) string {
	t.Helper()
	t.Parallel()
	ns, err := the.CreateNamespace(t.Context(), "shop")
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

func apply(t *testing.T, ns, text string) {
	t.Helper()
	if err := the.ApplyYAML(t.Context(), ns, text); err != nil {
		t.Fatal(err)
	}
}

// patch changes the object web.
func patch(t *testing.T, of schema.GroupVersionResource, ns, merge string) {
	t.Helper()
	if _, err := the.Dynamic.Resource(of).Namespace(ns).Patch(t.Context(), "web", types.MergePatchType, []byte(merge), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// containers is the part of a merge patch that gives the pods an image.
func containers(image string) string {
	return `"template":{"spec":{"containers":[{"name":"main","image":"` + image + `"}]}}`
}

func isAvailable(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// expect waits until so many pods are ready in each subset, so many of them run the new image, and there are no others. It returns their UIDs by name.
func expect(t *testing.T, ns, layout string, updated int) map[string]types.UID {
	t.Helper()
	found := map[string]types.UID{}
	if err := the.WaitFor(t.Context(), fmt.Sprintf("%s with %d updated", layout, updated), func(ctx context.Context) (string, error) {
		all, err := the.Pods(ctx, ns)
		if err != nil {
			return "", err
		}
		clear(found)
		count, news, starting := map[string]int{}, 0, 0
		for i := range all {
			pod := &all[i]
			found[pod.Name] = pod.UID
			if !isAvailable(pod) {
				starting++
				continue
			}
			count[strings.TrimPrefix(pod.Spec.NodeName, "node-")]++
			if pod.Status.ContainerStatuses[0].Image == newImage {
				news++
			}
		}
		is := fmt.Sprintf("a=%d b=%d c=%d", count["a"], count["b"], count["c"])
		if is == layout && news == updated && starting == 0 {
			return "", nil
		}
		return fmt.Sprintf("%s with %d updated, %d others", is, news, starting), nil
	}); err != nil {
		t.Fatal(err)
	}
	return found
}

// expectCosts waits until the pods outside of c have their deletion costs, which the controller writes after the bind of another scheduler.
func expectCosts(t *testing.T, ns string) {
	t.Helper()
	if err := the.WaitFor(t.Context(), "the deletion costs", func(ctx context.Context) (string, error) {
		all, err := the.Pods(ctx, ns)
		for i := range all {
			if all[i].Spec.NodeName != "node-c" && all[i].Annotations[corev1.PodDeletionCost] == "" {
				return all[i].Name + " has none", err
			}
		}
		return "", err
	}); err != nil {
		t.Fatal(err)
	}
}

// expectTheSame fails unless the pods are those of before.
func expectTheSame(t *testing.T, before, after map[string]types.UID) {
	t.Helper()
	for name, uid := range before {
		if after[name] != uid {
			t.Errorf("pod %s was not updated in place", name)
		}
	}
}

// promises are what holds at every moment. They are checked after every event of a pod, in the order of the API server.
type promises struct {
	// quota of a node for the pods of a scope that Berth binds. A node that it does not name has none.
	quota map[string]int
	scope func(*corev1.Pod) string

	mu   sync.Mutex
	pods map[types.UID]*corev1.Pod
	// least is how many pods are available. 0 means any number.
	least      int
	violations []string
	binds      int
	ended      bool
}

// promise watches the pods web of a namespace until the test ends, and then reports what was broken.
func promise(t *testing.T, cluster *harness.Cluster, ns string, quota map[string]int, scope func(*corev1.Pod) string) *promises {
	t.Helper()
	p := &promises{quota: quota, scope: scope, pods: map[types.UID]*corev1.Pod{}}
	watcher, err := cluster.Client.CoreV1().Pods(ns).Watch(context.Background(), metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil {
		t.Fatal(err)
	}
	var watching sync.WaitGroup
	watching.Go(func() {
		for e := range watcher.ResultChan() {
			p.take(e)
		}
	})
	t.Cleanup(func() {
		p.mu.Lock()
		p.ended = true
		p.mu.Unlock()
		watcher.Stop()
		watching.Wait()
		p.report(t, "at the end")
	})
	return p
}

func (p *promises) take(e watch.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pod, is := e.Object.(*corev1.Pod)
	if p.ended {
		return
	}
	if !is {
		p.violations = append(p.violations, fmt.Sprint("the watch of pods ended: ", e.Object))
		return
	}
	before := p.pods[pod.UID]
	if p.pods[pod.UID] = pod; e.Type == watch.Deleted {
		delete(p.pods, pod.UID)
	}
	available, there := 0, 0
	for _, other := range p.pods {
		if isAvailable(other) {
			available++
		}
		if other.DeletionTimestamp == nil && other.Spec.NodeName == pod.Spec.NodeName && p.scope(other) == p.scope(pod) {
			there++
		}
	}
	if pod.Spec.NodeName != "" && (before == nil || before.Spec.NodeName == "") {
		p.binds++
		if quota, has := p.quota[pod.Spec.NodeName]; has && there > quota && pod.Spec.SchedulerName == "berth-scheduler" {
			p.violations = append(p.violations, fmt.Sprintf("revision %s: %s is number %d of %q on %s", pod.ResourceVersion, pod.Name, there, p.scope(pod), pod.Spec.NodeName))
		}
	}
	if available < p.least && before != nil && isAvailable(before) {
		p.violations = append(p.violations, fmt.Sprintf("revision %s: %d pods are available after %s of %s", pod.ResourceVersion, available, e.Type, pod.Name))
	}
}

// atLeast says how many pods are available from now on.
func (p *promises) atLeast(n int) { p.mu.Lock(); defer p.mu.Unlock(); p.least = n }

func (p *promises) placed() int { p.mu.Lock(); defer p.mu.Unlock(); return p.binds }

// report reports what was broken since the last time, or forgets it if t is nil.
func (p *promises) report(t *testing.T, when string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, violation := range p.violations {
		if t != nil {
			t.Errorf("%s: %s", when, violation)
		}
	}
	p.violations = nil
}

var quotas = map[string]int{"node-a": 5, "node-b": 4}

func ofWorkload(*corev1.Pod) string { return "" }

func ofRevision(pod *corev1.Pod) string { return pod.Labels[revisionLabel] }

// updates is the update strategy of a CloneSet, which v1beta1 has one level deeper.
func updates(policy, fields string) string {
	if *next {
		return fmt.Sprintf("updateStrategy: {type: RollingUpdate, rollingUpdate: {podUpdatePolicy: %s, %s}}", policy, fields)
	}
	return fmt.Sprintf("updateStrategy: {type: %s, %s}", policy, fields)
}

// partition is the part of a merge patch that sets the partition of a CloneSet.
func partition(n int) string {
	if *next {
		return fmt.Sprintf(`"updateStrategy":{"rollingUpdate":{"partition":%d}}`, n)
	}
	return fmt.Sprintf(`"updateStrategy":{"partition":%d}`, n)
}

// cloneSet is the CloneSet web.
func cloneSet(replicas int, strategy string) string {
	return fmt.Sprintf(`---
apiVersion: %s
kind: CloneSet
metadata: {name: web}
spec: {replicas: %d, selector: {matchLabels: {app: web}}, %s, template: %s}
`, cloneSets.GroupVersion(), replicas, strategy, pods(oldImage))
}

// TestACloneSetUnderASpreadAndABudget: quotas and the budget hold while OpenKruise updates pods in place, with a partition, scales, and deletes pods that a user names.
func TestACloneSetUnderASpreadAndABudget(t *testing.T) {
	ns := namespace(t)
	p := promise(t, the, ns, quotas, ofWorkload)
	apply(t, ns, spreadOf(cloneSets.GroupVersion().String(), "CloneSet", "")+budgetOf(3)+cloneSet(12, updates("InPlaceIfPossible", "maxUnavailable: 50%, scatterStrategy: [{key: berth.dev/subset, value: a}]")))
	before := expect(t, ns, "a=5 b=4 c=3", 0)

	p.atLeast(9)
	patch(t, cloneSets, ns, `{"spec":{`+partition(6)+`,`+containers(newImage)+`}}`)
	expectTheSame(t, before, expect(t, ns, "a=5 b=4 c=3", 6))
	patch(t, cloneSets, ns, `{"spec":{"replicas":24,`+partition(12)+`}}`)
	before = expect(t, ns, "a=5 b=4 c=15", 12)
	p.atLeast(21)
	patch(t, cloneSets, ns, `{"spec":{`+partition(0)+`}}`)
	expectTheSame(t, before, expect(t, ns, "a=5 b=4 c=15", 24))

	in := func(node string) string {
		all, err := the.Pods(t.Context(), ns)
		if err != nil {
			t.Fatal(err)
		}
		return all[slices.IndexFunc(all, func(pod corev1.Pod) bool { return pod.Spec.NodeName == node })].Name
	}
	gone := in("node-c")
	label := `{"metadata":{"labels":{"apps.kruise.io/specified-delete":"true"}}}`
	if _, err := the.Client.CoreV1().Pods(ns).Patch(t.Context(), gone, types.MergePatchType, []byte(label), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := the.WaitFor(t.Context(), "the end of pod "+gone, func(ctx context.Context) (string, error) {
		all, err := the.Pods(ctx, ns)
		if slices.ContainsFunc(all, func(pod corev1.Pod) bool { return pod.Name == gone }) {
			return "it is there", err
		}
		return "", err
	}); err != nil {
		t.Fatal(err)
	}
	expect(t, ns, "a=5 b=4 c=15", 24)

	p.atLeast(11)
	expectCosts(t, ns)
	gone = in("node-c")
	patch(t, cloneSets, ns, fmt.Sprintf(`{"spec":{"replicas":14,"scaleStrategy":{"podsToDelete":[%q]}}}`, gone))
	if _, is := expect(t, ns, "a=5 b=4 c=5", 14)[gone]; is {
		t.Errorf("pod %s is there, which was to be deleted", gone)
	}
}

// TestQuotasOfEachRevisionOfACloneSet: with quotaScope Revision, a new revision has a quota of its own.
func TestQuotasOfEachRevisionOfACloneSet(t *testing.T) {
	ns := namespace(t)
	promise(t, the, ns, quotas, ofRevision)
	apply(t, ns, spreadOf(cloneSets.GroupVersion().String(), "CloneSet", "quotaScope: Revision")+cloneSet(12, updates("ReCreate", "maxUnavailable: 4")))
	expect(t, ns, "a=5 b=4 c=3", 0)
	patch(t, cloneSets, ns, `{"spec":{`+containers(newImage)+`}}`)
	expect(t, ns, "a=5 b=4 c=3", 12)
}

// TestAnAdvancedStatefulSetUnderASpreadAndABudget: its pods go by ordinal, reserved ones left out, and are updated in place.
func TestAnAdvancedStatefulSetUnderASpreadAndABudget(t *testing.T) {
	ns := namespace(t)
	p := promise(t, the, ns, quotas, ofWorkload)
	apply(t, ns, spreadOf("apps.kruise.io/v1beta1", "StatefulSet", "")+budgetOf(2)+fmt.Sprintf(`---
apiVersion: apps.kruise.io/v1beta1
kind: StatefulSet
metadata: {name: web}
spec:
  replicas: 8
  serviceName: web
  reserveOrdinals: [1, 4]
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: web}}
  updateStrategy: {type: RollingUpdate, rollingUpdate: {podUpdatePolicy: InPlaceIfPossible, maxUnavailable: 50%%}}
  template: %s
`, pods(oldImage)))
	before := expect(t, ns, "a=5 b=3 c=0", 0)
	p.atLeast(6)
	patch(t, advancedSets, ns, `{"spec":{"updateStrategy":{"rollingUpdate":{"partition":4}},`+containers(newImage)+`}}`)
	expectTheSame(t, before, expect(t, ns, "a=5 b=3 c=0", 4))
	patch(t, advancedSets, ns, `{"spec":{"updateStrategy":{"rollingUpdate":{"partition":0}}}}`)
	expectTheSame(t, before, expect(t, ns, "a=5 b=3 c=0", 8))
	patch(t, advancedSets, ns, `{"spec":{"replicas":10}}`)
	after := expect(t, ns, "a=5 b=4 c=1", 10)
	expectTheSame(t, before, after)
	for _, name := range []string{"web-1", "web-4"} {
		if _, is := after[name]; is {
			t.Errorf("pod %s is there, whose ordinal is reserved", name)
		}
	}
}

// TestUnitedDeploymentsOfTheKindsOfOpenKruise: OpenKruise runs the children, by partitions and in place, and leaves the UnitedDeployment to Berth.
func TestUnitedDeploymentsOfTheKindsOfOpenKruise(t *testing.T) {
	neighbour.expectControllers(t, map[string]bool{"sidecarset": true, "uniteddeployment": false})
	for of, template := range map[schema.GroupVersionResource]string{
		cloneSets: "cloneSetTemplate: {metadata: {labels: {app: web}}, spec: {" + updates("InPlaceIfPossible", "maxUnavailable: 1, partition: 0") + ", template: %s}}",
		advancedSets: "advancedStatefulSetTemplate: {metadata: {labels: {app: web}}, spec: {serviceName: web, podManagementPolicy: Parallel, " +
			"updateStrategy: {type: RollingUpdate, rollingUpdate: {podUpdatePolicy: InPlaceIfPossible}}, template: %s}}",
	} {
		t.Run(of.Resource, func(t *testing.T) {
			ns := namespace(t)
			united := func(image string, replicas, oldInC int, subsets ...string) {
				t.Helper()
				text := fmt.Sprintf(`
apiVersion: apps.kruise.io/v1beta1
kind: UnitedDeployment
metadata: {name: web}
spec:
  replicas: %d
  selector: {matchLabels: {app: web}}
  template: {%s}
  updateStrategy: {manualUpdate: {partitions: {b: 0, c: %d}}}
  topology:
    subsets:
`, replicas, fmt.Sprintf(template, pods(image)), oldInC)
				for _, subset := range subsets {
					text += "    - {name: " + subset + ", nodeSelectorTerm: " + inPool(subset) + "}\n"
				}
				apply(t, ns, text)
			}
			united(oldImage, 3, 0, "c", "a", "b")
			expect(t, ns, "a=1 b=1 c=1", 0)
			united(oldImage, 7, 0, "c", "a", "b")
			before := expect(t, ns, "a=2 b=2 c=3", 0)
			united(newImage, 7, 2, "c", "a", "b")
			expectTheSame(t, before, expect(t, ns, "a=2 b=2 c=3", 5))
			united(newImage, 7, 0, "c", "a", "b")
			expectTheSame(t, before, expect(t, ns, "a=2 b=2 c=3", 7))
			united(newImage, 7, 0, "c", "b")
			expect(t, ns, "a=0 b=3 c=4", 7)
			object, err := the.Dynamic.Resource(unitedv1beta1.Resource).Namespace(ns).Get(t.Context(), "web", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, entry := range object.GetManagedFields() {
				if entry.Manager == manager {
					t.Errorf("%s has written the UnitedDeployment: %s", manager, entry.FieldsV1.Raw)
				}
			}
		})
	}
}

// TestTwoWebhooksChangePods: OpenKruise injects a container before Berth's webhook, or after it. Quotas hold either way, and each pod has the container once.
func TestTwoWebhooksChangePods(t *testing.T) {
	configurations := the.Client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	for name, first := range map[string]bool{"OpenKruise after Berth": false, "OpenKruise before Berth": true} {
		t.Run(name, func(t *testing.T) {
			ns := namespace(t)
			if first { // the API server calls webhooks in the order of the names of their configurations
				configuration, err := configurations.Get(t.Context(), "kruise-mutating-webhook-configuration", metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				before := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "a-" + ns}, Webhooks: configuration.Webhooks}
				before.Webhooks = slices.DeleteFunc(before.Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool { return w.Name != "mpod.kb.io" })
				before.Webhooks[0].NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: ns}}
				if _, err := configurations.Create(t.Context(), before, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := configurations.Delete(context.Background(), before.Name, metav1.DeleteOptions{}); err != nil {
						t.Error(err)
					}
				})
			}
			p := promise(t, the, ns, quotas, ofWorkload)
			set := fmt.Sprintf("{apiVersion: apps.kruise.io/v1alpha1, kind: SidecarSet, metadata: {name: %[1]s}, spec: {namespace: %[1]s, selector: {matchLabels: {app: web}}, containers: [{name: proxy, image: %[2]s}]}}",
				ns, oldImage)
			apply(t, "", set)
			apply(t, ns, spreadOf("apps/v1", "Deployment", "")+fmt.Sprintf(`---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec: {replicas: 12, selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: main, image: %s}]}}}
`, oldImage))
			expect(t, ns, "a=5 b=4 c=3", 0)
			all, err := the.Pods(t.Context(), ns)
			if err != nil {
				t.Fatal(err)
			}
			for i := range all {
				var names []string
				for _, container := range all[i].Spec.Containers {
					names = append(names, container.Name)
				}
				if slices.Sort(names); !slices.Equal(names, []string{"main", "proxy"}) {
					t.Errorf("pod %s has the containers %v", all[i].Name, names)
				}
			}
			if p.placed() < 12 {
				t.Errorf("%d pods were placed", p.placed())
			}
		})
	}
}
