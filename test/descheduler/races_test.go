package descheduler

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/descheduler/pkg/descheduler/evictions"
	"sigs.k8s.io/descheduler/pkg/framework/pluginregistry"
	frameworktypes "sigs.k8s.io/descheduler/pkg/framework/types"

	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/descheduler"
	"github.com/berth-project/berth/pkg/descheduler/cycle"
	"github.com/berth-project/berth/pkg/plugins/descheduling"
	"github.com/berth-project/berth/test/harness"
)

// beforeEviction calls a function between the decision and the eviction.
func beforeEviction(do func(*corev1.Pod)) func(*descheduler.Options) {
	return func(o *descheduler.Options) {
		o.Register = func(world *cycle.World, registry pluginregistry.Registry) {
			descheduling.Register(world, registry)
			for name, plugin := range registry {
				build := plugin.PluginBuilder
				plugin.PluginBuilder = func(ctx context.Context, args runtime.Object, handle frameworktypes.Handle) (frameworktypes.Plugin, error) {
					return build(ctx, args, delayedHandle{handle, do})
				}
				registry[name] = plugin
			}
		}
	}
}

type delayedHandle struct {
	frameworktypes.Handle
	do func(*corev1.Pod)
}

func (h delayedHandle) Evictor() frameworktypes.Evictor {
	return delayedEvictor{h.Handle.Evictor(), h.do}
}

type delayedEvictor struct {
	frameworktypes.Evictor
	do func(*corev1.Pod)
}

func (e delayedEvictor) Evict(ctx context.Context, pod *corev1.Pod, opts evictions.EvictOptions) error {
	e.do(pod)
	return e.Evictor.Evict(ctx, pod, opts)
}

// Case 21: a pending pod is bound between the decision and the eviction. The pod stays, and the move is not recorded.
func TestAPodThatIsBoundMeanwhileStays(t *testing.T) {
	ns := newNamespace(t)
	pool(t, ns, "b", "32")
	apply(t, ns, spreadOf(ns, "ReplicaSet", "{type: Adaptive, adaptive: {rescheduleCriticalSeconds: 1}}", "a!patched=- b!patched=-")+"---"+workload("ReplicaSet", 1, "100m"))
	waitFor(t, "an unschedulable pod", func(ctx context.Context) (string, error) {
		pods, err := live(ctx, ns)
		if err != nil || len(pods) == 1 && len(pods[0].Status.Conditions) > 0 {
			return "", err
		}
		return "they are " + layout(pods) + ".", nil
	})
	watch := watchDisruptions(t, ns, 0)
	bound := false
	moved, _ := mustDeschedule(t, policyOf(ns, unschedulable, ""), at(time.Now().Add(time.Minute)), beforeEviction(func(*corev1.Pod) {
		pool(t, ns, "a", "32")
		expectLayout(t, ns, "a=1")
		bound = true
	}))
	if !bound || len(moved) != 1 || moved[0].Result != "Changed" {
		t.Errorf("the pod was bound: %t, and its eviction: %+v", bound, moved)
	}
	expectLayout(t, ns, "a=1")
	watch.expect(t, 0)
	if moves := spreadStatus(t, ns).Moves; len(moves) != 0 {
		t.Errorf("the status remembers %+v", moves)
	}
}

