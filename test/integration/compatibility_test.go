package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/test/harness"
)

// kruiseSpread has limits on all of its subsets.
const kruiseSpread = `
apiVersion: apps.kruise.io/v1alpha1
kind: WorkloadSpread
metadata: {name: web, annotations: {berth.dev/compatibility: kruise}}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  subsets:
  - name: first
    maxReplicas: 5
    requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [a]}]}
    preferredNodeSelectorTerms: [{weight: 3, preference: {matchExpressions: [{key: disk, operator: In, values: [ssd]}]}}]
    tolerations: [{key: of-a, operator: Exists}]
  - name: second
    maxReplicas: 8
    requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [b]}]}
    tolerations: [{key: of-b, operator: Exists}]
`

// atCreation watches the pods of a namespace and returns each of them as it was created.
func atCreation(t *testing.T, ns string, count int, then func()) map[string]*corev1.Pod {
	t.Helper()
	watcher, err := watchtools.NewRetryWatcherWithContext(t.Context(), emptyRevision(t, ns), &cache.ListWatch{
		WatchFuncWithContext: the.Client.CoreV1().Pods(ns).Watch,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	then()
	pods := map[string]*corev1.Pod{}
	for len(pods) < count {
		select {
		case event, open := <-watcher.ResultChan():
			pod, is := event.Object.(*corev1.Pod)
			if !open || !is {
				t.Fatalf("the watch ended with %v", event)
			}
			if event.Type == "ADDED" {
				pods[pod.Name] = pod
			}
		case <-t.Context().Done():
			t.Fatal("the test ended")
		}
	}
	return pods
}

// emptyRevision is the resource version of a namespace that has no pods.
func emptyRevision(t *testing.T, ns string) string {
	t.Helper()
	list, err := the.Client.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return list.ResourceVersion
}

// expectMadeFor fails unless each pod carries the record, the terms and the tolerations of one subset, and nothing of the other one. It returns how many
// pods each subset has.
func expectMadeFor(t *testing.T, pods map[string]*corev1.Pod, scheduler string) map[string]int {
	t.Helper()
	counts := map[string]int{}
	for name, pod := range pods {
		if pod.Spec.NodeName != "" {
			t.Errorf("pod %s was created with a node", name)
		}
		if pod.Spec.SchedulerName != scheduler {
			t.Errorf("pod %s names scheduler %s, want %s", name, pod.Spec.SchedulerName, scheduler)
		}
		var tolerated string
		for _, toleration := range pod.Spec.Tolerations {
			if pool, ours := strings.CutPrefix(toleration.Key, "of-"); ours {
				tolerated += pool
			}
		}
		note, recorded := pod.Annotations[v1beta1.MatchedAnnotation]
		if !recorded {
			counts[""]++
			if tolerated != "" || pod.Spec.Affinity != nil {
				t.Errorf("pod %s has no record, tolerations of %q and affinity %v", name, tolerated, pod.Spec.Affinity)
			}
			continue
		}
		var matched v1beta1.MatchedSubset
		if err := json.Unmarshal([]byte(note), &matched); err != nil || matched.Name != "web" || matched.UID == "" {
			t.Errorf("pod %s has record %s", name, note)
		}
		counts[matched.Subset]++
		pool, preferred := map[string]string{"first": "a", "second": "b"}[matched.Subset], map[string]int{"first": 1}[matched.Subset]
		affinity := pod.Spec.Affinity.NodeAffinity
		terms := affinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
		if tolerated != pool || len(affinity.PreferredDuringSchedulingIgnoredDuringExecution) != preferred || len(terms) != 1 || len(terms[0].MatchExpressions) != 1 ||
			fmt.Sprint(terms[0].MatchExpressions[0].Values) != "["+pool+"]" {
			t.Errorf("pod %s of subset %s tolerates the taints of %q, affinity %v", name, matched.Subset, tolerated, affinity)
		}
	}
	return counts
}

// TestACompatibleSpreadPicksSubsetsAtCreation: with all subsets limited as well, also through a scale-down and up again.
func TestACompatibleSpreadPicksSubsetsAtCreation(t *testing.T) {
	pools(t, "a", "b")
	ns := namespace(t)
	apply(t, ns, kruiseSpread)
	pods := atCreation(t, ns, 13, func() { apply(t, ns, plain("web", 13)) })
	if got, want := expectMadeFor(t, pods, v1beta1.SchedulerName), map[string]int{"first": 5, "second": 8}; !maps.Equal(got, want) {
		t.Errorf("created for %v, want %v", got, want)
	}
	expectPlaces(t, ns, "a=5 b=8")
	scale(t, ns, "web", 4)
	expectPlaces(t, ns, "a=4 b=0")
	scale(t, ns, "web", 11)
	expectPlaces(t, ns, "a=5 b=6")
	bound, err := the.Pods(t.Context(), ns)
	if err != nil {
		t.Fatal(err)
	}
	for i := range bound {
		if matched := record(t, &bound[i]); bound[i].DeletionTimestamp == nil && matched.UID != string(bound[i].UID) {
			t.Errorf("the Binding of pod %s left record %+v", bound[i].Name, matched)
		}
	}
	expectNoViolation(t)
}

// TestACompatibleSpreadDividesThePodsOfAnotherScheduler, which the test stands in for: it binds each pod to a node that the pod requires.
func TestACompatibleSpreadDividesThePodsOfAnotherScheduler(t *testing.T) {
	harness.Long(t)
	pools(t, "a", "b")
	ns := namespace(t)
	apply(t, ns, kruiseSpread)
	deployment := strings.Replace(plain("web", 20), "spec: {containers:", "spec: {schedulerName: volcano, containers:", 1)
	pods := atCreation(t, ns, 20, func() { apply(t, ns, deployment) })
	if got, want := expectMadeFor(t, pods, "volcano"), map[string]int{"first": 5, "second": 8, "": 7}; !maps.Equal(got, want) {
		t.Errorf("created for %v, want %v", got, want)
	}
	nodeIn := map[string]string{}
	list, err := the.Client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		nodeIn[list.Items[i].Labels["pool"]] = list.Items[i].Name
	}
	// bind does what a scheduler does. The pods without a subset go to pool b.
	bind := func(ctx context.Context) error {
		waiting, err := the.Pods(ctx, ns)
		if err != nil {
			return err
		}
		for i := range waiting {
			pod := &waiting[i]
			if pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil {
				continue
			}
			pool := "b"
			if pod.Spec.Affinity != nil {
				pool = pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchExpressions[0].Values[0]
			}
			err := the.Client.CoreV1().Pods(ns).Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: pod.Name, UID: pod.UID},
				Target: corev1.ObjectReference{Kind: "Node", Name: nodeIn[pool]}}, metav1.CreateOptions{})
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				return errors.New("binding: " + err.Error())
			}
		}
		return nil
	}
	placed := func(want string) {
		t.Helper()
		waitFor(t, "pods in "+want, func(ctx context.Context) (string, error) {
			if err := bind(ctx); err != nil {
				return "", err
			}
			pods, err := the.Pods(ctx, ns)
			if err != nil {
				return "", err
			}
			count := map[string]int{}
			for i := range pods {
				if pods[i].DeletionTimestamp == nil && pods[i].Spec.NodeName != "" {
					if pods[i].Annotations[v1beta1.PodDeletionCostAnnotation] == "" {
						return "pod " + pods[i].Name + " has no deletion cost yet", nil // the next scale-down needs it
					}
					count[pods[i].Spec.NodeName]++
				}
			}
			if got := fmt.Sprintf("a=%d b=%d", count[nodeIn["a"]], count[nodeIn["b"]]); got != want {
				return got, nil
			}
			return "", nil
		})
	}
	placed("a=5 b=15")
	waitFor(t, "the pods that another scheduler bound in the status", func(ctx context.Context) (string, error) {
		spread, err := the.Spread(ctx, ns, "web")
		if err != nil || spread.Status.AdoptedPods == 20 {
			return "", err
		}
		return fmt.Sprintf("%d adopted pods", spread.Status.AdoptedPods), nil
	})
	scale(t, ns, "web", 13) // those without a subset go first
	placed("a=5 b=8")
	scale(t, ns, "web", 3)
	placed("a=3 b=0")
	scale(t, ns, "web", 9)
	placed("a=5 b=4")
}

