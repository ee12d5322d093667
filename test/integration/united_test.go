package integration

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	unitedv1beta1 "github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/test/checker"
	"github.com/berth-project/berth/test/harness"
)

// onPods is a pod template whose first container has an environment variable with this value.
func onPods(value string) string {
	return fmt.Sprintf(`{metadata: {labels: {app: web}}, spec: {terminationGracePeriodSeconds: 0, containers: [{name: main, image: registry.k8s.io/pause:3.10, env: [{name: V, value: %s}]}]}}`, value)
}

func ofDeployments(value string) string {
	return "{deploymentTemplate: {metadata: {labels: {app: web}}, spec: {template: " + onPods(value) + "}}}"
}

func ofStatefulSets(value string) string {
	return "{statefulSetTemplate: {metadata: {labels: {app: web}}, spec: {serviceName: web, podManagementPolicy: Parallel, template: " + onPods(value) + "}}}"
}

// inPool is a subset on the nodes of a pool.
func inPool(name, more string) string {
	return fmt.Sprintf("{name: %[1]s, nodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [%[1]s]}]}%[2]s}", name, more)
}

func united(replicas int, template, more string, subsets ...string) string {
	return fmt.Sprintf(`
apiVersion: apps.kruise.io/v1beta1
kind: UnitedDeployment
metadata: {name: web}
spec:
  replicas: %d
  selector: {matchLabels: {app: web}}
  template: %s
  topology: {subsets: [%s]}
%s
`, replicas, template, strings.Join(subsets, ", "), more)
}

// uniteds is the client for UnitedDeployments, without types.
func patchUnited(t *testing.T, ns, patch string, subresources ...string) {
	t.Helper()
	if _, err := the.Dynamic.Resource(unitedv1beta1.Resource).Namespace(ns).Patch(t.Context(), "web", types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...); err != nil {
		t.Fatal(err)
	}
}

func readUnited(ctx context.Context, ns string) (*unitedv1beta1.UnitedDeployment, error) {
	object, err := the.Dynamic.Resource(unitedv1beta1.Resource).Namespace(ns).Get(ctx, "web", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	ud := &unitedv1beta1.UnitedDeployment{}
	return ud, k8sruntime.DefaultUnstructuredConverter.FromUnstructured(object.Object, ud)
}

// childrenIn are the objects with a subset in a namespace.
func childrenIn(ctx context.Context, ns string) ([]unstructured.Unstructured, error) {
	var all []unstructured.Unstructured
	for _, resource := range []string{"deployments", "statefulsets"} {
		list, err := the.Dynamic.Resource(appsv1.SchemeGroupVersion.WithResource(resource)).Namespace(ns).List(ctx, metav1.ListOptions{LabelSelector: unitedv1beta1.SubsetNameLabel})
		if err != nil {
			return nil, err
		}
		all = append(all, list.Items...)
	}
	for _, kind := range []*customKind{cloneSets, advancedSets} {
		objects, err := kind.in(ctx, ns)
		if err != nil {
			return nil, err
		}
		all = append(all, objects...)
	}
	slices.SortFunc(all, func(a, b unstructured.Unstructured) int {
		return cmp.Compare(a.GetLabels()[unitedv1beta1.SubsetNameLabel], b.GetLabels()[unitedv1beta1.SubsetNameLabel])
	})
	return all, nil
}

func replicasIn(object *unstructured.Unstructured) int {
	n, _, _ := unstructured.NestedInt64(object.Object, "spec", "replicas")
	return int(n)
}

// childIn is the child of a subset.
func childIn(t *testing.T, ns, subset string) *unstructured.Unstructured {
	t.Helper()
	all, err := childrenIn(t.Context(), ns)
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		if all[i].GetLabels()[unitedv1beta1.SubsetNameLabel] == subset {
			return &all[i]
		}
	}
	t.Fatalf("subset %s has no child", subset)
	return nil
}

