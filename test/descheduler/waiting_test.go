package descheduler

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/descheduler"
	"github.com/berth-project/berth/test/harness"
)

// early is a spread whose pods pick one of two subsets at admission. They leave it after a minute without a node there.
func early(ns string) string {
	return spreadOf(ns, "ReplicaSet", "{type: Adaptive, adaptive: {rescheduleCriticalSeconds: 60}}", "a!patched=- b!patched=-") + "---"
}

// unschedulablePod returns the only pod of the namespace for which the scheduler found no node.
func unschedulablePod(ctx context.Context, ns string) (pod corev1.Pod, missing string, err error) {
	pods, err := live(ctx, ns)
	if err != nil {
		return pod, "", err
	}
	pods = slices.DeleteFunc(pods, func(p corev1.Pod) bool { return scheduled(&p).Reason != corev1.PodReasonUnschedulable })
	if len(pods) != 1 {
		return pod, fmt.Sprintf("%d are", len(pods)), nil
	}
	return pods[0], "", nil
}

// scheduled returns the condition PodScheduled of a pod. It is empty if the pod has none.
func scheduled(pod *corev1.Pod) corev1.PodCondition {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			return c
		}
	}
	return corev1.PodCondition{}
}

func waitForUnschedulable(t *testing.T, ns string) (pod corev1.Pod) {
	t.Helper()
	waitFor(t, "an unschedulable pod", func(ctx context.Context) (missing string, err error) {
		pod, missing, err = unschedulablePod(ctx, ns)
		return missing, err
	})
	return pod
}

// expectNothing fails if a cycle reports anything about a pod of the namespace.
func expectNothing(t *testing.T, what, policy string, now time.Time) {
	t.Helper()
	if moved, kept := mustDeschedule(t, policy, at(now)); len(moved)+len(kept) != 0 {
		t.Errorf("%s: moved %+v, kept %v", what, moved, kept)
	}
}

