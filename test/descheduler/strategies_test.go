package descheduler

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/manifests"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	policyv1beta1 "github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/descheduler"
	"github.com/berth-project/berth/test/harness"
)

const adaptive = "{type: Adaptive}"

// Case 23: maxReplicas is lowered from 10 to 3 while a budget allows one unavailable pod at a time. The layout converges step by step. The budget
// holds at every revision. Exactly 7 pods are disrupted.
func TestALoweredQuotaIsEnforcedUnderItsBudget(t *testing.T) {
	ns := newNamespace(t)
	pool(t, ns, "a", "32")
	pool(t, ns, "b", "32")
	apply(t, ns, spreadOf(ns, "ReplicaSet", adaptive, "a=10 b=-")+"---"+workload("ReplicaSet", 10, "100m")+`---
apiVersion: policy.kruise.io/v1alpha1
kind: PodUnavailableBudget
metadata: {name: web}
spec: {selector: {matchLabels: {app: web}}, maxUnavailable: 1}
`)
	expectLayout(t, ns, "a=10")
	inForce(t, ns, 1)
	watch := watchDisruptions(t, ns, 9)
	setQuota(t, ns, 3)
	policy := policyOf(ns, enforce, "settleTime: 0s, maxUnavailable: 100%")
	before := 10
	for range 40 {
		moved, _ := mustDeschedule(t, policy)
		if len(moved) > 1 {
			t.Fatalf("one cycle moved %d pods under a budget of one", len(moved))
		}
		pods := atRest(t, ns, 10)
		inForce(t, ns, 1)
		in := strings.Count(fmt.Sprint(names(pods, "a")), "web-")
		if in > before {
			t.Fatalf("subset a went from %d pods to %d", before, in)
		}
		if before = in; in == 3 {
			break
		}
	}
	expectLayout(t, ns, "a=3 b=7")
	if moved, _ := mustDeschedule(t, policy); len(moved) != 0 {
		t.Errorf("%d more pods were moved", len(moved))
	}
	watch.expect(t, 7)
	status := spreadStatus(t, ns)
	if len(status.Moves) != 1 || status.Moves[0].From != "a" || status.Moves[0].To != "b" || status.Moves[0].Round != 1 || status.Misplaced != nil {
		t.Errorf("the status remembers %+v, %+v", status.Moves, status.Misplaced)
	}
	// The framework writes one event on each pod, if the process runs long enough.
	events, err := the.Client.EventsV1().Events(ns).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=OverQuota,reportingController=berth-descheduler"})
	if err != nil {
		t.Fatal(err)
	}
	if len(events.Items) != 7 || events.Items[0].Regarding.Kind != "WorkloadSpread" || events.Items[0].Related.Kind != "Pod" {
		t.Errorf("%d events, want 7 on the spread: %+v", len(events.Items), events.Items)
	}
}

func names(pods []corev1.Pod, in string) (all []string) {
	for i := range pods {
		if pods[i].Labels[v1beta1.SubsetLabel] == in {
			all = append(all, pods[i].Name)
		}
	}
	return all
}

// A budget allows no pod to go, and has a new one made first. All pods come home, and at each revision as many are ready as were asked for.
func TestPodsComeHomeThatAreReplacedFirst(t *testing.T) {
	const pods, atATime = 100, 25
	ns := newNamespace(t)
	first := pool(t, ns, "a", "32")
	cordon(t, first, true)
	pool(t, ns, "b", "32")
	apply(t, ns, spreadOf(ns, "Deployment", adaptive, fmt.Sprintf("a=%d b=-", pods))+"---"+workload("Deployment", pods, "100m")+fmt.Sprintf(`---
apiVersion: policy.kruise.io/v1beta1
kind: PodUnavailableBudget
metadata: {name: web}
spec: {selector: {matchLabels: {app: web}}, maxUnavailable: 0, replaceFirst: {maxPods: %d}}
`, atATime))
	expectLayout(t, ns, fmt.Sprintf("b=%d", pods))
	inForce(t, ns, 0)
	told(t, ns)
	watch := watchDisruptions(t, ns, pods)
	cordon(t, first, false)
	policy := policyOf(ns, rebalance, "stabilizationWindow: 0s, minResidence: 0s, cooldown: 0s, maxMovesPerSpread: 100")
	asked := 0
	for cycles := 0; asked < pods; cycles++ {
		if cycles == 20 {
			t.Fatalf("after %d cycles %d pods were asked for", cycles, asked)
		}
		moved, _ := mustDeschedule(t, policy)
		if len(moved) > atATime {
			t.Fatalf("one cycle asked for %d pods under a budget that replaces %d at a time", len(moved), atATime)
		}
		for _, line := range moved {
			if line.Result != "ReplacedFirst" && line.Result != "Evicted" { // there is room as soon as a new pod is ready
				t.Errorf("pod %s: %s", line.Pod, line.Result)
			}
		}
		asked += len(moved)
		waitFor(t, "the pods that are replaced first to be gone", func(ctx context.Context) (string, error) {
			pub, err := the.Dynamic.Resource(policyv1beta1.Resource).Namespace(ns).Get(ctx, "web", metav1.GetOptions{})
			if err != nil {
				return "", err
			}
			replacing, _, err := unstructured.NestedSlice(pub.Object, "status", "replacing")
			if len(replacing) > 0 {
				return fmt.Sprint(replacing), err
			}
			return "", err
		})
		atRest(t, ns, pods)
		told(t, ns)
	}
	expectLayout(t, ns, fmt.Sprintf("a=%d", pods))
	watch.expect(t, pods)
}