// TestASubsetOfACompatibleSpreadOpensAgain: a pod waits for a node of the first subset. Then the subset is not schedulable, and new pods go to the next one.
// After unschedulableLastSeconds the subset is schedulable again, and an event says so.
func TestASubsetOfACompatibleSpreadOpensAgain(t *testing.T) {
	harness.Long(t)
	pools(t, "b")
	ns := namespace(t)
	apply(t, ns, `
apiVersion: apps.kruise.io/v1alpha1
kind: WorkloadSpread
metadata: {name: web, annotations: {berth.dev/compatibility: kruise}}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  scheduleStrategy: {type: Adaptive, adaptive: {rescheduleCriticalSeconds: 2, unschedulableLastSeconds: 8}}
  subsets:
  - {name: first, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [a]}]}}
  - {name: second, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [b]}]}}
`)
	apply(t, ns, plain("web", 1))
	is := func(status metav1.ConditionStatus, reason v1beta1.Reason, pods int32) (since time.Time) {
		t.Helper()
		waitFor(t, "condition Schedulable="+string(status), func(ctx context.Context) (string, error) {
			spread, err := the.Spread(ctx, ns, "web")
			if err != nil || len(spread.Status.SubsetStatuses) == 0 {
				return "there is no status", err
			}
			first := &spread.Status.SubsetStatuses[0]
			c := meta.FindStatusCondition(first.Conditions, v1beta1.ConditionSchedulable)
			if c == nil || c.Status != status || c.Reason != string(reason) {
				return fmt.Sprintf("it is %+v", c), nil
			}
			if first.Replicas != pods || spread.Status.PendingPods != 0 {
				return fmt.Sprintf("the first subset has %d pods, and %d are pending", first.Replicas, spread.Status.PendingPods), nil
			}
			since = c.LastTransitionTime.Time
			return "", nil
		})
		return since
	}
	closed := is(metav1.ConditionFalse, v1beta1.ReasonPodUnschedulable, 1)
	scale(t, ns, "web", 2)
	expectPlaces(t, ns, "a=0 b=1")
	pods, err := the.Pods(t.Context(), ns)
	if err != nil {
		t.Fatal(err)
	}
	oldest := slices.MinFunc(pods, func(a, b corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	if got := time.Since(oldest.CreationTimestamp.Time); closed.Before(oldest.CreationTimestamp.Add(2 * time.Second)) {
		t.Errorf("closed after less than 2 s; the pod is %s old", got)
	}
	// As long as the pod waits, the subset does not open. The next pod goes to the second subset.
	if err := the.Client.CoreV1().Pods(ns).Delete(t.Context(), oldest.Name, *metav1.NewDeleteOptions(0)); err != nil {
		t.Fatal(err)
	}
	expectPlaces(t, ns, "a=0 b=2")
	if opened := is(metav1.ConditionTrue, v1beta1.ReasonSufficient, 0); opened.Before(closed.Add(8 * time.Second)) {
		t.Errorf("closed at %s, and open again at %s", closed, opened)
	}
	waitFor(t, "event RecoverSchedulable", func(ctx context.Context) (string, error) {
		events, err := the.Client.EventsV1().Events(ns).List(ctx, metav1.ListOptions{FieldSelector: "reason=RecoverSchedulable"})
		if err != nil || len(events.Items) == 1 {
			return "", err
		}
		return fmt.Sprintf("there are %d", len(events.Items)), nil
	})
}

// TestACompatibleSpreadDividesAStatefulSetByOrdinal also if all pods are created at the same time, and again after pods were deleted.
func TestACompatibleSpreadDividesAStatefulSetByOrdinal(t *testing.T) {
	pools(t, "a", "b")
	ns := namespace(t)
	apply(t, ns, strings.Replace(kruiseSpread, "kind: Deployment", "kind: StatefulSet", 1))
	apply(t, ns, `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: web}
spec:
  replicas: 9
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {terminationGracePeriodSeconds: 0, containers: [{name: main, image: "registry.k8s.io/pause:3.10"}]}
`)
	exist := func() {
		t.Helper()
		waitFor(t, "nine pods", func(ctx context.Context) (string, error) {
			pods, err := the.Pods(ctx, ns)
			if err != nil || len(pods) == 9 {
				return "", err
			}
			return fmt.Sprintf("there are %d", len(pods)), nil
		})
	}
	exist()
	const want = "web-0=first web-1=first web-2=first web-3=first web-4=first web-5=second web-6=second web-7=second web-8=second"
	expectSubsets(t, ns, want)
	for _, name := range []string{"web-8", "web-0", "web-4", "web-5"} {
		if err := the.Client.CoreV1().Pods(ns).Delete(t.Context(), name, *metav1.NewDeleteOptions(0)); err != nil {
			t.Fatal(err)
		}
	}
	exist()
	expectSubsets(t, ns, want)
	expectNoViolation(t)
}

// TestABurstOfACompatibleSpreadKeepsToTheQuota: no pod over the quota is created for the first subset, so none is replaced.
func TestABurstOfACompatibleSpreadKeepsToTheQuota(t *testing.T) {
	harness.Long(t)
	var all []*corev1.Node
	for i := range 4 {
		pool := string("ab"[i%2])
		all = append(all, sandbox.NewNode(nodeIn(t, fmt.Sprint(i, "-", pool)), "zone-a", map[string]string{"pool": pool}, nil, allocatable("64", "256Gi", "0")))
	}
	nodes(t, all...)
	ns := namespace(t)
	apply(t, ns, strings.Replace(spreadFor("web", "apps/v1", "Deployment", "web", fmt.Sprintf(twoPools, "100")), "metadata: {name: web}", "metadata: {name: web, annotations: {berth.dev/compatibility: kruise}}", 1))
	expectKnown(t, ns)
	apply(t, ns, deployment("web", 300, ""))
	expectSpilled(t, ns, 100, 200)
	expectNoDeletion(t, ns)
	expectTrueStatus(t, ns)
}

// TestACompatibleSpreadReadsTheReplicasWhereOpenKruiseDoes: of a kind without a scale subresource, as OpenKruise's list says, also after the list changes.
func TestACompatibleSpreadReadsTheReplicasWhereOpenKruiseDoes(t *testing.T) {
	harness.Long(t)
	pools(t, "a", "b")
	ns := namespace(t)
	const kruise = "kruise-system"
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: kruise}}
	if _, err := the.Client.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	list := func(text string) {
		t.Helper()
		apply(t, kruise, fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, metadata: {name: kruise-configuration}, data: {WorkloadSpread_Watch_Custom_Workload_WhiteList: '%s'}}", text))
	}
	listed := func(path string) string {
		return `{"workloads": [{"Group": "learning.example.com", "Version": "v1", "Kind": "Learning", "replicasPath": "` + path + `"}]}`
	}
	kind := &customKind{group: "learning.example.com", plural: "learnings", kind: "Learning", version: "v1",
		spec: func(replicas int64) map[string]any { return map[string]any{"workers": replicas, "twice": 2 * replicas} }}
	apply(t, ns, kind.definition())
	apply(t, ns, kind.reader())
	spread := spreadFor("web", "learning.example.com/v1", kind.kind, "web", fmt.Sprintf(twoPools, "40%"))
	apply(t, ns, strings.Replace(spread, "metadata: {name: web}", "metadata: {name: web, annotations: {berth.dev/compatibility: kruise}}", 1))
	expectCondition(t, ns, "web", "False", v1beta1.ReasonTargetNotFound)

	list(listed("spec.workers"))
	kind.set(t, ns, 5)
	expectPlaces(t, ns, "a=2 b=3")
	expectCondition(t, ns, "web", "True", v1beta1.ReasonSpreadReady)
	kind.set(t, ns, 10)
	expectPlaces(t, ns, "a=4 b=6")

	list("workloads: none")
	expectCondition(t, ns, "web", "False", v1beta1.ReasonKindListUnreadable, "ConfigMap kruise-system/kruise-configuration", "no scale subresource")
	list(listed("spec.twice"))
	expectCondition(t, ns, "web", "True", v1beta1.ReasonSpreadReady)
	waitFor(t, "twice the replicas", func(ctx context.Context) (string, error) {
		spread, err := the.Spread(ctx, ns, "web")
		if err != nil || spread.Status.ObservedReplicas == 20 {
			return "", err
		}
		return fmt.Sprintf("there are %d", spread.Status.ObservedReplicas), nil
	})
	list(listed("spec.none"))
	expectCondition(t, ns, "web", "False", v1beta1.ReasonTargetUnreadable, "spec.none", "kruise-configuration")
	if err := the.Client.CoreV1().ConfigMaps(kruise).Delete(t.Context(), "kruise-configuration", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	expectCondition(t, ns, "web", "False", v1beta1.ReasonTargetUnreadable, "no scale subresource")
	expectNoViolation(t)
}
