package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
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
	scale(t, ns, "web", 13) // those without a subset go first
	placed("a=5 b=8")
	scale(t, ns, "web", 3)
	placed("a=3 b=0")
	scale(t, ns, "web", 9)
	placed("a=5 b=4")
}