// A spread divides three pods of a StatefulSet of five, and nothing says that there should be three. They come home all the same.
func TestPodsOfASpreadOfAPartComeHome(t *testing.T) {
	ns := newNamespace(t)
	first := pool(t, ns, "a", "32")
	cordon(t, first, true)
	pool(t, ns, "b", "32")
	part := strings.Replace(spreadOf(ns, "StatefulSet", adaptive, "a=- b=-"), "  subsets:\n",
		"  targetFilter: {selector: {matchExpressions: [{key: apps.kubernetes.io/pod-index, operator: In, values: ['0', '1', '2']}]}}\n  subsets:\n", 1)
	apply(t, ns, part+"---"+strings.Replace(workload("StatefulSet", 5, "100m"), "  replicas:", "  serviceName: web\n  podManagementPolicy: Parallel\n  replicas:", 1))
	expectLayout(t, ns, "b=3 none=2")
	told(t, ns)
	cordon(t, first, false)
	policy := policyOf(ns, rebalance, "stabilizationWindow: 0s, minResidence: 0s, cooldown: 0s, maxMovesPerSpread: 1")
	for home, want := range []string{"a=1 b=2 none=2", "a=2 b=1 none=2", "a=3 none=2"} {
		if moved, kept := mustDeschedule(t, policy); len(moved) != 1 {
			t.Fatalf("with %d pods at home: moved %+v, kept %v", home, moved, kept)
		}
		expectLayout(t, ns, want)
	}
	if moved, kept := mustDeschedule(t, policy); len(moved) != 0 || len(kept) != 0 {
		t.Errorf("with all pods at home: moved %+v, kept %v", moved, kept)
	}
}

// Case 27: the preferred subset gets room for one pod, and 20 pods could use it. Each cycle with new room evicts exactly one pod.
func TestOnePodComesHomeForOneFreePlace(t *testing.T) {
	ns := newNamespace(t)
	cordon(t, pool(t, ns, "a", "1"), true)
	pool(t, ns, "b", "32")
	apply(t, ns, spreadOf(ns, "ReplicaSet", adaptive, "a=- b=-")+"---"+workload("ReplicaSet", 20, "700m"))
	expectLayout(t, ns, "b=20")
	told(t, ns)
	policy := policyOf(ns, rebalance, "stabilizationWindow: 0s, minResidence: 0s, cooldown: 0s, maxMovesPerSpread: 20")
	if moved, kept := mustDeschedule(t, policy); len(moved) != 0 || kept[v1beta1.ReasonNoRoom] != 20 {
		t.Fatalf("with no room: moved %+v, kept %v", moved, kept)
	}
	for home := 1; home <= 3; home++ {
		pool(t, ns, "a", "1")
		moved, kept := mustDeschedule(t, policy)
		if len(moved) != 1 || moved[0].Result != "Evicted" || kept[v1beta1.ReasonNoRoom] != 20-home {
			t.Fatalf("with room for one: moved %+v, kept %v", moved, kept)
		}
		expectLayout(t, ns, fmt.Sprintf("a=%d b=%d", home, 20-home))
		told(t, ns)
		if moved, _ := mustDeschedule(t, policy); len(moved) != 0 {
			t.Fatalf("with the room taken: moved %+v", moved)
		}
	}
	expectQueriedMetrics(t)
}

