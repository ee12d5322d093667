package neighbours

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/test/checker"
	"github.com/berth-project/berth/test/harness"
)

var rollouts = schema.GroupVersionResource{Group: "argoproj.io", Version: "v1alpha1", Resource: "rollouts"}

// installRollouts installs the controller of Argo Rollouts, and starts it.
func installRollouts(ctx context.Context, cluster *harness.Cluster, dir string) (*process, error) {
	const name = "argo-rollouts"
	p := &process{name: "rollouts-controller", dir: dir}
	module, err := harness.ModuleDir(ctx, "rollouts", "github.com/argoproj/argo-rollouts")
	if err != nil {
		return nil, err
	}
	objects, err := objectsIn(filepath.Join(module, "manifests"), strings.NewReplacer(), "crds/*-crd.yaml", "role/argo-rollouts-clusterrole.yaml",
		"cluster-install/argo-rollouts-clusterrolebinding.yaml", "base/argo-rollouts-sa.yaml")
	if err != nil {
		return nil, err
	}
	kubeconfig, err := installed(ctx, cluster, dir, name, name, objects)
	if err != nil {
		return nil, err
	}
	if err := served(ctx, cluster, rollouts.GroupVersion().WithKind("Rollout")); err != nil {
		return nil, err
	}
	ports, err := freePorts(2)
	if err != nil {
		return nil, err
	}
	return p, p.start(ctx, cluster, fmt.Sprintf("http://127.0.0.1:%d/healthz", ports[0]), nil, []string{"--kubeconfig=" + kubeconfig, "--namespace=" + name,
		fmt.Sprintf("--healthzPort=%d", ports[0]), fmt.Sprintf("--metricsPort=%d", ports[1]), "--leader-elect=false", "--qps=1000", "--burst=1000"})
}

// shares is a spread of half of the pods of web in a, a quarter in b, and a quarter in c, and a budget for 3 of them.
func shares() string {
	return fmt.Sprintf(`
apiVersion: apps.kruise.io/v1alpha1
kind: WorkloadSpread
metadata: {name: web}
spec:
  targetRef: {apiVersion: argoproj.io/v1alpha1, kind: Rollout, name: web}
  subsets:
  - {name: a, maxReplicas: 50%%, requiredNodeSelectorTerm: %s}
  - {name: b, maxReplicas: 25%%, requiredNodeSelectorTerm: %s}
  - {name: c, maxReplicas: 25%%, requiredNodeSelectorTerm: %s}
`, inPool("a"), inPool("b"), inPool("c")) + budgetOf(3)
}

// template is what the pods of web are made of.
func template() string {
	return "template: {metadata: {labels: {app: web}}, spec: {terminationGracePeriodSeconds: 0, containers: [{name: main, image: " + oldImage + "}]}}"
}

// rollout is the Rollout web, with its pods or with a reference to them.
func rollout(replicas int, strategy, pods string) string {
	return fmt.Sprintf(`---
apiVersion: argoproj.io/v1alpha1
kind: Rollout
metadata: {name: web}
spec:
  replicas: %d
  selector: {matchLabels: {app: web}}
  strategy: {%s}
  %s
`, replicas, strategy, pods)
}

// ofStack is the revision of a pod of a Rollout.
func ofStack(pod *corev1.Pod) string { return pod.Labels["rollouts-pod-template-hash"] }

// expectPhase waits until the Rollout says that it has looked at its spec, and is Healthy or Paused.
func expectPhase(t *testing.T, ns, want string) {
	t.Helper()
	if err := the.WaitFor(t.Context(), "the Rollout to be "+want, func(ctx context.Context) (string, error) {
		web, err := the.Dynamic.Resource(rollouts).Namespace(ns).Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		phase, _, _ := unstructured.NestedString(web.Object, "status", "phase")
		if seen, _, _ := unstructured.NestedString(web.Object, "status", "observedGeneration"); phase != want || seen != fmt.Sprint(web.GetGeneration()) {
			return fmt.Sprint("its status is ", web.Object["status"]), nil
		}
		return "", nil
	}); err != nil {
		t.Fatal(err)
	}
}