func patchChild(t *testing.T, child *unstructured.Unstructured, patch string) {
	t.Helper()
	client, err := the.Resource(child, child.GetNamespace())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Patch(t.Context(), child.GetName(), types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// expectUnited waits until the children ask for these replicas, all pods are ready and of the latest template, and the status says so. For example "a=2 b=1".
func expectUnited(t *testing.T, ns, want string) *unitedv1beta1.UnitedDeployment {
	t.Helper()
	var ud *unitedv1beta1.UnitedDeployment
	waitFor(t, "children "+want, func(ctx context.Context) (_ string, err error) {
		if ud, err = readUnited(ctx, ns); err != nil {
			return "", err
		}
		all, err := childrenIn(ctx, ns)
		if err != nil {
			return "", err
		}
		var got, summary []string
		total := 0
		for i := range all {
			n := replicasIn(&all[i])
			total += n
			name := all[i].GetLabels()[unitedv1beta1.SubsetNameLabel]
			got = append(got, fmt.Sprintf("%s=%d", name, n))
			summary = append(summary, fmt.Sprintf("%s %d/%d", name, n, n))
		}
		status := &ud.Status
		if s := strings.Join(got, " "); s != want || status.ObservedGeneration != ud.Generation || status.Summary != strings.Join(summary, ", ") ||
			int(status.Replicas) != total || int(status.ReadyReplicas) != total || conditionIn(status, unitedv1beta1.ReadyCondition).Status != corev1.ConditionTrue {
			text, err := json.Marshal(status)
			return fmt.Sprintf("children %s, generation %d, status %s", s, ud.Generation, text), err
		}
		return "", nil
	})
	return ud
}

// expectUpdated waits until all pods have the latest template.
func expectUpdated(t *testing.T, ns string) *unitedv1beta1.UnitedDeployment {
	t.Helper()
	var ud *unitedv1beta1.UnitedDeployment
	waitFor(t, "the rollout", func(ctx context.Context) (_ string, err error) {
		if ud, err = readUnited(ctx, ns); err != nil {
			return "", err
		}
		if s := &ud.Status; s.ObservedGeneration != ud.Generation || s.CurrentRevision != s.UpdatedRevision || s.UpdatedReadyReplicas != *ud.Spec.Replicas || s.Replicas != *ud.Spec.Replicas {
			text, err := json.Marshal(s)
			return string(text), err
		}
		return "", nil
	})
	return ud
}

func conditionIn(status *unitedv1beta1.UnitedDeploymentStatus, of unitedv1beta1.ConditionType) unitedv1beta1.Condition {
	for _, c := range status.Conditions {
		if c.Type == of {
			return c
		}
	}
	return unitedv1beta1.Condition{}
}

// expectCondition waits for the reason of a condition.
func expectUnitedReason(t *testing.T, ns string, of unitedv1beta1.ConditionType, want unitedv1beta1.Reason) unitedv1beta1.Condition {
	t.Helper()
	var is unitedv1beta1.Condition
	waitFor(t, "reason "+string(want), func(ctx context.Context) (string, error) {
		ud, err := readUnited(ctx, ns)
		if err != nil {
			return "", err
		}
		if is = conditionIn(&ud.Status, of); is.Reason != want || ud.Status.ObservedGeneration != ud.Generation {
			return fmt.Sprint(ud.Status.Conditions), nil
		}
		return "", nil
	})
	return is
}

// auditChildren watches from now on. In the end, the test fails if a write ever made the children ask for more than the total and the surge.
func auditChildren(t *testing.T, ns string, surge int) {
	t.Helper()
	children, err := checker.WatchChildren(the.Dynamic, ns)
	if err != nil {
		t.Fatal(err)
	}
	children.Surge = surge
	t.Cleanup(func() {
		violations, checked := children.Violations()
		for _, violation := range violations {
			t.Error(violation)
		}
		if checked == 0 {
			t.Error("no child was raised: nothing was checked")
		}
	})
}

func TestAUnitedDeploymentSharesEquallyAndLeavesTheFieldsOfUsersAlone(t *testing.T) {
	pools(t, "a", "b", "c")
	ns := namespace(t)
	auditChildren(t, ns, 0)
	apply(t, ns, united(7, ofDeployments("one"), "", inPool("a", ""), inPool("b", ""), inPool("c", ", patch: {metadata: {labels: {tier: last}}}")))
	first := expectUnited(t, ns, "a=3 b=2 c=2")
	if first.Status.CurrentRevision == "" || first.Status.LabelSelector != "app=web" {
		t.Errorf("status %+v", first.Status)
	}
	pods, err := the.Pods(t.Context(), ns)
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods {
		in := pod.Labels[unitedv1beta1.SubsetNameLabel]
		if !strings.HasSuffix(pod.Spec.NodeName, "-"+in) || (pod.Labels["tier"] == "last") != (in == "c") || pod.Labels[unitedv1beta1.RevisionLabel] != first.Status.UpdatedRevision {
			t.Errorf("pod %s of subset %s is on %s and has labels %v", pod.Name, in, pod.Spec.NodeName, pod.Labels)
		}
	}
	patchUnited(t, ns, `{"spec":{"replicas":9}}`, "scale")
	expectUnited(t, ns, "a=3 b=3 c=3")
	// A user changes fields that Berth does not set, and one that it does.
	patchChild(t, childIn(t, ns, "a"), `{"metadata":{"annotations":{"note":"mine"}},"spec":{"revisionHistoryLimit":3,"replicas":1}}`)
	expectUnited(t, ns, "a=3 b=3 c=3")
	apply(t, ns, united(9, ofDeployments("two"), "", inPool("a", ""), inPool("b", ""), inPool("c", ", patch: {metadata: {labels: {tier: last}}}")))
	expectUpdated(t, ns)
	child := childIn(t, ns, "a")
	if limit, _, _ := unstructured.NestedInt64(child.Object, "spec", "revisionHistoryLimit"); limit != 3 || child.GetAnnotations()["note"] != "mine" {
		t.Errorf("the user's fields are gone: limit %d, annotations %v", limit, child.GetAnnotations())
	}
	// The first template again: its ControllerRevision becomes the latest.
	apply(t, ns, united(9, ofDeployments("one"), "", inPool("a", ""), inPool("b", ""), inPool("c", ", patch: {metadata: {labels: {tier: last}}}")))
	last := expectUpdated(t, ns)
	if last.Status.UpdatedRevision != first.Status.UpdatedRevision {
		t.Errorf("revision %s, and after the rollback %s", first.Status.UpdatedRevision, last.Status.UpdatedRevision)
	}
	revisions, err := the.Client.AppsV1().ControllerRevisions(ns).List(t.Context(), metav1.ListOptions{LabelSelector: unitedv1beta1.RevisionLabel})
	if err != nil {
		t.Fatal(err)
	}
	if len(revisions.Items) != 2 {
		t.Errorf("%d ControllerRevisions, want 2", len(revisions.Items))
	}
	for _, revision := range revisions.Items {
		if latest := revision.Name == last.Status.UpdatedRevision; latest != (revision.Revision == 3) {
			t.Errorf("ControllerRevision %s has number %d", revision.Name, revision.Revision)
		}
	}
}

// TestAnotherStrategyCanBeSetLater: the API server fills in parameters of rolling updates that nobody has applied, and refuses them beside another strategy.
func TestAnotherStrategyCanBeSetLater(t *testing.T) {
	with := func(strategy string) string {
		return united(1, strings.Replace(ofDeployments("one"), " spec: {", fmt.Sprintf(" spec: {strategy: %s, ", strategy), 1), "", inPool("a", ""))
	}
	pools(t, "a")
	ns := namespace(t)
	expect := func(is string, rolls bool) {
		t.Helper()
		waitFor(t, "strategy "+is, func(context.Context) (string, error) {
			strategy, _, err := unstructured.NestedMap(childIn(t, ns, "a").Object, "spec", "strategy")
			if strategy["type"] == is && (strategy["rollingUpdate"] != nil) == rolls {
				return "", err
			}
			return fmt.Sprint(strategy), err
		})
	}
	apply(t, ns, with("{}"))
	expectUnited(t, ns, "a=1")
	apply(t, ns, with("{type: Recreate}"))
	expect("Recreate", false)
	apply(t, ns, with("{}"))
	expect("RollingUpdate", true)
	expectUnited(t, ns, "a=1")
}

func TestAUnitedDeploymentFillsInOrderAndEmptiesInReverse(t *testing.T) {
	pools(t, "a", "b", "c")
	ns := namespace(t)
	auditChildren(t, ns, 0)
	apply(t, ns, united(4, ofStatefulSets("one"), "", inPool("a", ", minReplicas: 1, maxReplicas: 3"), inPool("b", ", minReplicas: 1"), inPool("c", ", maxReplicas: 0")))
	expectUnited(t, ns, "a=3 b=1 c=0")
	for _, step := range []struct {
		replicas int
		want     string
	}{{6, "a=3 b=3 c=0"}, {2, "a=1 b=1 c=0"}, {0, "a=0 b=0 c=0"}, {5, "a=3 b=2 c=0"}} {
		patchUnited(t, ns, fmt.Sprintf(`{"spec":{"replicas":%d}}`, step.replicas))
		expectUnited(t, ns, step.want)
	}
}

func TestAUnitedDeploymentKeepsToPartitionsAndSpecifiedReplicas(t *testing.T) {
	harness.Long(t)
	pools(t, "a", "b")
	ns := namespace(t)
	subsets := []string{inPool("a", ", replicas: 40%"), inPool("b", "")}
	apply(t, ns, united(5, ofStatefulSets("one"), "", subsets...))
	first := expectUnited(t, ns, "a=2 b=3")
	partitions := func(a, b int) string {
		return fmt.Sprintf("  updateStrategy: {manualUpdate: {partitions: {a: %d, b: %d}}}", a, b)
	}
	apply(t, ns, united(5, ofStatefulSets("two"), partitions(0, 3), subsets...))
	expectUpdatedPods(t, ns, "a=2 b=0")
	apply(t, ns, united(5, ofStatefulSets("two"), partitions(0, 1), subsets...))
	expectUpdatedPods(t, ns, "a=2 b=2")
	ud, err := readUnited(t.Context(), ns)
	if err != nil {
		t.Fatal(err)
	}
	if ud.Status.CurrentRevision != first.Status.CurrentRevision || ud.Status.UpdatedRevision == first.Status.UpdatedRevision {
		t.Errorf("revisions %s and %s, and before %s", ud.Status.CurrentRevision, ud.Status.UpdatedRevision, first.Status.CurrentRevision)
	}
	apply(t, ns, united(5, ofStatefulSets("two"), partitions(0, 0), subsets...))
	expectUpdated(t, ns)
}

// expectUpdatedPods waits until this many pods of each subset have the latest template and are ready.
func expectUpdatedPods(t *testing.T, ns, want string) {
	t.Helper()
	waitFor(t, "updated pods "+want, func(ctx context.Context) (string, error) {
		ud, err := readUnited(ctx, ns)
		if err != nil {
			return "", err
		}
		pods, err := the.Pods(ctx, ns)
		if err != nil {
			return "", err
		}
		updated, ready := map[string]int{}, 0
		for i := range pods {
			if pods[i].Labels[unitedv1beta1.RevisionLabel] == ud.Status.UpdatedRevision {
				updated[pods[i].Labels[unitedv1beta1.SubsetNameLabel]]++
			}
			for _, c := range pods[i].Status.Conditions {
				if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
					ready++
				}
			}
		}
		got := fmt.Sprintf("a=%d b=%d", updated["a"], updated["b"])
		if got != want || ready != int(*ud.Spec.Replicas) || ud.Status.ObservedGeneration != ud.Generation || int(ud.Status.UpdatedReplicas) != updated["a"]+updated["b"] {
			return fmt.Sprintf("%s, %d pods are ready, status %+v", got, ready, ud.Status), nil
		}
		return "", nil
	})
}

func TestARemovedSubsetMovesItsReplicas(t *testing.T) {
	harness.Long(t)
	pools(t, "a", "b")
	ns := namespace(t)
	auditChildren(t, ns, 1)
	apply(t, ns, united(6, ofDeployments("one"), "", inPool("a", ""), inPool("b", "")))
	expectUnited(t, ns, "a=3 b=3")
	surge := "  updateStrategy: {maxSurge: 1}"
	apply(t, ns, united(6, ofDeployments("one"), surge, inPool("a", "")))
	expectUnited(t, ns, "a=6")
	// Another kind, by way of an empty template.
	patchUnited(t, ns, `{"spec":{"template":null}}`)
	expectUnitedReason(t, ns, unitedv1beta1.ReadyCondition, unitedv1beta1.ReasonNoTemplate)
	apply(t, ns, united(6, ofStatefulSets("one"), surge, inPool("a", "")))
	expectUnited(t, ns, "a=6")
	if kind := childIn(t, ns, "a").GetKind(); kind != "StatefulSet" {
		t.Errorf("the child is a %s", kind)
	}
}

func TestChildrenThatWereLeftBehindAreAdopted(t *testing.T) {
	pools(t, "a", "b")
	ns := namespace(t)
	apply(t, ns, united(4, ofDeployments("one"), "", inPool("a", ""), inPool("b", "")))
	expectUnited(t, ns, "a=2 b=2")
	before := childIn(t, ns, "a")
	orphan := metav1.DeletePropagationOrphan
	if err := the.Dynamic.Resource(unitedv1beta1.Resource).Namespace(ns).Delete(t.Context(), "web", metav1.DeleteOptions{PropagationPolicy: &orphan}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the deletion", func(ctx context.Context) (string, error) {
		_, err := readUnited(ctx, ns)
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "it exists", err
	})
	if left := childIn(t, ns, "a"); len(left.GetOwnerReferences()) > 0 || replicasIn(left) != 2 {
		t.Errorf("left behind: owners %v, replicas %d", left.GetOwnerReferences(), replicasIn(left))
	}
	pods, err := the.Pods(t.Context(), ns)
	if err != nil {
		t.Fatal(err)
	}
	apply(t, ns, united(5, ofDeployments("one"), "", inPool("a", ""), inPool("b", "")))
	ud := expectUnited(t, ns, "a=3 b=2")
	after := childIn(t, ns, "a")
	if after.GetUID() != before.GetUID() || !metav1.IsControlledBy(after, ud) {
		t.Errorf("child %s with owners %v, and before %s", after.GetUID(), after.GetOwnerReferences(), before.GetUID())
	}
	for _, pod := range pods {
		if _, err := the.Client.CoreV1().Pods(ns).Get(t.Context(), pod.Name, getOptions); err != nil {
			t.Errorf("pod %s was replaced: %v", pod.Name, err)
		}
	}
}