// Case 25: no subset has room, and 30 cycles evict nothing. Then capacity appears, and the layout converges.
func TestNothingIsEvictedWithoutRoom(t *testing.T) {
	harness.Long(t)
	ns := newNamespace(t)
	pool(t, ns, "a", "32")
	apply(t, ns, spreadOf(ns, "ReplicaSet", "{type: Adaptive, whenFull: Wait}", "a=10 b=-")+"---"+workload("ReplicaSet", 10, "100m"))
	expectLayout(t, ns, "a=10")
	watch := watchDisruptions(t, ns, 0)
	setQuota(t, ns, 3)
	policy := policyOf(ns, enforce, "settleTime: 0s, maxUnavailable: 100%")
	for i := range 30 {
		if moved, _ := mustDeschedule(t, policy); len(moved) != 0 {
			t.Fatalf("cycle %d moved %+v", i, moved)
		}
	}
	watch.expect(t, 0)
	pool(t, ns, "b", "32")
	if moved, _ := mustDeschedule(t, policy); len(moved) != 7 {
		t.Errorf("with room, %d pods were moved", len(moved))
	}
	expectLayout(t, ns, "a=3 b=7")
	watch.expect(t, 7)
}

// Case 26: the preferred subset takes pods and fails every 3 minutes, for 2 hours by the descheduler's clock. No cycle keeps state in memory. The
// backoff in the spread's status bounds how often pods are moved.
func TestAFlappingSubsetIsLeftAlone(t *testing.T) {
	harness.Long(t)
	ns := newNamespace(t)
	nodes := pool(t, ns, "a", "32")
	cordon(t, nodes, true)
	pool(t, ns, "b", "32")
	apply(t, ns, spreadOf(ns, "ReplicaSet", adaptive, "a=- b=-")+"---"+workload("ReplicaSet", 3, "100m"))
	expectLayout(t, ns, "b=3")
	cordon(t, nodes, false)
	policy := policyOf(ns, rebalance, "stabilizationWindow: 0s, minResidence: 0s, cooldown: 1m, maxMovesPerSpread: 1, backoff: {base: 5m, longest: 4h}")
	began := time.Now()
	var moves []int
	for minute := range *simulated {
		if minute%3 == 0 && minute > 0 { // the subset fails, and is back when its pods are recreated
			cordon(t, nodes, true)
			for _, name := range names(atRest(t, ns, 3), "a") {
				if err := the.Client.CoreV1().Pods(ns).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			expectLayout(t, ns, "b=3")
			cordon(t, nodes, false)
		}
		if minute%2 != 0 {
			continue
		}
		told(t, ns)
		moved, _ := mustDeschedule(t, policy, at(began.Add(time.Duration(minute)*time.Minute)))
		if len(moved) > 0 {
			moves = append(moves, minute)
			atRest(t, ns, 3)
		}
	}
	t.Logf("moved at minutes %v", moves)
	status := spreadStatus(t, ns)
	// Waits of 5, 10 and 20 minutes fit into an hour, and one of 40 into two. In each round two cycles come before the next failure.
	if len(moves) < 3 || len(moves) > 12 {
		t.Errorf("%d pods were moved in %d minutes: %v", len(moves), *simulated, moves)
	}
	if *simulated >= 60 && (len(status.Moves) != 1 || status.Moves[0].Round < 3) {
		t.Errorf("the status remembers %+v", status.Moves)
	}
}

// Case 24: if a node gets its label back within 30 seconds, nothing is evicted. If the label stays different, the node's pods are evicted.
func TestARelabelledNodeIsGivenTimeToComeBack(t *testing.T) {
	harness.Long(t)
	ns := newNamespace(t)
	nodes := pool(t, ns, "a", "32")
	pool(t, ns, "b", "32")
	apply(t, ns, spreadOf(ns, "ReplicaSet", adaptive, "a=2 b=-")+"---"+workload("ReplicaSet", 2, "100m"))
	expectLayout(t, ns, "a=2")
	watch := watchDisruptions(t, ns, 0)
	policy := policyOf(ns, enforce, "settleTime: 1m, maxUnavailable: 100%")
	label := func(value string) {
		patchNode(t, nodes[0].Name, fmt.Sprintf(`{"metadata":{"labels":{"pool":%q}}}`, value))
	}
	now := time.Now()
	step := func(after time.Duration, wantMoves int, wantMemory bool) {
		t.Helper()
		moved, kept := mustDeschedule(t, policy, at(now.Add(after)))
		if len(moved) != wantMoves || (spreadStatus(t, ns).Misplaced != nil) != wantMemory {
			t.Fatalf("after %s: moved %+v, kept %v, remembers %+v", after, moved, kept, spreadStatus(t, ns).Misplaced)
		}
	}
	step(0, 0, false)
	label(ns + "-elsewhere")
	step(10*time.Second, 0, true)
	label(ns + "-a")
	step(40*time.Second, 0, false)
	label(ns + "-elsewhere")
	step(90*time.Second, 0, true)
	watch.expect(t, 0)
	step(149*time.Second, 0, true)
	step(150*time.Second, 2, true)
	expectLayout(t, ns, "b=2")
	step(151*time.Second, 0, false)
	watch.expect(t, 2)
}

// Case 20 and 22: no node of its subset takes a pod. The strategy sees it although it has no node, and evicts it when it has been unschedulable for
// longer than the spread allows, whatever its age. The new pod is in the next subset. The framework's filter does not evict pods that are young or
// pending, have local storage or have no PodDisruptionBudget. This strategy does.
func TestAnUnschedulablePodLeavesItsSubset(t *testing.T) {
	ns := newNamespace(t)
	pool(t, ns, "b", "32")
	local := strings.Replace(workload("ReplicaSet", 1, "100m"), "containers:", "volumes: [{name: scratch, emptyDir: {}}]\n      containers:", 1)
	apply(t, ns, spreadOf(ns, "ReplicaSet", "{type: Adaptive, adaptive: {rescheduleCriticalSeconds: 60}}", "a!patched=- b!patched=-")+"---"+local)
	var since time.Time
	waitFor(t, "an unschedulable pod", func(ctx context.Context) (string, error) {
		pods, err := live(ctx, ns)
		if err != nil {
			return "", err
		}
		n := 0
		for i := range pods {
			for _, c := range pods[i].Status.Conditions {
				if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable {
					n++
					if c.LastTransitionTime.After(since) {
						since = c.LastTransitionTime.Time
					}
				}
			}
		}
		if n != 1 {
			return fmt.Sprintf("%d are", n), nil
		}
		return "", nil
	})
	strict := strings.Replace(policyOf(ns, unschedulable, "skewTolerance: 5s"), "{name: DefaultEvictor, args: {}}",
		"{name: DefaultEvictor, args: {minPodAge: 10h, podProtections: {extraEnabled: [PodsWithoutPDB]}}}", 1)
	if moved, kept := mustDeschedule(t, strict, at(since.Add(64*time.Second))); len(moved)+len(kept) != 0 {
		t.Fatalf("before its time: moved %+v, kept %v", moved, kept)
	}
	if moved, kept := mustDeschedule(t, strict, at(since.Add(65*time.Second))); len(moved)+len(kept) != 0 {
		t.Fatalf("at its time: moved %+v, kept %v", moved, kept)
	}
	moved, _ := mustDeschedule(t, strict, at(since.Add(66*time.Second)))
	if len(moved) != 1 || moved[0].Reason != v1beta1.ReasonUnschedulableTooLong || moved[0].From != "a" || moved[0].To != "b" {
		t.Fatalf("after its time: moved %+v", moved)
	}
	expectLayout(t, ns, "b=1")
}

// A paused spread keeps its pods, whatever the strategies would do.
func TestAPausedSpreadIsLeftAlone(t *testing.T) {
	ns := newNamespace(t)
	pool(t, ns, "a", "32")
	pool(t, ns, "b", "32")
	apply(t, ns, spreadOf(ns, "ReplicaSet", adaptive, "a=2 b=-")+"---"+workload("ReplicaSet", 2, "100m"))
	expectLayout(t, ns, "a=2")
	setQuota(t, ns, 1)
	patchSpread(t, ns, types.MergePatchType, `{"metadata":{"annotations":{"berth.dev/paused":"true"}}}`)
	if moved, kept := mustDeschedule(t, policyOf(ns, enforce, "")); len(moved) != 0 || kept[v1beta1.ReasonPaused] != 1 {
		t.Errorf("moved %+v, kept %v", moved, kept)
	}
	patchSpread(t, ns, types.MergePatchType, `{"metadata":{"annotations":null}}`)
	if moved, _ := mustDeschedule(t, policyOf(ns, enforce, "")); len(moved) != 1 {
		t.Errorf("moved %+v when it was not paused any more", moved)
	}
}

// Case 32: neither dry run evicts, writes or reports anything to the cluster. The client's dry run sends no evictions. In the server's, budgets
// decide.
func TestDryRunsChangeNothing(t *testing.T) {
	ns := newNamespace(t)
	pool(t, ns, "a", "32")
	pool(t, ns, "b", "32")
	apply(t, ns, spreadOf(ns, "ReplicaSet", adaptive, "a=5 b=-")+"---"+workload("ReplicaSet", 5, "100m"))
	expectLayout(t, ns, "a=5")
	setQuota(t, ns, 3)
	watch := watchDisruptions(t, ns, 5)
	clientDryRun := func(o *descheduler.Options) { o.Server.DryRun = true }
	serverDryRun := func(o *descheduler.Options) { o.ServerDryRun = true }
	for name, dryRun := range map[string]func(*descheduler.Options){"client": clientDryRun, "server": serverDryRun} {
		moved, _ := mustDeschedule(t, policyOf(ns, enforce, "settleTime: 0s, maxUnavailable: 100%"), dryRun)
		if len(moved) != 2 || moved[0].Result != "WouldEvict" {
			t.Errorf("the dry run of the %s shows %+v", name, moved)
		}
	}
	if status := spreadStatus(t, ns); status.Moves != nil || status.Misplaced != nil {
		t.Errorf("a dry run has written %+v", status)
	}
	events, err := the.Client.EventsV1().Events(ns).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=OverQuota"})
	if err != nil || len(events.Items) > 0 {
		t.Errorf("a dry run has told %d events, %v", len(events.Items), err)
	}

	// A strategy of the framework without Berth's filter asks for every pod. The budget answers only if the descheduler asks it.
	apply(t, ns, "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: web}\nspec: {maxUnavailable: 0, selector: {matchLabels: {app: web}}}\n")
	stock := lifeTime(ns, "")
	waitFor(t, "the PodDisruptionBudget", func(ctx context.Context) (string, error) {
		pdb, err := the.Client.PolicyV1().PodDisruptionBudgets(ns).Get(ctx, "web", metav1.GetOptions{})
		if err != nil || pdb.Status.ObservedGeneration == pdb.Generation && pdb.Status.CurrentHealthy == 5 {
			return "", err
		}
		return fmt.Sprint(pdb.Status), nil
	})
	oldEnough(t, ns)
	if _, err := descheduleOnce(t, stock, clientDryRun); descheduler.ExitCode(err) != 0 {
		t.Errorf("the client's dry run: %v", err)
	}
	if _, err := descheduleOnce(t, stock, serverDryRun); descheduler.ExitCode(err) != 2 {
		t.Errorf("the server's dry run under a budget without room: %v, want exit code 2", err)
	}
	watch.expect(t, 0)
}

// Case 32: the server's dry run also asks PodUnavailableBudgets, but takes nothing from them.
func TestAServerDryRunAsksPodUnavailableBudgets(t *testing.T) {
	ns := newNamespace(t)
	pool(t, ns, "a", "32")
	apply(t, ns, spreadOf(ns, "ReplicaSet", adaptive, "a=-")+"---"+workload("ReplicaSet", 3, "100m")+`---
apiVersion: policy.kruise.io/v1alpha1
kind: PodUnavailableBudget
metadata: {name: web}
spec: {selector: {matchLabels: {app: web}}, maxUnavailable: 1}
`)
	expectLayout(t, ns, "a=3")
	inForce(t, ns, 1)
	oldEnough(t, ns)
	watch := watchDisruptions(t, ns, 3)
	stock := lifeTime(ns, "")
	serverDryRun := func(o *descheduler.Options) { o.ServerDryRun = true }
	if _, err := descheduleOnce(t, stock, serverDryRun); err != nil {
		t.Errorf("with room for one: %v", err)
	}
	budgets := the.Dynamic.Resource(policyv1beta1.Resource).Namespace(ns)
	object, err := budgets.Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if status, _ := object.Object["status"].(map[string]any); status["unavailableAllowed"] != int64(1) || status["ledger"] != nil {
		t.Errorf("the dry run has taken from the budget: %v", status)
	}
	if _, err := budgets.Patch(t.Context(), "web", types.MergePatchType, []byte(`{"spec":{"maxUnavailable":0}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	inForce(t, ns, 0)
	if _, err := descheduleOnce(t, stock, serverDryRun); descheduler.ExitCode(err) != 2 {
		t.Errorf("without room: %v, want exit code 2", err)
	}
	watch.expect(t, 0)
}

// lifeTime is a policy with the framework's strategy PodLifeTime, for all pods of the namespace that are older than a second. more configures its
// plugins.
func lifeTime(ns, more string) string {
	return fmt.Sprintf(`
apiVersion: descheduler/v1alpha2
kind: DeschedulerPolicy
profiles:
- name: stock
  pluginConfig:
  - {name: DefaultEvictor, args: {}}
  - {name: SubsetEvictor, args: {ignoreReturn: true}}
  - {name: PodLifeTime, args: {maxPodLifeTimeSeconds: 1, namespaces: {include: [%s]}}}
  plugins: {%sdeschedule: {enabled: [PodLifeTime]}}
`, ns, more)
}

// oldEnough waits until all pods are old enough for PodLifeTime with one second.
func oldEnough(t *testing.T, ns string) {
	t.Helper()
	waitFor(t, "the pods to be old enough", func(ctx context.Context) (string, error) {
		pods, err := live(ctx, ns)
		for i := range pods {
			if time.Since(pods[i].CreationTimestamp.Time) < 3*time.Second {
				return pods[i].Name + " is young", err
			}
		}
		return "", err
	})
}

// A strategy of the framework does not know PodUnavailableBudgets. In the same binary it evicts the pods that a budget allows. For a budget without
// room the filter excludes the pods, so the strategy attempts nothing.
func TestStrategiesOfOthersKeepToBudgets(t *testing.T) {
	ns := newNamespace(t)
	pool(t, ns, "a", "32")
	apply(t, ns, spreadOf(ns, "ReplicaSet", adaptive, "a=-")+"---"+workload("ReplicaSet", 4, "100m")+`---
apiVersion: policy.kruise.io/v1alpha1
kind: PodUnavailableBudget
metadata: {name: web}
spec: {selector: {matchLabels: {app: web}}, maxUnavailable: 1}
`)
	expectLayout(t, ns, "a=4")
	inForce(t, ns, 1)
	watch := watchDisruptions(t, ns, 3)
	policy := lifeTime(ns, "filter: {enabled: [SubsetEvictor]}, preEvictionFilter: {enabled: [SubsetEvictor]}, ")
	oldEnough(t, ns)
	if _, err := descheduleOnce(t, policy); err != nil {
		t.Errorf("exit code %d: %v", descheduler.ExitCode(err), err)
	}
	atRest(t, ns, 4)
	disrupted := watch.count()
	if disrupted == 0 { // it evicts more than one only as fast as new pods become ready
		t.Error("nothing was evicted")
	}
	if _, err := the.Dynamic.Resource(policyv1beta1.Resource).Namespace(ns).Patch(t.Context(), "web", types.MergePatchType, []byte(`{"spec":{"maxUnavailable":0}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	inForce(t, ns, 0)
	if _, err := descheduleOnce(t, policy); err != nil { // after an attempt the exit code would be 2
		t.Errorf("exit code %d: %v", descheduler.ExitCode(err), err)
	}
	watch.expect(t, disrupted)
}

// With the filter, as in the shipped policy, a paused spread also stops strategies of the framework.
func TestStrategiesOfOthersLeavePausedSpreadsAlone(t *testing.T) {
	ns := newNamespace(t)
	pool(t, ns, "a", "32")
	apply(t, ns, spreadOf(ns, "ReplicaSet", adaptive, "a=-")+"---"+workload("ReplicaSet", 2, "100m"))
	expectLayout(t, ns, "a=2")
	watch := watchDisruptions(t, ns, 0)
	policy := lifeTime(ns, "filter: {enabled: [SubsetEvictor]}, ")
	oldEnough(t, ns)
	patchSpread(t, ns, types.MergePatchType, `{"metadata":{"annotations":{"berth.dev/paused":"true"}}}`)
	if _, err := descheduleOnce(t, policy); err != nil {
		t.Error(err)
	}
	watch.expect(t, 0)
	// The pause holds even if the spread divides nothing, because its workload's replicas cannot be read.
	patchSpread(t, ns, types.MergePatchType, `{"spec":{"targetFilter":{"replicasPathList":["spec.nothing"]}}}`)
	if _, err := descheduleOnce(t, policy); err != nil {
		t.Error(err)
	}
	watch.expect(t, 0)
	patchSpread(t, ns, types.MergePatchType, `{"metadata":{"annotations":null},"spec":{"targetFilter":null}}`)
	if _, err := descheduleOnce(t, policy); err != nil {
		t.Error(err)
	}
	atRest(t, ns, 2)
	if watch.count() == 0 {
		t.Error("nothing was evicted after the pause")
	}
}

// The deployed profile runs RemoveFailedPods if a user adds it. Neither the filter nor a budget without room holds a failed pod. Running pods stay.
func TestTheDeployedProfileRemovesFailedPods(t *testing.T) {
	ns := newNamespace(t)
	pool(t, ns, "a", "32")
	apply(t, ns, spreadOf(ns, "ReplicaSet", adaptive, "a=-")+"---"+workload("ReplicaSet", 2, "100m"))
	expectLayout(t, ns, "a=2")
	name := atRest(t, ns, 2)[0].Name
	if _, err := the.Client.CoreV1().Pods(ns).Patch(t.Context(), name, types.MergePatchType, []byte(`{"status":{"phase":"Failed"}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "a pod in place of the failed one", func(ctx context.Context) (string, error) {
		pods, err := live(ctx, ns)
		ready := 0
		for i := range pods {
			if isReady(&pods[i]) && pods[i].Name != name {
				ready++
			}
		}
		if ready != 2 {
			return fmt.Sprintf("%d are ready", ready), err
		}
		return "", err
	})
	apply(t, ns, `
apiVersion: policy.kruise.io/v1alpha1
kind: PodUnavailableBudget
metadata: {name: web}
spec: {selector: {matchLabels: {app: web}}, maxUnavailable: 0}
`)
	inForce(t, ns, 0)
	watch := watchDisruptions(t, ns, 2)
	if _, err := descheduleOnce(t, deployedWith(t, "RemoveFailedPods", "{minPodLifetimeSeconds: 0, namespaces: {include: ["+ns+"]}}")); err != nil {
		t.Error(err)
	}
	waitFor(t, "the failed pod to be gone", func(ctx context.Context) (string, error) {
		_, err := the.Client.CoreV1().Pods(ns).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "it is there", err
	})
	watch.expect(t, 1)
}

// deployedWith is the policy that Berth deploys, with one more descheduling strategy in its profile.
func deployedWith(t *testing.T, strategy, args string) string {
	t.Helper()
	var object corev1.ConfigMap
	if err := yaml.UnmarshalStrict(manifests.DeschedulerPolicy, &object); err != nil {
		t.Fatal(err)
	}
	deployed := object.Data["policy.yaml"]
	with := strings.NewReplacer("  pluginConfig:\n", "  pluginConfig:\n  - {name: "+strategy+", args: "+args+"}\n",
		"    deschedule: {enabled: [", "    deschedule: {enabled: ["+strategy+", ").Replace(deployed)
	if strings.Count(with, strategy) != 2 {
		t.Fatalf("the deployed policy has another form:\n%s", deployed)
	}
	return with
}

// Case 36: if only one node is ready, the framework skips the cycle. Nothing happens, and that is no error.
func TestOneReadyNodeIsTooFew(t *testing.T) {
	ns := newNamespace(t)
	nodes := pool(t, ns, "a", "32")
	pool(t, ns, "b", "32")
	apply(t, ns, spreadOf(ns, "ReplicaSet", adaptive, "a=2 b=-")+"---"+workload("ReplicaSet", 2, "100m"))
	expectLayout(t, ns, "a=2")
	setQuota(t, ns, 1)
	policy := policyOf(ns, enforce, "") + "nodeSelector: kubernetes.io/hostname=" + nodes[0].Name + "\n"
	report, err := descheduleOnce(t, policy)
	if err != nil || len(report.Lines) != 0 {
		t.Errorf("got %+v, %v", report.Lines, err)
	}
}