// Case 21, the other half: a StatefulSet recreates a pod under the same name between the decision and the eviction. The new pod stays.
func TestAnotherPodOfTheSameNameStays(t *testing.T) {
	ns := newNamespace(t)
	pool(t, ns, "a", "32")
	pool(t, ns, "b", "32")
	apply(t, ns, spreadOf(ns, "StatefulSet", adaptive, "a=2 b=-")+"---"+strings.Replace(workload("StatefulSet", 2, "100m"), "  replicas:", "  serviceName: web\n  podManagementPolicy: Parallel\n  replicas:", 1))
	expectLayout(t, ns, "a=2")
	setQuota(t, ns, 1)
	deleted := map[string]bool{}
	moved, _ := mustDeschedule(t, policyOf(ns, enforce, ""), beforeEviction(func(pod *corev1.Pod) {
		if err := the.Client.CoreV1().Pods(ns).Delete(t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		deleted[pod.Name] = true
		waitFor(t, "another pod of the name", func(ctx context.Context) (string, error) {
			replacement, err := the.Client.CoreV1().Pods(ns).Get(ctx, pod.Name, metav1.GetOptions{})
			if err != nil || replacement.UID == pod.UID {
				return fmt.Sprint(err), nil
			}
			return "", nil
		})
	}))
	if len(moved) != 1 || !deleted[moved[0].Pod] || moved[0].Result != "Changed" {
		t.Fatalf("got %+v", moved)
	}
	replacement, err := the.Client.CoreV1().Pods(ns).Get(t.Context(), moved[0].Pod, metav1.GetOptions{})
	if err != nil || replacement.DeletionTimestamp != nil {
		t.Errorf("the new pod: %v, %v", replacement.DeletionTimestamp, err)
	}
}

// Case 29: two deschedulers and a Job that a user starts look at the same cluster at the same time. They move only pods that must move, and each of
// them only once.
func TestSeveralDeschedulersAtOnce(t *testing.T) {
	ns := newNamespace(t)
	pool(t, ns, "a", "32")
	pool(t, ns, "b", "32")
	apply(t, ns, spreadOf(ns, "ReplicaSet", adaptive, "a=12 b=-")+"---"+workload("ReplicaSet", 12, "100m"))
	expectLayout(t, ns, "a=12")
	watch := watchDisruptions(t, ns, 0)
	setQuota(t, ns, 3)
	policy := policyOf(ns, enforce, "settleTime: 0s, maxUnavailable: 25%")
	for round := 0; round < 20 && watch.count() < 9; round++ {
		var running sync.WaitGroup
		for i := range 3 {
			cmd, output := process(t, serviceAccount, policy)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			running.Go(func() {
				if err := cmd.Wait(); err != nil {
					t.Errorf("descheduler %d: %v\n%s", i, err, output)
				}
			})
		}
		running.Wait()
		if t.Failed() {
			return
		}
		atRest(t, ns, 12)
	}
	expectLayout(t, ns, "a=3 b=9")
	watch.expect(t, 9)
}

// Case 29, the other half: the test kills the leader of two in the middle of its work. The other replica continues. In the end each pod was moved
// once.
func TestTheNextLeaderGoesOn(t *testing.T) {
	ns := newNamespace(t)
	pool(t, ns, "a", "32")
	pool(t, ns, "b", "32")
	apply(t, ns, spreadOf(ns, "ReplicaSet", adaptive, "a=12 b=-")+"---"+workload("ReplicaSet", 12, "100m"))
	expectLayout(t, ns, "a=12")
	watch := watchDisruptions(t, ns, 0)
	policy := policyOf(ns, enforce, "settleTime: 0s, maxUnavailable: 1")
	start := func() func() {
		cmd, _ := process(t, serviceAccount, policy, "--descheduling-interval=500ms", "--leader-elect=true", "--leader-elect-lease-duration=3s",
			"--leader-elect-renew-deadline=2s", "--leader-elect-retry-period=200ms")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var once sync.Once
		kill := func() { once.Do(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }) }
		t.Cleanup(kill)
		return kill
	}
	goneOn := func(context.Context) (string, error) {
		if n := watch.count(); n < 9 {
			return fmt.Sprintf("%d pods were moved", n), nil
		}
		return "", nil
	}
	killFirst := start()
	waitFor(t, "the first to lead", func(ctx context.Context) (string, error) {
		lease, err := the.Client.CoordinationV1().Leases("berth-system").Get(ctx, "berth-descheduler", metav1.GetOptions{})
		if err != nil || lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" {
			return fmt.Sprint(err), nil
		}
		return "", nil
	})
	killSecond := start()
	setQuota(t, ns, 3)
	waitFor(t, "some moves", func(context.Context) (string, error) {
		if n := watch.count(); n < 3 {
			return fmt.Sprintf("%d pods were moved", n), nil
		}
		return "", nil
	})
	killFirst()
	// If the leader was killed between the write and the eviction, its pod counts as gone for two minutes.
	if err := the.WaitFor(t.Context(), "the second to go on", goneOn); err != nil {
		waitFor(t, "the second to go on after that", goneOn)
	}
	expectLayout(t, ns, "a=3 b=9")
	killSecond()
	watch.expect(t, 9)
}