func TestAnErrorIsSaidAndScalingStillWorks(t *testing.T) {
	pools(t, "a", "b")
	ns := namespace(t)
	apply(t, ns, united(4, ofDeployments("one"), "", inPool("a", ""), inPool("b", "")))
	expectUnited(t, ns, "a=2 b=2")
	// The API server knows that a limit is below a request. Berth does not.
	broken := strings.Replace(ofDeployments("one"), "pause:3.10,", "pause:3.10, resources: {requests: {cpu: 2}, limits: {cpu: 1}},", 1)
	apply(t, ns, united(2, broken, "", inPool("a", ""), inPool("b", "")))
	c := expectUnitedReason(t, ns, unitedv1beta1.SubsetFailure, unitedv1beta1.ReasonChildRefused)
	if !strings.Contains(c.Message, "must be less than or equal to cpu limit") {
		t.Errorf("message %q", c.Message)
	}
	waitFor(t, "fewer replicas", func(ctx context.Context) (string, error) {
		all, err := childrenIn(ctx, ns)
		if err != nil {
			return "", err
		}
		if replicasIn(&all[0]) != 1 || replicasIn(&all[1]) != 1 {
			return fmt.Sprintf("%d and %d", replicasIn(&all[0]), replicasIn(&all[1])), nil
		}
		return "", nil
	})
	apply(t, ns, united(4, ofDeployments("one"), "", inPool("a", ""), inPool("b", "")))
	ud := expectUnited(t, ns, "a=2 b=2")
	if c := conditionIn(&ud.Status, unitedv1beta1.SubsetFailure); c.Type != "" {
		t.Errorf("still %+v", c)
	}
}

