package integration

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/test/harness"
)

// A spread over pools a, with a limit, and b, with its strategy.
func overPools(limit, strategy string) string {
	return spreadFor("web", "apps/v1", "Deployment", "web", fmt.Sprintf("  scheduleStrategy: %s\n", strategy)+fmt.Sprintf(twoPools, limit))
}

// patchDeployment changes Deployment web with a merge patch, and describes its pods.
func patchDeployment(t *testing.T, ns, patch string) {
	t.Helper()
	patchNamed(t, ns, "web", patch)
}

func patchNamed(t *testing.T, ns, name, patch string) {
	t.Helper()
	if _, err := the.Client.AppsV1().Deployments(ns).Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// revision is the patch that gives Deployment web another template.
func revision(name string) string {
	return fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"example.com/revision":%q}}}}}`, name)
}

// expectRevision waits until all active pods are of a revision, and there are this many.
func expectRevision(t *testing.T, ns, name string, n int) {
	t.Helper()
	waitFor(t, fmt.Sprintf("%d pods of revision %q", n, name), func(ctx context.Context) (string, error) {
		pods, err := the.Pods(ctx, ns)
		if err != nil {
			return "", err
		}
		found := map[string]int{}
		for i := range pods {
			if pods[i].DeletionTimestamp == nil {
				found[pods[i].Annotations["example.com/revision"]]++
			}
		}
		if want := map[string]int{name: n}; !maps.Equal(found, want) {
			return fmt.Sprint(found), nil
		}
		return "", nil
	})
}

// TestARollOutEndsInTheLayoutItBeganWith: with quotas for each revision, however the rollout proceeds.
func TestARollOutEndsInTheLayoutItBeganWith(t *testing.T) {
	harness.Long(t)
	for name, tc := range map[string]struct{ strategy, limit string }{
		"more pods first":         {`{"spec":{"strategy":{"rollingUpdate":{"maxSurge":3,"maxUnavailable":0}}}}`, "4"},
		"fewer pods first":        {`{"spec":{"strategy":{"rollingUpdate":{"maxSurge":0,"maxUnavailable":4}}}}`, "40%"},
		"all at once":             {`{"spec":{"strategy":{"rollingUpdate":{"maxSurge":"100%","maxUnavailable":0}}}}`, "4"},
		"none in between":         {`{"spec":{"strategy":{"type":"Recreate","rollingUpdate":null}}}`, "40%"},
		"as is usual, by quarter": {`{}`, "40%"},
	} {
		t.Run(name, func(t *testing.T) {
			pools(t, "a", "b")
			ns := namespace(t)
			apply(t, ns, overPools(tc.limit, "{}"))
			apply(t, ns, deployment("web", 10, ""))
			expectPlaces(t, ns, "a=4 b=6")
			patchDeployment(t, ns, tc.strategy)
			for _, next := range []string{"2", "3"} {
				patchDeployment(t, ns, revision(next))
				expectRevision(t, ns, next, 10)
				expectPlaces(t, ns, "a=4 b=6")
			}
			expectTrueStatus(t, ns)
			expectNoViolation(t)
		})
	}
}

// TestARollOutThatCannotGoOnSaysSo shows that it does not go on, and that each of the changes in the message lets it go on. Four pods run.
func TestARollOutThatCannotGoOnSaysSo(t *testing.T) {
	harness.Long(t)
	full := func(limitOfB, strategy string) string {
		return strings.Replace(overPools("2", strategy), "{name: b,", "{name: b, maxReplicas: "+limitOfB+",", 1)
	}
	const shared = "{quotaScope: Workload, whenFull: Wait}"
	spread := func(limitOfB, strategy string) func(*testing.T, string) {
		return func(t *testing.T, ns string) {
			t.Helper()
			apply(t, ns, full(limitOfB, strategy))
		}
	}
	unavailable := func(n int) func(*testing.T, string) {
		return func(t *testing.T, ns string) {
			t.Helper()
			patchDeployment(t, ns, fmt.Sprintf(`{"spec":{"strategy":{"rollingUpdate":{"maxUnavailable":%d}}}}`, n))
		}
	}
	for name, tc := range map[string]struct {
		replicas    int
		unavailable int // is one less than is needed
		change      func(*testing.T, string)
	}{
		"a slot for the surge pod":        {4, 0, spread("3", shared)},
		"quotas for each revision":        {4, 0, spread("2", "{quotaScope: Revision, whenFull: Wait}")},
		"a pod may go first":              {4, 0, unavailable(1)},
		"more may go than wait for slots": {6, 2, unavailable(3)},
	} {
		t.Run(name, func(t *testing.T) {
			pools(t, "a", "b")
			ns := namespace(t)
			apply(t, ns, full("2", shared))
			apply(t, ns, deployment("web", tc.replicas, ""))
			expectPlaces(t, ns, "a=2 b=2")
			patchDeployment(t, ns, fmt.Sprintf(`{"spec":{"strategy":{"rollingUpdate":{"maxSurge":1,"maxUnavailable":%d}}}}`, tc.unavailable))
			expectCondition(t, ns, "web", "False", v1beta1.ReasonRolloutBlocked, "a rolling update can never go on")
			patchDeployment(t, ns, revision("2"))
			waitFor(t, "pods of the new revision to wait for slots that old ones keep", func(ctx context.Context) (string, error) {
				d, err := the.Client.AppsV1().Deployments(ns).Get(ctx, "web", metav1.GetOptions{})
				if err != nil || d.Status.ObservedGeneration == d.Generation && d.Status.UpdatedReplicas > 0 && d.Status.AvailableReplicas == 4 && d.Status.UnavailableReplicas > 0 {
					return "", err
				}
				return fmt.Sprintf("%+v", d.Status), nil
			})
			expectPlaces(t, ns, "a=2 b=2")
			tc.change(t, ns)
			waitFor(t, "the rollout to end", func(ctx context.Context) (string, error) {
				pods, err := the.Pods(ctx, ns)
				if err != nil {
					return "", err
				}
				for i := range pods {
					if pods[i].Annotations["example.com/revision"] != "2" {
						return pods[i].Name + " is old", nil
					}
				}
				return "", nil
			})
			expectCondition(t, ns, "web", "True", v1beta1.ReasonSpreadReady)
			expectNoViolation(t)
		})
	}
}

func TestARollOutThatIsPausedAndTakenBack(t *testing.T) {
	harness.Long(t)
	pools(t, "a", "b")
	ns := namespace(t)
	apply(t, ns, overPools("4", "{}"))
	apply(t, ns, deployment("web", 10, ""))
	expectPlaces(t, ns, "a=4 b=6")
	// New pods do not become available, so the rollout stops at 5 of them.
	patchDeployment(t, ns, `{"spec":{"minReadySeconds":500,"strategy":{"rollingUpdate":{"maxSurge":5,"maxUnavailable":0}}}}`)
	patchDeployment(t, ns, revision("2"))
	expectPlaces(t, ns, "a=8 b=7") // of each revision 4 in a
	patchDeployment(t, ns, `{"spec":{"paused":true}}`)
	scale(t, ns, "web", 12) // both revisions grow, in proportion
	waitFor(t, "12 replicas and 5 more", func(ctx context.Context) (string, error) {
		pods, err := the.Pods(ctx, ns)
		if err != nil || len(pods) == 17 {
			return "", err
		}
		return fmt.Sprintf("%d pods", len(pods)), nil
	})
	expectPlaces(t, ns, "a=8 b=9")
	expectTrueStatus(t, ns)
	expectRevisions(t, ns, 2)
	patchDeployment(t, ns, `{"spec":{"paused":false,"minReadySeconds":0,"template":{"metadata":{"annotations":null}}}}`) // kubectl rollout undo
	expectRevision(t, ns, "", 12)
	expectPlaces(t, ns, "a=4 b=8")
	expectTrueStatus(t, ns)
	expectRevisions(t, ns, 1)
	expectNoViolation(t)
}

// expectRevisions: the status counts so many revisions, each by itself.
func expectRevisions(t *testing.T, ns string, n int) {
	t.Helper()
	waitFor(t, fmt.Sprintf("%d revisions", n), func(ctx context.Context) (string, error) {
		spread, err := the.Spread(ctx, ns, "web")
		if err != nil {
			return "", err
		}
		if found := len(spread.Status.VersionedSubsetStatuses); found != n {
			return fmt.Sprintf("%d: %s", found, spread.Status.Summary), nil
		}
		return "", nil
	})
}

// uids of the namespace's pods.
func uids(t *testing.T, ns string) []types.UID {
	t.Helper()
	pods, err := the.Pods(t.Context(), ns)
	if err != nil {
		t.Fatal(err)
	}
	all := make([]types.UID, len(pods))
	for i := range pods {
		all[i] = pods[i].UID
	}
	slices.Sort(all)
	return all
}

// expectSummary waits until the spread's status says in one line that its pods are where they are.
func expectSummary(t *testing.T, ns, want string) {
	t.Helper()
	waitFor(t, "summary "+want, func(ctx context.Context) (string, error) {
		spread, err := the.Spread(ctx, ns, "web")
		if err != nil || spread.Status.Summary == want && spread.Status.ObservedGeneration == spread.Generation {
			return "", err
		}
		return spread.Status.Summary, nil
	})
}

// TestAChangedSpreadLeavesItsPodsWhereTheyAre: they are counted again, and deleted in the new order when the workload shrinks.
func TestAChangedSpreadLeavesItsPodsWhereTheyAre(t *testing.T) {
	harness.Long(t)
	term := func(pool string) string {
		return fmt.Sprintf("requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [%s]}]}", pool)
	}
	tests := map[string]struct {
		subsets string
		summary string
		adopted int32
		surplus int32
		// five is where the pods are once five are left of ten.
		five string
	}{
		"a quota lowered":       {"{name: a, maxReplicas: 2, " + term("a") + "}, {name: b, " + term("b") + "}", "a 4/2, b 6/-", 0, 2, "a=2 b=3"},
		"a quota raised":        {"{name: a, maxReplicas: 9, " + term("a") + "}, {name: b, " + term("b") + "}", "a 4/9, b 6/-", 0, 0, "a=4 b=1"},
		"the order turned":      {"{name: b, maxReplicas: 9, " + term("b") + "}, {name: a, " + term("a") + "}", "b 6/9, a 4/-", 0, 0, "a=0 b=5"},
		"a subset renamed":      {"{name: first, maxReplicas: 4, " + term("a") + "}, {name: b, " + term("b") + "}", "first 4/4, b 6/-", 4, 0, "a=4 b=1"},
		"a subset removed":      {"{name: b, " + term("b") + "}", "b 6/-", 0, 0, "a=0 b=5"},
		"a subset put in front": {"{name: none, maxReplicas: 3, " + term("c") + "}, {name: a, maxReplicas: 4, " + term("a") + "}, {name: b, " + term("b") + "}", "none 0/3, a 4/4, b 6/-", 0, 0, "a=4 b=1"},
		"counts to percentages": {"{name: a, maxReplicas: 40%, " + term("a") + "}, {name: b, " + term("b") + "}", "a 4/4, b 6/-", 0, 0, "a=2 b=3"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pools(t, "a", "b")
			ns := namespace(t)
			apply(t, ns, overPools("4", "{}"))
			apply(t, ns, deployment("web", 10, ""))
			expectPlaces(t, ns, "a=4 b=6")
			before := uids(t, ns)
			apply(t, ns, spreadFor("web", "apps/v1", "Deployment", "web", "  subsets: ["+tc.subsets+"]"))
			expectSummary(t, ns, tc.summary)
			expectTrueStatus(t, ns)
			if after := uids(t, ns); !slices.Equal(before, after) {
				t.Errorf("pods %v have become %v", before, after)
			}
			spread, err := the.Spread(t.Context(), ns, "web")
			if err != nil {
				t.Fatal(err)
			}
			if s := spread.Status; s.AdoptedPods != tc.adopted || s.SurplusPods != tc.surplus {
				t.Errorf("adopted %d and surplus %d, want %d and %d", s.AdoptedPods, s.SurplusPods, tc.adopted, tc.surplus)
			}
			scale(t, ns, "web", 5)
			expectPlaces(t, ns, tc.five)
			expectTrueStatus(t, ns)
			expectNoViolation(t)
		})
	}
}

// TestAJobsRetriesTakeTheSlotsOfThePodsThatFailed: a pod that has failed holds none.
func TestAJobsRetriesTakeTheSlotsOfThePodsThatFailed(t *testing.T) {
	harness.Long(t)
	pools(t, "a", "b")
	ns := namespace(t)
	apply(t, ns, spreadFor("web", "batch/v1", "Job", "web", fmt.Sprintf(twoPools, "1"))) // the Job waits 10 s after one failure, and 20 s after two
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: batchv1.JobSpec{
		Parallelism: ptr.To[int32](5), Completions: ptr.To[int32](5), BackoffLimit: ptr.To[int32](100),
		Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{SchedulerName: v1beta1.SchedulerName, RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{Name: "main", Image: "registry.k8s.io/pause:3.10"}}}},
	}}
	if _, err := the.Client.BatchV1().Jobs(ns).Create(t.Context(), job, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	expectPlaces(t, ns, "a=1 b=4")
	pods, err := the.Pods(t.Context(), ns)
	if err != nil {
		t.Fatal(err)
	}
	failed := 0
	for i := range pods {
		if !strings.HasSuffix(pods[i].Spec.NodeName, "-a") {
			continue
		}
		patch := []byte(`{"status":{"phase":"Failed"}}`)
		if _, err := the.Client.CoreV1().Pods(ns).Patch(t.Context(), pods[i].Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
			t.Fatal(err)
		}
		failed++
	}
	waitFor(t, "the retries", func(ctx context.Context) (string, error) {
		pods, err := the.Pods(ctx, ns)
		if err != nil {
			return "", err
		}
		active := map[string]int{}
		for i := range pods {
			if pods[i].Status.Phase != corev1.PodFailed && pods[i].DeletionTimestamp == nil {
				active[pods[i].Labels[v1beta1.SubsetLabel]]++
			}
		}
		if want := map[string]int{"a": failed, "b": 4}; !maps.Equal(active, want) {
			return fmt.Sprint(active), nil
		}
		return "", nil
	})
	expectTrueStatus(t, ns)
	expectNoViolation(t)
}

// TestPodsUpdatedInPlaceCountInTheirNewRevision: the pods of a revision are updated to the next as in-place updaters do it, by their label. Pods that
// are added then find the slots taken.
func TestPodsUpdatedInPlaceCountInTheirNewRevision(t *testing.T) {
	harness.Long(t)
	pools(t, "a", "b")
	ns := namespace(t)
	sets := the.Client.AppsV1().StatefulSets(ns)
	apply(t, ns, spreadFor("web", "apps/v1", "StatefulSet", "web", fmt.Sprintf(twoPools, "5"))+`
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: web}
spec:
  replicas: 10
  serviceName: web
  podManagementPolicy: Parallel
  updateStrategy: {type: OnDelete}
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {schedulerName: berth-scheduler, containers: [{name: main, image: registry.k8s.io/pause:3.10}]}
`)
	expectPlaces(t, ns, "a=5 b=5")
	if _, err := sets.Patch(t.Context(), "web", types.MergePatchType, []byte(revision("new")), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	var hash string
	waitFor(t, "the new revision", func(ctx context.Context) (string, error) {
		set, err := sets.Get(ctx, "web", getOptions)
		if err != nil || set.Status.UpdateRevision == set.Status.CurrentRevision {
			return "there is only one", err
		}
		hash = set.Status.UpdateRevision
		return "", nil
	})
	pods, err := the.Pods(t.Context(), ns)
	if err != nil {
		t.Fatal(err)
	}
	for i := range pods {
		patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, appsv1.ControllerRevisionHashLabelKey, hash)
		if _, err := the.Client.CoreV1().Pods(ns).Patch(t.Context(), pods[i].Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := sets.Patch(t.Context(), "web", types.MergePatchType, []byte(`{"spec":{"replicas":15}}`), metav1.PatchOptions{}, "scale"); err != nil {
		t.Fatal(err)
	}
	for _, pod := range expectPods(t, ns, 15) {
		if got := pod.Labels[appsv1.ControllerRevisionHashLabelKey]; got != hash {
			t.Errorf("pod %s is of revision %q, want %q", pod.Name, got, hash)
		}
	}
	waitFor(t, "15 pods on nodes", func(ctx context.Context) (string, error) {
		pods, err := the.Pods(ctx, ns)
		for i := range pods {
			if pods[i].Spec.NodeName == "" {
				return pods[i].Name + " has none", nil
			}
		}
		return "", err
	})
	expectNoViolation(t)
	expectPlaces(t, ns, "a=5 b=10")
}
