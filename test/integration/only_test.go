package integration

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/manifests"
	"github.com/berth-project/berth/test/harness"
)

// onlyScheduler is the deployed configuration with a profile for all other pods, as in docs/schedulers.md.
func onlyScheduler(t *testing.T) []byte {
	t.Helper()
	const profiles = "\nprofiles:\n"
	before, after, found := strings.Cut(string(manifests.SchedulerConfig), profiles)
	if !found {
		t.Fatal("the deployed configuration has no profiles")
	}
	return []byte(before + profiles + "- schedulerName: default-scheduler\n" + after)
}

// rivals are pods of a spread, pods without one, and pods without one that preempt others.
const rivals = spreadHeader + `
  targetRef: {apiVersion: apps/v1, kind: ReplicaSet, name: spread}
  scheduleStrategy: {type: Adaptive}
  subsets: [{name: a, maxReplicas: 12}, {name: b}]
---
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: spread}
spec:
  replicas: 30
  selector: {matchLabels: {app: spread}}
  template:
    metadata: {labels: {app: spread}}
    spec: {terminationGracePeriodSeconds: 1, containers: [{name: main, image: "registry.k8s.io/pause:3.10", resources: {requests: {cpu: "1"}}}]}
---
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: plain}
spec:
  replicas: 30
  selector: {matchLabels: {app: plain}}
  template:
    metadata: {labels: {app: plain}}
    spec: {terminationGracePeriodSeconds: 1, containers: [{name: main, image: "registry.k8s.io/pause:3.10", resources: {requests: {cpu: "1"}}}]}
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: rivals-first}
value: 1000
`

const urgentRivals = `
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: urgent}
spec:
  replicas: 20
  selector: {matchLabels: {app: urgent}}
  template:
    metadata: {labels: {app: urgent}}
    spec: {priorityClassName: rivals-first, containers: [{name: main, image: "registry.k8s.io/pause:3.10", resources: {requests: {cpu: "1"}}}]}
`

var (
	rounds = flag.Int("rounds", 1, "how often pods compete for nodes; 20 to measure how many binds give a node a pod too many")
	shared = flag.Bool("shared", false, "let kube-scheduler place the pods without a spread, to measure what a second scheduler costs; nothing is expected then")
)

const (
	fewNodes, places, wantUrgent = 20, 2, 20
	// apartTaint keeps pods without a spread off the nodes of spreads, as in docs/schedulers.md.
	apartTaint = "example.com/spreads"
)

// TestTheOnlySchedulerFillsNoNodeTwice: with both profiles in one process, pods of spreads and others compete for 40 places, and then others preempt. No node has
// more pods than it has room for at any revision, also while victims end.
func TestTheOnlySchedulerFillsNoNodeTwice(t *testing.T) {
	t.Parallel() // it has a cluster of its own
	config, options := sandbox.Config{Name: "only", Without: []string{product.DefaultScheduler}}, product.Options{SchedulerConfig: onlyScheduler(t)}
	if *shared {
		config, options = sandbox.Config{Name: "shared"}, product.Options{}
	}
	if over, binds := compete(t, startRivals(t, config, options, 0), rivals); len(over) > 0 && !*shared {
		t.Errorf("%d of %d binds gave a node too many pods, first %s", len(over), binds, over[0])
	}
}

// TestNodesApartAreNotFilledTwice: two schedulers, and a taint keeps pods without a spread off the nodes of the spread. The policy of docs/schedulers.md refuses pods that tolerate the
// taint and name another scheduler.
func TestNodesApartAreNotFilledTwice(t *testing.T) {
	t.Parallel() // it has a cluster of its own
	cluster := startRivals(t, sandbox.Config{Name: "apart"}, product.Options{}, fewNodes/2)
	text, err := os.ReadFile(filepath.Join(harness.Root(), "docs", "schedulers.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, policy, _ := strings.Cut(string(text), "<!-- nodes apart -->\n```yaml\n")
	policy, _, found := strings.Cut(policy, "```")
	if !found {
		t.Fatal("docs/schedulers.md has no policy for nodes apart")
	}
	if err := cluster.ApplyYAML(t.Context(), "default", policy); err != nil {
		t.Fatal(err)
	}
	intruder := sandboxPod("intruder", corev1.Toleration{Key: apartTaint, Operator: corev1.TolerationOpExists})
	if err := cluster.WaitFor(t.Context(), "the policy to refuse a pod", func(ctx context.Context) (string, error) {
		_, err := cluster.Client.CoreV1().Pods("default").Create(ctx, intruder, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil && strings.Contains(err.Error(), "must name berth-scheduler") {
			return "", nil
		}
		return fmt.Sprintf("the answer is %v", err), nil
	}); err != nil {
		t.Fatal(err)
	}
	tolerating := strings.NewReplacer("subsets: [{name: a, maxReplicas: 12}, {name: b}]", `subsets:
  - {name: a, maxReplicas: 12, tolerations: [{key: example.com/spreads, operator: Exists}], requiredNodeSelectorTerm: {matchExpressions: [{key: spreads, operator: Exists}]}}
  - {name: b, tolerations: [{key: example.com/spreads, operator: Exists}], requiredNodeSelectorTerm: {matchExpressions: [{key: spreads, operator: Exists}]}}`)
	if over, binds := compete(t, cluster, tolerating.Replace(rivals)); len(over) > 0 {
		t.Errorf("%d of %d binds gave a node too many pods, first %s", len(over), binds, over[0])
	}
}

func sandboxPod(name string, tolerations ...corev1.Toleration) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "main", Image: "registry.k8s.io/pause:3.10"}}, Tolerations: tolerations}}
}

