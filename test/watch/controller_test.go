package watch

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/pkg/budget"
	policyv1beta1 "github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	sidecarv1beta1 "github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
	unitedv1beta1 "github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/test/checker"
	"github.com/berth-project/berth/test/harness"
)

const (
	// steady pods are those of a budget, which keeps so many.
	steady, floor = 6, 5
	surge         = 1
)

// guarded creates pods with a sidecar and a budget, before any fault, and watches the budget until the test ends.
func (w *world) guarded() {
	w.Helper()
	w.Cleanup(func() {
		if err := the.Dynamic.Resource(sidecarv1beta1.Resource).Delete(context.Background(), w.ns, metav1.DeleteOptions{}); err != nil {
			w.Error(err)
		}
	})
	w.sidecars(0)
	w.await("the SidecarSet", func(ctx context.Context) (string, error) { return w.isReady(ctx, sidecarv1beta1.Resource, "", w.ns) })
	w.apply(fmt.Sprintf("{apiVersion: policy.kruise.io/v1beta1, kind: PodUnavailableBudget, metadata: {name: steady}, spec: {selector: {matchLabels: {app: steady}}, minAvailable: %d}}", floor))
	w.apply(workload("Deployment", "steady", steady, ""))
	w.await("pods of the budget", func(ctx context.Context) (string, error) { return w.steadyAtRest(ctx, 0) })
	ready, err := checker.WatchReady(context.WithoutCancel(w.Context()), the.Dynamic, w.ns, "app=steady", floor)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		violations, fewest := ready.End()
		for _, violation := range violations {
			w.Error(violation)
		}
		w.Logf("the budget never had less than %d of %d pods, at least %d must be", fewest, steady, floor)
	})
}

func (w *world) sidecars(version int) {
	w.Helper()
	w.apply(fmt.Sprintf("{apiVersion: apps.kruise.io/v1beta1, kind: SidecarSet, metadata: {name: %[1]s}, spec: {namespace: %[1]s, selector: {matchLabels: {app: steady}}, "+
		"containers: [{name: log, image: 'registry.example.com/log:%[2]d'}], updateStrategy: {maxUnavailable: 2}}}", w.ns, version))
}

// steadyAtRest says what is missing until all pods of the budget are ready and protected, with the sidecar of a version.
func (w *world) steadyAtRest(ctx context.Context, version int) (string, error) {
	list, err := the.Client.CoreV1().Pods(w.ns).List(ctx, metav1.ListOptions{LabelSelector: "app=steady"})
	if err != nil {
		return "", err
	}
	for i := range list.Items {
		pod := &list.Items[i]
		at := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == "log" })
		if at < 0 { // it was created while no webhook answered
			if err := the.Client.CoreV1().Pods(w.ns).Delete(ctx, pod.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return fmt.Sprintf("pod %s has no sidecar, and cannot be deleted yet: %v", pod.Name, err), nil
			}
			return "a pod had no sidecar", nil
		}
		want := fmt.Sprintf("registry.example.com/log:%d", version)
		runs := slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.Name == "log" && s.Image == want && s.Ready })
		ready := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue })
		if pod.Spec.Containers[at].Image != want || !runs || !ready || pod.DeletionTimestamp != nil {
			return fmt.Sprintf("pod %s has %s, runs it: %t, ready: %t", pod.Name, pod.Spec.Containers[at].Image, runs, ready), nil
		}
		if !budget.IsProtected(pod) {
			return "pod " + pod.Name + " is not protected yet", nil
		}
	}
	if len(list.Items) != steady {
		return fmt.Sprintf("there are %d", len(list.Items)), nil
	}
	return "", nil
}