// decide writes a decision into the status of the Rollout, as its own plugin of kubectl does.
func decide(t *testing.T, ns, status string) {
	t.Helper()
	if _, err := the.Dynamic.Resource(rollouts).Namespace(ns).Patch(t.Context(), "web", types.MergePatchType, []byte(`{"status":{`+status+`}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
}

// promote lets a paused Rollout go on.
func promote(t *testing.T, ns string) {
	t.Helper()
	expectPhase(t, ns, "Paused")
	decide(t, ns, `"pauseConditions":null`)
}

// watched lets a checker judge each bind in the namespace, and wants so many at least.
func watched(t *testing.T, ns string, atLeast int) {
	t.Helper()
	quotas, err := checker.StartIn(t.Context(), the.Dynamic, ns)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, violation := range quotas.Violations() {
			t.Error(violation)
		}
		if n := quotas.Judged(); n < atLeast {
			t.Errorf("only %d binds were judged, want %d", n, atLeast)
		}
	})
}

// TestACanaryOfARollout: each revision has the percentages of the whole for itself, at each weight, and the last step ends in the layout of before.
func TestACanaryOfARollout(t *testing.T) {
	ns := namespace(t)
	watched(t, ns, 24)
	p := promise(t, the, ns, map[string]int{"node-a": 6, "node-b": 3, "node-c": 3}, ofStack)
	apply(t, ns, shares()+rollout(12, "canary: {maxSurge: 3, maxUnavailable: 0, steps: [{setWeight: 25}, {pause: {}}, {setWeight: 50}, {pause: {}}]}", template()))
	expect(t, ns, "a=6 b=3 c=3", 0)
	expectPhase(t, ns, "Healthy")
	p.atLeast(9)
	patch(t, rollouts, ns, `{"spec":{`+containers(newImage)+`}}`)
	expectStacks(t, ns, map[string]int{oldImage: 9, newImage: 3})
	promote(t, ns)
	expectStacks(t, ns, map[string]int{oldImage: 6, newImage: 6})
	end := evict(t, ns)
	end(3)
	expectStacks(t, ns, map[string]int{oldImage: 6, newImage: 6})
	promote(t, ns)
	expect(t, ns, "a=6 b=3 c=3", 12)
	expectPhase(t, ns, "Healthy")
	patch(t, rollouts, ns, `{"spec":{`+containers(oldImage)+`}}`)
	expectStacks(t, ns, map[string]int{oldImage: 3, newImage: 9})
	decide(t, ns, `"abort":true`)
	expect(t, ns, "a=6 b=3 c=3", 12)
}

// expectStacks waits until so many pods of each image are ready, and no others are there.
func expectStacks(t *testing.T, ns string, want map[string]int) {
	t.Helper()
	if err := the.WaitFor(t.Context(), fmt.Sprint(want), func(ctx context.Context) (string, error) {
		all, err := the.Pods(ctx, ns)
		if err != nil {
			return "", err
		}
		is := map[string]int{}
		for i := range all {
			if !isAvailable(&all[i]) {
				return all[i].Name + " is not ready", nil
			}
			is[all[i].Spec.Containers[0].Image]++
		}
		if fmt.Sprint(is) != fmt.Sprint(want) {
			return fmt.Sprint(is), nil
		}
		return "", nil
	}); err != nil {
		t.Fatal(err)
	}
}

// TestBlueAndGreenStacksOfARollout: the green stack gets the same layout as the blue one, which is there until the switch. The Rollout takes its template from a Deployment, which has no pods.
func TestBlueAndGreenStacksOfARollout(t *testing.T) {
	ns := namespace(t)
	watched(t, ns, 24)
	p := promise(t, the, ns, map[string]int{"node-a": 6, "node-b": 3, "node-c": 3}, ofStack)
	apply(t, ns, shares()+`---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec: {replicas: 0, selector: {matchLabels: {app: web}}, `+template()+`}
`+rollout(12, "blueGreen: {activeService: web, autoPromotionEnabled: false, scaleDownDelaySeconds: 1}", "workloadRef: {apiVersion: apps/v1, kind: Deployment, name: web}"))
	expect(t, ns, "a=6 b=3 c=3", 0)
	expectPhase(t, ns, "Healthy")
	p.atLeast(12)
	patch(t, deployments, ns, `{"spec":{`+containers(newImage)+`}}`)
	expect(t, ns, "a=12 b=6 c=6", 12)
	promote(t, ns)
	expect(t, ns, "a=6 b=3 c=3", 12)
}

// TestARestartOfARolloutGoesByTheBudget: Argo Rollouts restarts pods by evictions, which the budget decides about.
func TestARestartOfARolloutGoesByTheBudget(t *testing.T) {
	ns := namespace(t)
	p := promise(t, the, ns, map[string]int{"node-a": 6, "node-b": 3, "node-c": 3}, ofStack)
	apply(t, ns, shares()+rollout(12, "canary: {maxSurge: 12, maxUnavailable: 100%}", template()))
	before := expect(t, ns, "a=6 b=3 c=3", 0)
	p.atLeast(9)
	all, err := the.Pods(t.Context(), ns)
	if err != nil {
		t.Fatal(err)
	}
	var latest time.Time
	for i := range all {
		if made := all[i].CreationTimestamp.Time; made.After(latest) {
			latest = made
		}
	}
	// A pod that was made in the second of restartAt stays.
	patch(t, rollouts, ns, fmt.Sprintf(`{"spec":{"restartAt":%q}}`, latest.Add(time.Second).UTC().Format(time.RFC3339)))
	if err := the.WaitFor(t.Context(), "the restart of all pods", func(ctx context.Context) (string, error) {
		all, err := the.Pods(ctx, ns)
		for i := range all {
			if before[all[i].Name] == all[i].UID {
				return all[i].Name + " has not been restarted", err
			}
		}
		return "", err
	}); err != nil {
		t.Fatal(err)
	}
	expect(t, ns, "a=6 b=3 c=3", 0)
}

// TestAnAutoscalerMovesARollout: percentages are those of the replicas that the autoscaler gives the Rollout, also from zero.
func TestAnAutoscalerMovesARollout(t *testing.T) {
	ns := namespace(t)
	watched(t, ns, 30)
	apply(t, ns, shares()+rollout(4, "canary: {}", template())+autoscaler("argoproj.io/v1alpha1", "Rollout"))
	for _, step := range []struct {
		queue  int
		layout string
	}{{4, "a=2 b=1 c=1"}, {20, "a=10 b=5 c=5"}, {8, "a=4 b=2 c=2"}, {0, "a=0 b=0 c=0"}, {12, "a=6 b=3 c=3"}} {
		metrics.set(ns, step.queue)
		expect(t, ns, step.layout, 0)
	}
}