// Case 30: if something is missing, the run ends with exit code 1 within the sync timeout. The error names what is missing.
func TestWhatIsMissingIsNamed(t *testing.T) {
	harness.Long(t)
	ns := newNamespace(t)
	try := func(t *testing.T, within time.Duration, user, policy string, args []string, want ...string) {
		t.Helper()
		cmd, output := process(t, user, policy, args...)
		began := time.Now()
		code := exitCode(t, cmd.Run())
		if took := time.Since(began); code != 1 || took > within {
			t.Errorf("exit code %d after %s\n%s", code, took, output)
		}
		for _, text := range want {
			if !strings.Contains(output.String(), text) {
				t.Errorf("%q is not in:\n%s", text, output)
			}
		}
	}
	t.Run("rights", func(t *testing.T) {
		try(t, 20*time.Second, powerless, policyOf(ns, enforce, ""), []string{"--sync-timeout=5s"}, "pods is forbidden", "not everything could be read within 5s")
	})
	t.Run("the API server", func(t *testing.T) {
		try(t, 10*time.Second, serviceAccount, policyOf(ns, enforce, ""), []string{"--sync-timeout=3s", "--kubeconfig=" + kubeconfigOf(t, "https://127.0.0.1:1")}, "not everything could be read within 3s", "connection refused")
	})
	t.Run("a plugin of the policy", func(t *testing.T) {
		try(t, 20*time.Second, serviceAccount, strings.ReplaceAll(policyOf(ns, enforce, ""), enforce, "EnforceEverything"), nil, "EnforceEverything")
	})
	t.Run("a field of the policy", func(t *testing.T) {
		try(t, 20*time.Second, serviceAccount, policyOf(ns, enforce, "settle: 3s"), nil, `unknown field "settle"`)
	})
	t.Run("the custom resources", func(t *testing.T) {
		bare, err := sandbox.Start(t.Context(), sandbox.Config{Name: "bare", Dir: t.TempDir(), BinDir: binDir(), Without: []string{sandbox.ControllerManager, sandbox.KWOK}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(bare.Stop)
		client, err := kubernetes.NewForConfig(bare.RESTConfig())
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"one", "two"} { // with fewer, the framework runs no cycle
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
			if _, err := client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		try(t, 20*time.Second, serviceAccount, policyOf(ns, enforce, ""), []string{"--sync-timeout=20s", "--kubeconfig=" + bare.Kubeconfig()}, "listing spreads", "no matches for apps.kruise.io/v1beta1")
	})
}

// One cycle evicts pods of several spreads at the same time. A budget covers all of them. Each decision takes from the budget, so the cycle does not
// try more evictions than the budget allows.
func TestSeveralSpreadsShareABudget(t *testing.T) {
	harness.Long(t)
	const spreads = 6
	ns := newNamespace(t)
	pool(t, ns, "a", "32")
	pool(t, ns, "b", "32")
	named := func(i int) string { return fmt.Sprintf("web-%d", i) }
	for i := range spreads {
		apply(t, ns, strings.ReplaceAll(spreadOf(ns, "ReplicaSet", adaptive, "a=3 b=-")+"---"+workload("ReplicaSet", 3, "100m"), "web", named(i)))
	}
	expectLayout(t, ns, "a=18")
	apply(t, ns, "{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: all}, spec: {maxUnavailable: 4, selector: {}}}")
	settled := func() {
		t.Helper()
		waitFor(t, "the budget to have room for four", func(ctx context.Context) (string, error) {
			pdb, err := the.Client.PolicyV1().PodDisruptionBudgets(ns).Get(ctx, "all", metav1.GetOptions{})
			if err != nil || pdb.Status.ObservedGeneration == pdb.Generation && pdb.Status.DisruptionsAllowed == 4 && len(pdb.Status.DisruptedPods) == 0 {
				return "", err
			}
			return fmt.Sprint(pdb.Status), nil
		})
	}
	settled()
	watch := watchDisruptions(t, ns, 14)
	for i := range spreads {
		if _, err := the.Dynamic.Resource(v1beta1.Resource).Namespace(ns).Patch(t.Context(), named(i), types.JSONPatchType, []byte(`[{"op":"replace","path":"/spec/subsets/0/maxReplicas","value":1}]`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for round := 1; round <= 3; round++ {
		moved, kept := mustDeschedule(t, policyOf(ns, enforce, "settleTime: 0s, maxUnavailable: 100%"))
		if len(moved) != 4 || kept[v1beta1.ReasonBudgetExhausted] != 12-4*round {
			t.Fatalf("round %d: moved %+v, kept %v", round, moved, kept)
		}
		for i := range moved {
			if moved[i].Result != "Evicted" {
				t.Errorf("round %d: %+v", round, moved[i])
			}
			if i > 0 && moved[i].Spread < moved[i-1].Spread {
				t.Errorf("round %d: the plan is out of order: %+v", round, moved)
			}
		}
		atRest(t, ns, 18)
		settled()
	}
	expectLayout(t, ns, "a=6 b=12")
	watch.expect(t, 12)
}

// Two spreads want to change places, and only one pod has a free node to go to. A budget refuses its eviction, so the other pod has nowhere to go. The
// other pod moves once the room is really free.
func TestTheRoomOfAPodThatMayStayIsNotGivenAway(t *testing.T) {
	ns := newNamespace(t)
	pool(t, ns, "a", "1")
	pool(t, ns, "b", "1", "1")
	for name, subsets := range map[string]string{"first": "a=1 b=-", "second": "b=1 a=-"} {
		apply(t, ns, strings.ReplaceAll(spreadOf(ns, "ReplicaSet", adaptive, subsets)+"---"+workload("ReplicaSet", 1, "700m"), "web", name))
	}
	expectLayout(t, ns, "a=1 b=1")
	for _, name := range []string{"first", "second"} {
		if _, err := the.Dynamic.Resource(v1beta1.Resource).Namespace(ns).Patch(t.Context(), name, types.JSONPatchType, []byte(`[{"op":"replace","path":"/spec/subsets/0/maxReplicas","value":0}]`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	watch := watchDisruptions(t, ns, 0)
	policy := policyOf(ns, enforce, "settleTime: 0s, maxUnavailable: 100%")
	report, err := descheduleOnce(t, policy, beforeEviction(func(*corev1.Pod) {
		apply(t, ns, "{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: first}, spec: {maxUnavailable: 0, selector: {matchLabels: {app: first}}}}")
	}))
	if code := descheduler.ExitCode(err); code != 2 || len(report.Lines) != 2 {
		t.Fatalf("exit code %d (%v), %+v", code, err, report.Lines)
	}
	for _, line := range report.Lines {
		if line.Spread == "first" && line.Result != "Refused" || line.Spread == "second" && line.Reason != v1beta1.ReasonNoRoom {
			t.Errorf("got %+v", line)
		}
	}
	watch.expect(t, 0)
	expectLayout(t, ns, "a=1 b=1")
	if err := the.Client.PolicyV1().PodDisruptionBudgets(ns).Delete(t.Context(), "first", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, spread := range []string{"first", "second"} {
		moved, _ := mustDeschedule(t, policy)
		if len(moved) != 1 || moved[0].Spread != spread || moved[0].Result != "Evicted" {
			t.Errorf("%s should move: %+v", spread, moved)
		}
		atRest(t, ns, 2)
	}
	expectLayout(t, ns, "a=1 b=1")
	watch.expect(t, 2)
}
