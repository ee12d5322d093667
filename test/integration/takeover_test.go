package integration

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/manifests"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/test/checker"
	"github.com/berth-project/berth/test/harness"
)

var (
	takeovers = flag.Int("takeovers", 1, "how many times to kill the leading scheduler in the middle of a burst")
	burst     = flag.Int("burst", 800, "pods of such a burst, 2200 at most; with few the burst may be over before the leader is killed")
)

// TestTheNextLeaderKeepsTheQuotas runs two schedulers with leader election. It kills the leader in the middle of a burst, with SIGKILL and SIGTERM in
// turn. The checker watches every revision.
func TestTheNextLeaderKeepsTheQuotas(t *testing.T) {
	pods, a, b := *burst, *burst*15/100, *burst*35/100
	cluster, err := harness.Start(t.Context(), sandbox.Config{Name: "takeover", Dir: t.TempDir(), Without: harness.WithoutController()},
		product.Options{Replicas: map[string]int{product.Scheduler: 2}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Sandbox.Stop)
	var all []*corev1.Node
	for i := range 30 {
		pool := string("abc"[i%3])
		all = append(all, sandbox.NewNode(fmt.Sprintf("node-%d-%s", i, pool), "zone-"+pool, map[string]string{"pool": pool}, nil, nil))
	}
	if err := cluster.Sandbox.CreateNodes(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	watchCtx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	watcher, err := checker.Start(watchCtx, cluster.Dynamic)
	if err != nil {
		t.Fatal(err)
	}
	for round := range *takeovers {
		leader, err := leaderOf(t.Context(), cluster)
		if err != nil {
			t.Fatal(err)
		}
		ns, err := cluster.CreateNamespace(t.Context(), "burst")
		if err != nil {
			t.Fatal(err)
		}
		if err := cluster.ApplyYAML(t.Context(), ns, spreadHeader+"\n  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}\n  scheduleStrategy: {type: Adaptive}"+fmt.Sprintf(`
  subsets:
  - {name: a, maxReplicas: %d, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [a]}]}}
  - {name: b, maxReplicas: %d, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [b]}]}}
  - {name: c, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [c]}]}}
---`, a, b)+deployment("web", pods, "")); err != nil {
			t.Fatal(err)
		}
		places := func(ctx context.Context) (map[string]int, error) {
			list, err := cluster.Pods(ctx, ns)
			if err != nil {
				return nil, err
			}
			kept := map[string]int{}
			for i := range list {
				if list[i].Spec.NodeName != "" {
					kept[list[i].Labels["berth.dev/subset"]]++
					kept["all"]++
				}
			}
			return kept, nil
		}
		before, err := reservedBy(t.Context(), cluster, leader)
		if err != nil {
			t.Fatal(err)
		}
		if err := cluster.WaitFor(t.Context(), "the burst to be under way", func(ctx context.Context) (string, error) {
			reserved, err := reservedBy(ctx, cluster, leader)
			if err != nil || reserved >= before+50 {
				return "", err
			}
			return fmt.Sprintf("%v slots are reserved", reserved-before), nil
		}); err != nil {
			t.Fatal(err)
		}
		signal := []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM}[round%2]
		if err := cluster.Sandbox.Signal(product.Scheduler, leader, signal); err != nil {
			t.Fatal(err)
		}
		bound, err := places(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if bound["all"] == pods {
			t.Errorf("round %d: the burst was over before the leader was killed", round)
		}
		t.Logf("round %d: sent %s to replica %d with %d of %d pods bound", round, signal, leader, bound["all"], pods)
		// There are 30 nodes for 110 pods each, 10 nodes in each pool. So c has room for 1,100 pods.
		want := map[string]int{"a": a, "b": b, "c": pods - a - b, "all": pods}
		if err := cluster.WaitFor(t.Context(), "all pods in place", func(ctx context.Context) (string, error) {
			kept, err := places(ctx)
			if err != nil || fmt.Sprint(kept) == fmt.Sprint(want) {
				return "", err
			}
			return fmt.Sprint(kept), nil
		}); err != nil {
			t.Fatal(err)
		}
		if round+1 == *takeovers {
			break // the cluster goes as a whole
		}
		if err := cluster.DeleteNamespace(t.Context(), ns); err != nil {
			t.Fatal(err)
		}
	}
	if err := cluster.WaitFor(t.Context(), "the checker to see all binds", func(context.Context) (string, error) {
		if binds := watcher.Binds(); binds < *takeovers*pods {
			return fmt.Sprintf("it saw %d", binds), nil
		}
		return "", nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, violation := range watcher.Violations() {
		t.Error(violation)
	}
	if binds := watcher.Binds(); binds != *takeovers*pods {
		t.Errorf("the checker saw %d binds, want %d", binds, *takeovers*pods)
	}
}

// TestTheFirstPodWaitsOnlyForBindsThatMayBeUnderWay: after a fresh start, or after a process that stopped in order, no binds are under way. After a
// kill there may be some.
func TestTheFirstPodWaitsOnlyForBindsThatMayBeUnderWay(t *testing.T) {
	harness.Long(t)
	cluster, err := harness.Start(t.Context(), sandbox.Config{Name: "first-pod", Dir: t.TempDir(), Without: harness.WithoutController()}, product.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Sandbox.Stop)
	if err := cluster.Sandbox.CreateNodes(t.Context(), []*corev1.Node{sandbox.NewNode("node-a", "zone-a", map[string]string{"pool": "a"}, nil, nil)}); err != nil {
		t.Fatal(err)
	}
	ns, err := cluster.CreateNamespace(t.Context(), "first-pod")
	if err != nil {
		t.Fatal(err)
	}
	// firstPod returns how long a new pod of a new spread waits for its node.
	firstPod := func(name string) time.Duration {
		t.Helper()
		if err := cluster.ApplyYAML(t.Context(), ns, spreadFor(name, "apps/v1", "Deployment", name, fmt.Sprintf(twoPools, "5"))+"\n---"+deployment(name, 1, "")); err != nil {
			t.Fatal(err)
		}
		created := time.Now()
		if err := cluster.WaitFor(t.Context(), "the pod to be bound", func(ctx context.Context) (string, error) {
			pods, err := cluster.Pods(ctx, ns)
			for i := range pods {
				if pods[i].Labels["app"] == name && pods[i].Spec.NodeName != "" {
					return "", nil
				}
			}
			return "it has no node", err
		}); err != nil {
			t.Fatal(err)
		}
		return time.Since(created)
	}
	// restart ends the scheduler and waits until the next process runs.
	restart := func(signal syscall.Signal) {
		t.Helper()
		status := func() sandbox.ComponentStatus {
			all := cluster.Sandbox.Status()
			return all[slices.IndexFunc(all, func(s sandbox.ComponentStatus) bool { return s.Name == product.Scheduler })]
		}
		before := status().Restarts
		if err := cluster.Sandbox.Signal(product.Scheduler, 0, signal); err != nil {
			t.Fatal(err)
		}
		if err := cluster.WaitFor(t.Context(), "the scheduler to be started again", func(context.Context) (string, error) {
			if s := status(); s.Restarts == before || s.State != sandbox.Running {
				return string(s.State), nil
			}
			return "", nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	const soon, doubt = 3 * time.Second, 10 * time.Second
	expectSoon := func(what string, took time.Duration) {
		t.Helper()
		waited := takeOverOf(t, cluster)
		t.Logf("%s: bound after %s, of which the take-over took %s", what, took, waited)
		if took > soon || waited > soon {
			t.Errorf("%s: bound after %s, of which the take-over took %s; want %s", what, took, waited, soon)
		}
	}
	expectSoon("fresh start", firstPod("fresh"))
	restart(syscall.SIGTERM)
	expectSoon("clean restart", firstPod("clean"))
	restart(syscall.SIGKILL)
	took, waited := firstPod("killed"), takeOverOf(t, cluster)
	t.Logf("after a kill: bound after %s, of which the take-over took %s", took, waited)
	if waited < doubt-time.Second {
		t.Errorf("after a kill the take-over took %s, want %s", waited, doubt)
	}
	restart(syscall.SIGTERM)
	expectSoon("clean restart after that", firstPod("again"))
}

// TestPodsAreScheduledWithoutTheKindOrTheRightToReadIt: in both cases the scheduler binds pods without an owner. It binds pods with an owner if no
// spread can exist.
func TestPodsAreScheduledWithoutTheKindOrTheRightToReadIt(t *testing.T) {
	harness.Long(t)
	t.Parallel() // it has a cluster of its own
	cluster, err := harness.Start(t.Context(), sandbox.Config{Name: "kind", Dir: t.TempDir(), Without: []string{product.Controller}}, product.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Sandbox.Stop)
	if err := cluster.Sandbox.CreateNodes(t.Context(), []*corev1.Node{sandbox.NewNode("node-a", "zone-a", map[string]string{"pool": "a"}, nil, nil)}); err != nil {
		t.Fatal(err)
	}
	ns, err := cluster.CreateNamespace(t.Context(), "kind")
	if err != nil {
		t.Fatal(err)
	}
	resume := func() {}
	halt := func() {
		t.Helper()
		if resume, err = cluster.Sandbox.Halt(product.Scheduler, 0); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(group, resource, name string) {
		t.Helper()
		if err := cluster.Dynamic.Resource(schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource}).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	definitions := cluster.Dynamic.Resource(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"))
	definition, err := definitions.Get(t.Context(), "workloadspreads.apps.kruise.io", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	unstructured.RemoveNestedField(definition.Object, "status")
	install := func() {
		t.Helper()
		for _, manifest := range manifests.Install() {
			objects, err := harness.Documents(string(manifest))
			for _, object := range objects {
				if object.GetKind() != definition.GetKind() { // those of the cluster say who converts
					err = errors.Join(err, cluster.Apply(t.Context(), object.GetNamespace(), object))
				}
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	create := func(text string) {
		t.Helper()
		if err := cluster.WaitFor(t.Context(), "the API server to know the kind", func(ctx context.Context) (string, error) {
			if err := cluster.ApplyYAML(ctx, ns, text); err != nil {
				return err.Error(), nil
			}
			return "", nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	// expect waits until a pod meets the condition.
	expect := func(what, app string, says func(*corev1.Pod) bool) {
		t.Helper()
		if err := cluster.WaitFor(t.Context(), what, func(ctx context.Context) (string, error) {
			pods, err := cluster.Pods(ctx, ns)
			for i := range pods {
				if pods[i].Labels["app"] == app && says(&pods[i]) {
					return "", nil
				}
			}
			return "not yet", err
		}); err != nil {
			t.Fatal(err)
		}
	}
	isBound := func(pod *corev1.Pod) bool { return pod.Spec.NodeName != "" }
	// A pod that was bound before the scheduler knew the kind is in no subset. isDivided deletes such a pod, and is true for its replacement in
	// subset a.
	isDivided := func(pod *corev1.Pod) bool {
		if isBound(pod) && pod.Labels[v1beta1.SubsetLabel] != "a" && pod.DeletionTimestamp == nil {
			if err := cluster.Client.CoreV1().Pods(ns).Delete(t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		return pod.Labels[v1beta1.SubsetLabel] == "a"
	}

	halt()
	remove("rbac.authorization.k8s.io", "clusterrolebindings", "berth-scheduler")
	resume()
	create(deployment("owned", 1, ""))
	expect("a pod with an owner to say what is missing", "owned", func(pod *corev1.Pod) bool {
		return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return strings.Contains(c.Message, "give it the ClusterRole berth-scheduler")
		})
	})
	create("apiVersion: v1\nkind: Pod\nmetadata: {name: free, labels: {app: free}}\n" +
		"spec: {schedulerName: berth-scheduler, containers: [{name: main, image: registry.k8s.io/pause:3.10}]}")
	expect("a pod without an owner to be bound", "free", isBound)
	expect("the pod with an owner to wait", "owned", func(pod *corev1.Pod) bool { return !isBound(pod) })
	install()
	expect("it to be bound when the right is there", "owned", isBound)

	halt()
	remove("apiextensions.k8s.io", "customresourcedefinitions", "workloadspreads.apps.kruise.io")
	if err := cluster.WaitFor(t.Context(), "the kind to be gone", func(ctx context.Context) (string, error) {
		_, err := cluster.Dynamic.Resource(v1beta1.Resource).List(ctx, metav1.ListOptions{Limit: 1})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "it is served", nil
	}); err != nil {
		t.Fatal(err)
	}
	resume()
	create(deployment("early", 1, ""))
	expect("a pod with an owner to be bound without the kind", "early", isBound)
	again := definition.DeepCopy()
	again.SetResourceVersion("")
	if _, err := definitions.Create(t.Context(), again, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	create(spreadFor("late", "apps/v1", "Deployment", "late", fmt.Sprintf(twoPools, "5")))
	create(deployment("late", 1, ""))
	expect("a spread to count that came with the kind", "late", isDivided)
}

var tookOver = regexp.MustCompile(`(?m)^scheduler_workloadspread_take_over_seconds (.*)$`)

// takeOverOf returns how long the scheduler held its first pod.
func takeOverOf(t *testing.T, cluster *harness.Cluster) time.Duration {
	t.Helper()
	text, err := metricsOf(t.Context(), cluster, product.Scheduler, 0)
	if err != nil {
		t.Fatal(err)
	}
	match := tookOver.FindStringSubmatch(text)
	if match == nil {
		t.Fatal("the scheduler does not say how long its take-over took")
	}
	seconds, err := strconv.ParseFloat(match[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(seconds * float64(time.Second))
}

var reserved = regexp.MustCompile(`(?m)^scheduler_workloadspread_subset_attempts_total\{result="reserved"\} (.*)$`)

// reservedBy returns how many slots a replica has reserved since its start. It sends no request to the API server.
func reservedBy(ctx context.Context, cluster *harness.Cluster, replica int) (float64, error) {
	text, err := metricsOf(ctx, cluster, product.Scheduler, replica)
	if err != nil {
		return 0, err
	}
	match := reserved.FindStringSubmatch(text)
	if match == nil {
		return 0, nil // none yet
	}
	return strconv.ParseFloat(match[1], 64)
}

var leads = regexp.MustCompile(`(?m)^leader_election_master_status\{.*\} 1$`)

// leaderOf returns the replica of the scheduler that leads.
func leaderOf(ctx context.Context, cluster *harness.Cluster) (leader int, err error) {
	err = cluster.WaitFor(ctx, "a leader", func(ctx context.Context) (string, error) {
		for replica := range 2 {
			text, err := metricsOf(ctx, cluster, product.Scheduler, replica)
			if err != nil {
				return err.Error(), nil // the process is restarting
			}
			if leads.MatchString(text) {
				leader = replica
				return "", nil
			}
		}
		return "neither replica leads", nil
	})
	return leader, err
}