// isReady says what is missing until an object is ready, and its status is of its latest generation.
func (w *world) isReady(ctx context.Context, resource schema.GroupVersionResource, ns, name string) (string, error) {
	object, err := the.Dynamic.Resource(resource).Namespace(ns).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	seen, _, _ := unstructured.NestedInt64(object.Object, "status", "observedGeneration")
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	ready := slices.ContainsFunc(conditions, func(c any) bool {
		condition := c.(map[string]any)
		return condition["type"] == "Ready" && condition["status"] == "True"
	})
	if seen != object.GetGeneration() || !ready {
		return fmt.Sprintf("%s %s: %v", object.GetKind(), name, object.Object["status"]), nil
	}
	return "", nil
}

// split applies UnitedDeployment split.
func (w *world) split(replicas int, subsets string) {
	w.Helper()
	var each []string
	for _, pool := range subsets {
		each = append(each, fmt.Sprintf("{name: %[1]c, nodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [%[1]c]}]}}", pool))
	}
	w.apply(fmt.Sprintf("{apiVersion: apps.kruise.io/v1beta1, kind: UnitedDeployment, metadata: {name: split}, spec: {replicas: %d, selector: {matchLabels: {app: split}}, "+
		"template: {deploymentTemplate: {spec: {template: {metadata: {labels: {app: split}}, spec: {%s}}}}}, updateStrategy: {maxSurge: %d}, topology: {subsets: [%s]}}}", replicas, podSpec, surge, strings.Join(each, ", ")))
}

// watchChildren checks the sum of the UnitedDeployment's children at each revision, and that no subset ever has two, until the test ends.
func (w *world) watchChildren() {
	w.Helper()
	children, err := checker.WatchChildren(the.Dynamic, w.ns)
	if err != nil {
		w.Fatal(err)
	}
	children.Surge, children.Grace = surge, grace
	children.Of = "split"
	w.Cleanup(func() {
		violations, raised := children.Violations()
		for _, violation := range violations {
			w.Error(violation)
		}
		w.Logf("%d writes gave a child more", raised)
		if raised == 0 {
			w.Error("the watcher of the children has seen no write that gave a child more")
		}
	})
}

// splitAtRest says what is missing until the children are as wanted, for instance a=3 b=3, and there are no others.
func (w *world) splitAtRest(ctx context.Context, want string) (string, error) {
	list, err := the.Client.AppsV1().Deployments(w.ns).List(ctx, metav1.ListOptions{LabelSelector: unitedv1beta1.SubsetNameLabel})
	if err != nil {
		return "", err
	}
	var got []string
	for i := range list.Items {
		d := &list.Items[i]
		got = append(got, fmt.Sprintf("%s=%d", d.Labels[unitedv1beta1.SubsetNameLabel], *d.Spec.Replicas))
	}
	slices.Sort(got)
	if strings.Join(got, " ") != want {
		object, err := the.Dynamic.Resource(unitedv1beta1.Resource).Namespace(w.ns).Get(ctx, "split", metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%s, want %s; status %v", got, want, object.Object["status"]), nil
	}
	return w.isReady(ctx, unitedv1beta1.Resource, w.ns, "split")
}

func (w *world) await(what string, condition func(context.Context) (string, error)) {
	w.Helper()
	if err := the.WaitFor(w.Context(), what, condition); err != nil {
		w.Fatal(err)
	}
}

func (w *world) expectGuarded(version int, split string) {
	w.Helper()
	w.await("the children", func(ctx context.Context) (string, error) { return w.splitAtRest(ctx, split) })
	w.await("the pods of the budget", func(ctx context.Context) (string, error) { return w.steadyAtRest(ctx, version) })
	w.await("the SidecarSet", func(ctx context.Context) (string, error) { return w.isReady(ctx, sidecarv1beta1.Resource, "", w.ns) })
	w.await("the status of the budget", func(ctx context.Context) (string, error) {
		pub, err := w.budget(ctx)
		if err != nil || pub.Status.UnavailableAllowed != steady-floor || pub.Status.CurrentAvailable != steady || len(pub.Status.Ledger) > 0 {
			return fmt.Sprintf("%+v", pub.Status), err
		}
		return "", nil
	})
}

func (w *world) budget(ctx context.Context) (*policyv1beta1.PodUnavailableBudget, error) {
	pub := &policyv1beta1.PodUnavailableBudget{}
	object, err := the.Dynamic.Resource(policyv1beta1.Resource).Namespace(w.ns).Get(ctx, "steady", metav1.GetOptions{})
	if err != nil {
		return pub, err
	}
	return pub, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, pub)
}