// TestStrangersWhoWriteToChildrenDoNotBreakTheTotal writes to the children all the time, so that many of Berth's writes are refused as out of date, takes their
// labels away, and scales them by hand.
func TestStrangersWhoWriteToChildrenDoNotBreakTheTotal(t *testing.T) {
	pools(t, "a", "b", "c")
	ns := namespace(t)
	auditChildren(t, ns, 3) // as many as the stranger adds
	apply(t, ns, united(4, ofDeployments("one"), "", inPool("a", ""), inPool("b", ""), inPool("c", "")))
	expectUnited(t, ns, "a=2 b=1 c=1")
	uids := map[types.UID]bool{}
	for _, subset := range []string{"a", "b", "c"} {
		uids[childIn(t, ns, subset).GetUID()] = true
	}
	ctx, stop := context.WithCancel(t.Context())
	deployments := the.Client.AppsV1().Deployments(ns)
	var writing sync.WaitGroup
	writing.Go(func() {
		often := time.NewTicker(250 * time.Millisecond)
		defer often.Stop()
		for i := 0; ctx.Err() == nil; i++ {
			<-often.C
			list, err := deployments.List(ctx, metav1.ListOptions{})
			if err != nil {
				continue
			}
			for _, d := range list.Items {
				patch := fmt.Sprintf(`{"metadata":{"annotations":{"stranger":"%d"}}}`, i)
				_, _ = deployments.Patch(ctx, d.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}) // one of many
			}
		}
	})
	for i, replicas := range []int{9, 3, 12, 6} {
		child := childIn(t, ns, "b")
		patchChild(t, child, []string{`{"metadata":{"labels":{"apps.kruise.io/subset-name":null}}}`, fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicasIn(child)+3)}[i%2])
		patchUnited(t, ns, fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas), "scale")
		expectUnited(t, ns, fmt.Sprintf("a=%[1]d b=%[1]d c=%[1]d", replicas/3))
	}
	stop()
	writing.Wait()
	for _, subset := range []string{"a", "b", "c"} {
		if child := childIn(t, ns, subset); !uids[child.GetUID()] || child.GetAnnotations()["stranger"] == "" {
			t.Errorf("subset %s has another child, %s", subset, child.GetName())
		}
	}
}