// Case 20: the time since the scheduler found no node for a pod counts, to the second. The age of the pod does not count.
func TestOnlyTheTimeWithoutANodeCounts(t *testing.T) {
	harness.Long(t)
	ns := newNamespace(t)
	pool(t, ns, "b", "32")
	resume, err := the.Sandbox.Halt(product.Scheduler, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(resume)
	apply(t, ns, early(ns)+workload("ReplicaSet", 1, "100m"))
	waitFor(t, "a pod that is three seconds old", func(ctx context.Context) (string, error) {
		pods, err := live(ctx, ns)
		if err != nil || len(pods) == 1 && time.Since(pods[0].CreationTimestamp.Time) > 3*time.Second {
			return "", err
		}
		return fmt.Sprintf("there are %d", len(pods)), nil
	})
	resume()
	pod := waitForUnschedulable(t, ns)
	since := scheduled(&pod).LastTransitionTime.Time
	if !since.After(pod.CreationTimestamp.Add(2 * time.Second)) {
		t.Fatalf("the pod of %s is unschedulable since %s", pod.CreationTimestamp, since)
	}
	policy := policyOf(ns, unschedulable, "skewTolerance: 0s")
	for _, after := range []time.Duration{59 * time.Second, time.Minute} {
		expectNothing(t, after.String(), policy, since.Add(after))
	}
	if moved, _ := mustDeschedule(t, policy, at(since.Add(61*time.Second))); len(moved) != 1 || moved[0].To != "b" {
		t.Errorf("a minute and a second after: moved %+v", moved)
	}
	expectLayout(t, ns, "b=1")
}

// A spread that is compatible with OpenKruise moves a pod on without any patch, also if another scheduler finds no node for it. That scheduler must be
// named to the strategy.
func TestPodsOfACompatibleSpreadLeaveTheirSubset(t *testing.T) {
	for scheduler, names := range map[string]string{"default-scheduler": "berth-scheduler", "volcano": "volcano"} {
		t.Run(scheduler, func(t *testing.T) {
			ns := newNamespace(t)
			pool(t, ns, "b", "32")
			spread := spreadOf(ns, "ReplicaSet", "{type: Adaptive, adaptive: {rescheduleCriticalSeconds: 60}}", "a=- b=-") + "---"
			spread = strings.Replace(spread, "metadata: {name: web}", "metadata: {name: web, annotations: {berth.dev/compatibility: kruise}}", 1)
			apply(t, ns, spread+strings.Replace(workload("ReplicaSet", 1, "100m"), "containers:", "schedulerName: "+scheduler+"\n      containers:", 1))
			if scheduler == "volcano" { // it writes this condition
				var name string
				waitFor(t, "a pod", func(ctx context.Context) (string, error) {
					pods, err := live(ctx, ns)
					if err != nil || len(pods) != 1 {
						return fmt.Sprintf("there are %d", len(pods)), err
					}
					name = pods[0].Name
					return "", nil
				})
				said := fmt.Sprintf(`{"status":{"conditions":[{"type":"PodScheduled","status":"False","reason":"Unschedulable","lastTransitionTime":%q}]}}`, time.Now().UTC().Format(time.RFC3339))
				if _, err := the.Client.CoreV1().Pods(ns).Patch(t.Context(), name, types.StrategicMergePatchType, []byte(said), metav1.PatchOptions{}, "status"); err != nil {
					t.Fatal(err)
				}
			}
			pod := waitForUnschedulable(t, ns)
			if got := pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms; len(got) != 1 || got[0].MatchExpressions[0].Values[0] != ns+"-a" {
				t.Errorf("the pod was made for %v", got)
			}
			since := scheduled(&pod).LastTransitionTime.Time
			policy := policyOf(ns, unschedulable, "skewTolerance: 0s, schedulerNames: ["+names+"]")
			expectNothing(t, "a minute", policy, since.Add(time.Minute))
			if moved, kept := mustDeschedule(t, policy, at(since.Add(61*time.Second))); len(moved) != 1 || moved[0].To != "b" {
				t.Fatalf("a second later: moved %+v, kept %v", moved, kept)
			}
			if scheduler == "default-scheduler" {
				expectLayout(t, ns, "b=1")
				return
			}
			waitFor(t, "a pod that was made for b", func(ctx context.Context) (string, error) {
				pods, err := live(ctx, ns)
				if err != nil || len(pods) != 1 {
					return fmt.Sprintf("there are %d", len(pods)), err
				}
				if in := pods[0].Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchExpressions[0].Values[0]; in != ns+"-b" || pods[0].Spec.SchedulerName != scheduler {
					return "it is for " + in + " and " + pods[0].Spec.SchedulerName, nil
				}
				return "", nil
			})
		})
	}
}

// Case 20: a pod with scheduling gates waits for their owner. When the gates are removed, the scheduler reports that it finds no node, but not since
// when. So the time counts from the creation of the pod.
func TestAGatedPodStaysUntilItsGatesAreGone(t *testing.T) {
	harness.Long(t)
	ns := newNamespace(t)
	pool(t, ns, "b", "32")
	gated := strings.Replace(workload("ReplicaSet", 1, "100m"), "containers:", "schedulingGates: [{name: test.berth.dev/gate}]\n      containers:", 1)
	apply(t, ns, early(ns)+gated)
	var name string
	waitFor(t, "a gated pod", func(ctx context.Context) (string, error) {
		pods, err := live(ctx, ns)
		if err != nil || len(pods) == 1 && scheduled(&pods[0]).Reason == corev1.PodReasonSchedulingGated {
			name = pods[0].Name
			return "", err
		}
		return fmt.Sprintf("there are %d", len(pods)), nil
	})
	policy := policyOf(ns, unschedulable, "skewTolerance: 0s")
	expectNothing(t, "gated for an hour", policy, time.Now().Add(time.Hour))
	if _, err := the.Client.CoreV1().Pods(ns).Patch(t.Context(), name, types.JSONPatchType, []byte(`[{"op":"remove","path":"/spec/schedulingGates"}]`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := waitForUnschedulable(t, ns)
	since := scheduled(&pod).LastTransitionTime.Time
	if since.IsZero() {
		since = pod.CreationTimestamp.Time
	}
	expectNothing(t, "a minute after", policy, since.Add(time.Minute))
	if moved, _ := mustDeschedule(t, policy, at(since.Add(61*time.Second))); len(moved) != 1 || moved[0].Pod != name {
		t.Errorf("a minute and a second after: moved %+v", moved)
	}
}

// Case 20: if the scheduler preempts other pods for a pod, the pod gets a node as soon as they are gone.
func TestAPodThatPreemptsStays(t *testing.T) {
	ns := newNamespace(t)
	nodes := pool(t, ns, "a", "1")
	pool(t, ns, "b", "32")
	apply(t, "", fmt.Sprintf("{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: %s}, value: 1000}", ns))
	t.Cleanup(func() {
		if err := the.Client.SchedulingV1().PriorityClasses().Delete(context.WithoutCancel(t.Context()), ns, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	apply(t, ns, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: blocker, finalizers: [test.berth.dev/slow]}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: registry.k8s.io/pause:3.10, resources: {requests: {cpu: 700m}}}]
`, nodes[0].Name))
	release := func() {
		if _, err := the.Client.CoreV1().Pods(ns).Patch(context.WithoutCancel(t.Context()), "blocker", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
			t.Error(err)
		}
	}
	released := false
	t.Cleanup(func() {
		if !released {
			release()
		}
	})
	expectLayout(t, ns, "none=1")
	apply(t, ns, early(ns)+strings.Replace(workload("ReplicaSet", 1, "700m"), "containers:", "priorityClassName: "+ns+"\n      containers:", 1))
	waitFor(t, "a pod that others make way for", func(ctx context.Context) (string, error) {
		pod, missing, err := unschedulablePod(ctx, ns)
		if err == nil && missing == "" && pod.Status.NominatedNodeName == "" {
			missing = pod.Name + " is not nominated: " + scheduled(&pod).Message
		}
		return missing, err
	})
	expectNothing(t, "while the other is on its way out", policyOf(ns, unschedulable, "skewTolerance: 0s"), time.Now().Add(time.Hour))
	release()
	released = true
	expectLayout(t, ns, "a=1")
}

// Case 20: the strategy leaves pending pods of schedulers that it is not configured for. Admission gives them no subset. The strategy also skips them
// if they have one.
func TestPendingPodsOfOtherSchedulersStay(t *testing.T) {
	ns := newNamespace(t)
	pool(t, ns, "b", "32")
	apply(t, ns, early(ns)+strings.Replace(workload("ReplicaSet", 1, "100m"), "containers:", "schedulerName: somebody-else\n      containers:", 1))
	var name string
	waitFor(t, "a pod", func(ctx context.Context) (string, error) {
		pods, err := live(ctx, ns)
		if err != nil || len(pods) != 1 {
			return fmt.Sprintf("there are %d", len(pods)), err
		}
		name = pods[0].Name
		return "", nil
	})
	// The other scheduler writes this condition.
	said := fmt.Sprintf(`{"status":{"conditions":[{"type":"PodScheduled","status":"False","reason":"Unschedulable","lastTransitionTime":%q}]}}`, time.Now().UTC().Format(time.RFC3339))
	if _, err := the.Client.CoreV1().Pods(ns).Patch(t.Context(), name, types.StrategicMergePatchType, []byte(said), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	expectNothing(t, "a pod of another scheduler", policyOf(ns, unschedulable, "skewTolerance: 0s"), time.Now().Add(time.Hour))

	ours := newNamespace(t)
	pool(t, ours, "b", "32")
	apply(t, ours, early(ours)+workload("ReplicaSet", 1, "100m"))
	waitForUnschedulable(t, ours)
	moved, kept := mustDeschedule(t, policyOf(ours, unschedulable, "skewTolerance: 0s, schedulerNames: [somebody-else]"), at(time.Now().Add(time.Hour)))
	if len(moved) != 0 || kept[v1beta1.ReasonNotEvictable] != 1 {
		t.Errorf("a pod of ours, for others: moved %+v, kept %v", moved, kept)
	}
}

// Case 22: a pod that no owner would recreate is never evicted, even if it requests that with the annotation for the framework's own filter.
func TestBarePodsAreNeverEvicted(t *testing.T) {
	ns := newNamespace(t)
	nodes := pool(t, ns, "a", "32")
	apply(t, ns, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: bare, annotations: {descheduler.alpha.kubernetes.io/evict: ""}}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: registry.k8s.io/pause:3.10}]
`, nodes[0].Name))
	expectLayout(t, ns, "none=1")
	oldEnough(t, ns)
	watch := watchDisruptions(t, ns, 1)
	// If the descheduler had sent an eviction while evictions fail, the exit code would be 2.
	mend := breakEvictions(t, ns, "127.0.0.1:1", "bare")
	if _, err := descheduleOnce(t, lifeTime(ns, "filter: {enabled: [SubsetEvictor]}, ")); err != nil {
		t.Errorf("with Berth's filter: %v", err)
	}
	if _, err := descheduleOnce(t, lifeTime(ns, "")); descheduler.ExitCode(err) != 2 {
		t.Errorf("without Berth's filter the framework's lets it pass: %v", err)
	}
	mend()
	watch.expect(t, 0)
}

// Case 37: pods are evicted in one order, whatever the order of the API server's list: first pods that are not ready, then the youngest, then by
// name.
func TestPodsGoInOneOrder(t *testing.T) {
	ns := newNamespace(t)
	pool(t, ns, "a", "32")
	pool(t, ns, "b", "32")
	apply(t, ns, spreadOf(ns, "ReplicaSet", adaptive, "a=9 b=-")+"---"+workload("ReplicaSet", 3, "100m"))
	for replicas := 3; replicas <= 9; replicas += 3 {
		if _, err := the.Client.AppsV1().ReplicaSets(ns).Patch(t.Context(), "web", types.MergePatchType, []byte(fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas)), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		pods := atRest(t, ns, replicas)
		waitFor(t, "a second to pass", func(context.Context) (string, error) {
			if slices.ContainsFunc(pods, func(p corev1.Pod) bool { return time.Since(p.CreationTimestamp.Time) < 2*time.Second }) {
				return "some pods are of this second", nil
			}
			return "", nil
		})
	}
	expectLayout(t, ns, "a=9")
	oldest := slices.MinFunc(atRest(t, ns, 9), func(a, b corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	unready := `{"status":{"conditions":[{"type":"Ready","status":"False","reason":"Test"}]}}`
	if _, err := the.Client.CoreV1().Pods(ns).Patch(t.Context(), oldest.Name, types.StrategicMergePatchType, []byte(unready), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	setQuota(t, ns, 3)
	pods, err := live(t.Context(), ns)
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(pods, func(a, b corev1.Pod) int {
		byReady := 0
		if isReady(&a) != isReady(&b) {
			byReady = 1
			if isReady(&b) {
				byReady = -1
			}
		}
		return cmp.Or(byReady, b.CreationTimestamp.Compare(a.CreationTimestamp.Time))
	})
	dryRun := func(o *descheduler.Options) { o.ServerDryRun = true }
	var first []string
	for range 5 {
		moved, _ := mustDeschedule(t, policyOf(ns, enforce, "settleTime: 0s, maxUnavailable: 100%"), dryRun)
		var names []string
		for _, line := range moved {
			names = append(names, line.Pod)
		}
		if first == nil {
			first = names
		}
		if !slices.Equal(names, first) {
			t.Errorf("the order is %v, and was %v", names, first)
		}
	}
	if len(first) != 6 || first[0] != oldest.Name {
		t.Fatalf("the order is %v, and %s is not ready", first, oldest.Name)
	}
	// Pods of the same second may go in any order, but it must always be the same.
	for i, name := range first[1:] {
		at := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Name == name })
		if want := pods[i+1].CreationTimestamp; !pods[at].CreationTimestamp.Equal(&want) {
			t.Errorf("%s, of %s, goes as number %d; want one of %s", name, pods[at].CreationTimestamp, i+1, want)
		}
	}
}

// Pods that were created while no webhook answered run where the default scheduler put them. The descheduler brings them home.
func TestPodsWithoutAdmissionComeHome(t *testing.T) {
	ns := newNamespace(t)
	apply(t, ns, spreadOf(ns, "ReplicaSet", "{}", "a=2 b=-"))
	spread, err := the.Spread(t.Context(), ns, "web")
	if err != nil {
		t.Fatal(err)
	}
	resume, err := the.Sandbox.Halt(product.Controller, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer resume()
	waitFor(t, "a second that is later than that of the spread, because pods of the same second may be older", func(context.Context) (string, error) {
		return map[bool]string{false: "it is the same second"}[time.Since(spread.CreationTimestamp.Time) >= 2*time.Second], nil
	})
	apply(t, ns, workload("ReplicaSet", 5, "100m"))
	expectLayout(t, ns, "none=5")
	resume()
	waitFor(t, "the spread to say that pods were not admitted", func(context.Context) (string, error) {
		status := spreadStatus(t, ns)
		if c := meta.FindStatusCondition(status.Conditions, v1beta1.ConditionAdmitted); c == nil || c.Reason != string(v1beta1.ReasonPodsNotAdmitted) {
			return fmt.Sprintf("%+v", c), nil
		}
		return "", nil
	})
	pool(t, ns, "a", "32")
	pool(t, ns, "b", "32")
	told(t, ns)
	policy := policyOf(ns, rebalance, "stabilizationWindow: 0s, minResidence: 0s, cooldown: 0s, maxMovesPerSpread: 20")
	const home = "a=2 b=3"
	for range 5 { // a cycle moves at least one pod
		if layout(atRest(t, ns, 5)) == home {
			break
		}
		mustDeschedule(t, policy)
	}
	expectLayout(t, ns, home)
	waitFor(t, "the spread to say that all pods were divided", func(context.Context) (string, error) {
		status := spreadStatus(t, ns)
		if c := meta.FindStatusCondition(status.Conditions, v1beta1.ConditionAdmitted); c == nil || c.Status != metav1.ConditionTrue {
			return fmt.Sprintf("%+v", c), nil
		}
		return "", nil
	})
}