// useApprovals deletes the pods whose operations the budget has allowed while the answers were lost. Otherwise it keeps the room for them until the approvals expire.
func (w *world) useApprovals() {
	w.Helper()
	for began := time.Now(); ; {
		var left []policyv1beta1.LedgerEntry
		err := the.WaitFor(w.Context(), "the approvals to be used", func(ctx context.Context) (string, error) {
			pub, err := w.budget(ctx)
			if err != nil {
				return "", err
			}
			left = pub.Status.Ledger
			for _, entry := range left {
				err := the.Client.CoreV1().Pods(w.ns).Delete(ctx, entry.Name, metav1.DeleteOptions{})
				if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsTooManyRequests(err) && !isAway(err) {
					return "", err
				}
			}
			if len(left) > 0 {
				return fmt.Sprintf("%+v", left), nil
			}
			return "", nil
		})
		if err == nil {
			return
		}
		if time.Since(began) > 2*harness.Timeout { // an approval that was not used four times expires after two minutes
			w.Fatal(err)
		}
	}
}

// TestTheControllerKeepsItsPromisesWhateverItSees: spreads, a UnitedDeployment, a SidecarSet and a budget change, and pods are evicted, while the controller and its webhooks see the past, skip events,
// must list again, and are killed.
func TestTheControllerKeepsItsPromisesWhateverItSees(t *testing.T) {
	for round := range *rounds {
		t.Run(fmt.Sprintf("seed %d", *seed+uint64(round)), func(t *testing.T) {
			w := newWorld(t, product.Controller, *seed+uint64(round))
			w.guarded()
			w.watchChildren()
			w.play([]string{"pods", "deployments", "replicasets", "workloadspreads", "uniteddeployments", "podunavailablebudgets", "sidecarsets"},
				func() { w.split(6, "ab"); w.tryEvict("steady") },
				w.spreadPods,
				func() { w.sidecars(1); w.split(9, "ab") },
				func() { w.remove("counts", "names") },
				func() { w.split(4, "abc"); w.scale("counts", 9) },
				func() { w.remove("waits", "split"); w.tryEvict("steady") },
				func() { w.sidecars(2); w.split(8, "cb"); w.scale("counts", 7) },
				// An even total: the remainder of an odd one goes to the subset that has more, and that depends on what the controller saw.
				func() { w.split(6, "cb"); w.remove("counts") },
			)
			w.calm()
			w.useApprovals()
			w.expectGuarded(2, "b=3 c=3")
			w.expectLayout("after the faults", anywhere)
			w.report(round == *rounds-1, "evicted")
		})
	}
}

// TestTheControllerGoesOnAfterEachWrite kills it right after writes, some of which arrive only then.
func TestTheControllerGoesOnAfterEachWrite(t *testing.T) {
	crashes(t, product.Controller, 30, func(w *world) {
		w.guarded()
		w.watchChildren()
	}, func(w *world) {
		w.split(4, "ab")
		w.apply(spread("Deployment", "counts", "", in("a", "1"), in("b", "")) + workload("Deployment", "counts", 2, "berth-scheduler"))
		w.tryEvict("steady")
		w.await("children", func(ctx context.Context) (string, error) { return w.splitAtRest(ctx, "a=2 b=2") })
		w.split(3, "bc")
		w.sidecars(1)
		w.await("children", func(ctx context.Context) (string, error) { return w.splitAtRest(ctx, "b=2 c=1") })
		w.useApprovals()
		w.expectGuarded(1, "b=2 c=1")
		w.expectLayout("after the kills", map[string]string{"counts": "a=1 b=1"})
	})
}