// startRivals starts a cluster with few nodes, of which some have the label spreads and the taint that keeps others off.
func startRivals(t *testing.T, config sandbox.Config, options product.Options, apart int) *harness.Cluster {
	t.Helper()
	config.Dir = t.TempDir()
	cluster, err := harness.Start(t.Context(), config, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Sandbox.Stop)
	var all []*corev1.Node
	for i := range fewNodes {
		var labels map[string]string
		var taints []corev1.Taint
		if i < apart {
			labels, taints = map[string]string{"spreads": ""}, []corev1.Taint{{Key: apartTaint, Effect: corev1.TaintEffectNoSchedule}}
		}
		all = append(all, sandbox.NewNode(fmt.Sprint("node-", i), "zone-a", labels, taints, sandbox.Allocatable(resource.MustParse(fmt.Sprint(places)), resource.MustParse(sandbox.DefaultNodeMemory))))
	}
	if err := cluster.Sandbox.CreateNodes(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	return cluster
}

// compete has pods compete for the nodes in rounds: first those of these objects, then urgent ones that preempt. It returns each bind that gave a node more pods than it has room
// for, and how many binds there were.
func compete(t *testing.T, cluster *harness.Cluster, objects string) (over []string, binds int) {
	t.Helper()
	for range *rounds {
		ns, err := cluster.CreateNamespace(t.Context(), "rivals")
		if err != nil {
			t.Fatal(err)
		}
		end := countOverfull(t, cluster, ns)
		for urgent, text := range []string{objects, urgentRivals} {
			if err := cluster.ApplyYAML(t.Context(), ns, text); err != nil {
				t.Fatal(err)
			}
			if err := cluster.WaitFor(t.Context(), "pods to have all places", func(ctx context.Context) (string, error) {
				run, first, err := whoRuns(ctx, cluster, ns)
				return map[bool]string{false: fmt.Sprintf("%d run, %d of them urgent", run, first)}[run >= fewNodes*places && first >= urgent*wantUrgent], err
			}); err != nil {
				t.Fatal(err)
			}
		}
		found, n := end()
		over, binds = append(over, found...), binds+n
		if err := cluster.DeleteNamespace(t.Context(), ns); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d of %d binds gave a node too many pods: %.1f of 1,000", len(over), binds, 1000*float64(len(over))/float64(binds))
	return over, binds
}

func whoRuns(ctx context.Context, cluster *harness.Cluster, ns string) (run, urgent int, err error) {
	pods, err := cluster.Pods(ctx, ns)
	for i := range pods {
		if pods[i].DeletionTimestamp != nil || pods[i].Spec.NodeName == "" || pods[i].Status.Phase == corev1.PodFailed {
			continue
		}
		run++
		if pods[i].Labels["app"] == "urgent" {
			urgent++
		}
	}
	return run, urgent, err
}

// countOverfull watches the pods of a namespace. It returns a function that ends the watch and returns each bind that gave a node more pods than places, and how many binds there
// were. It refuses such a pod, as a kubelet does.
func countOverfull(t *testing.T, cluster *harness.Cluster, ns string) (end func() (over []string, binds int)) {
	t.Helper()
	w, err := cluster.Client.CoreV1().Pods(ns).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	found, binds, done := []string{}, 0, make(chan struct{})
	go func() {
		defer close(done)
		on := map[string]map[string]bool{}
		for event := range w.ResultChan() {
			pod, is := event.Object.(*corev1.Pod)
			if !is || pod.Spec.NodeName == "" {
				continue
			}
			there := on[pod.Spec.NodeName]
			if there == nil {
				there = map[string]bool{}
				on[pod.Spec.NodeName] = there
			}
			if event.Type == watch.Deleted || pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
				delete(there, pod.Name)
				continue
			}
			if there[pod.Name] {
				continue
			}
			binds++
			if there[pod.Name] = true; len(there) > places {
				found = append(found, fmt.Sprintf("%s with %d pods", pod.Spec.NodeName, len(there)))
				if _, err := cluster.Client.CoreV1().Pods(ns).Patch(t.Context(), pod.Name, types.MergePatchType, []byte(`{"status": {"phase": "Failed", "reason": "OutOfcpu"}}`), metav1.PatchOptions{}, "status"); err != nil {
					t.Errorf("refusing pod %s: %v", pod.Name, err)
				}
			}
		}
	}()
	return func() ([]string, int) {
		w.Stop()
		<-done
		return found, binds
	}
}
