package integration

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-project/berth/cmd/sandbox/product"
	policyv1beta1 "github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/test/harness"
)

// expectEnforced waits until the budget protects this number of available pods.
func expectEnforced(t *testing.T, ns, name string, available int32) {
	t.Helper()
	waitFor(t, fmt.Sprintf("%d protected pods", available), func(ctx context.Context) (string, error) {
		object, err := the.Dynamic.Resource(policyv1beta1.Resource).Namespace(ns).Get(ctx, name, getOptions)
		if err != nil {
			return "", err
		}
		pub := &policyv1beta1.PodUnavailableBudget{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, pub); err != nil {
			return "", err
		}
		if pub.Status.CurrentAvailable != available || !meta.IsStatusConditionTrue(pub.Status.Conditions, policyv1beta1.ConditionEnforcing) {
			return fmt.Sprintf("%+v", pub.Status), nil
		}
		return "", nil
	})
}

var budgetRequests = regexp.MustCompile(`(?m)^controller_runtime_webhook_requests_total\{code="200",webhook="/validate-budget-pods"\} (\S+)$`)

// budgetRequestsOf returns the metric of how often the API server has called the controller for decisions about pods.
func budgetRequestsOf(t *testing.T) string {
	t.Helper()
	for _, status := range the.Sandbox.Status() {
		if status.Name != product.Controller {
			continue
		}
		response, err := http.Get("http://" + status.Address + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		if match := budgetRequests.FindSubmatch(text); match != nil {
			return string(match[1])
		}
		return "0"
	}
	t.Fatal("there is no controller")
	return ""
}

// TestTheControllerServesBudgets tests the binaries as they are deployed. The tests of each case are in test/budget. Those can intervene between the
// webhook and the API server.
func TestTheControllerServesBudgets(t *testing.T) {
	pools(t, "a", "b")
	ns, other := namespace(t), namespace(t)
	t.Cleanup(func() {
		if err := the.Dynamic.Resource(policyv1beta1.Resource).Namespace(ns).DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			t.Error(err)
		}
	})
	const budget = `{apiVersion: policy.kruise.io/v1alpha1, kind: PodUnavailableBudget, metadata: {name: web}, spec: {selector: {matchLabels: {app: web}}, %s}}`
	apply(t, ns, plain("web", 6))
	apply(t, ns, fmt.Sprintf(budget, "maxUnavailable: 0"))
	apply(t, other, plain("web", 3))
	expectEnforced(t, ns, "web", 6)
	running := func(ns string, n int) (all []corev1.Pod) {
		waitFor(t, "pods", func(ctx context.Context) (string, error) {
			pods, err := the.Pods(ctx, ns)
			all = nil
			for _, pod := range pods {
				if pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodRunning {
					all = append(all, pod)
				}
			}
			return map[bool]string{false: fmt.Sprintf("%d of %d", len(all), n)}[len(all) == n], err
		})
		return all
	}
	remove := func(pod *corev1.Pod) error {
		return the.Client.CoreV1().Pods(pod.Namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{})
	}
	evict := func(pod *corev1.Pod) error {
		return the.Client.CoreV1().Pods(pod.Namespace).EvictV1(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod.Name}})
	}

	unprotected := running(other, 3)
	before := budgetRequestsOf(t)
	for what, err := range map[string]error{"deletion": remove(&unprotected[0]), "eviction": evict(&unprotected[1])} {
		if err != nil {
			t.Errorf("%s of a pod without a budget: %v", what, err)
		}
	}
	if after := budgetRequestsOf(t); after != before {
		t.Errorf("the webhook was asked about pods without a budget: %s requests before, %s after", before, after)
	}
	protected := running(ns, 6)
	for what, err := range map[string]error{"deletion": remove(&protected[0]), "eviction": evict(&protected[0])} {
		if !apierrors.IsTooManyRequests(err) {
			t.Errorf("%s of a pod without room: got %v, want a refusal", what, err)
		}
	}
	if after := budgetRequestsOf(t); after == before {
		t.Error("the webhook was not asked about pods of a budget")
	}

	apply(t, ns, fmt.Sprintf(budget, "maxUnavailable: 1"))
	kubectl := func(args ...string) {
		args = append([]string{"--kubeconfig", the.Sandbox.Kubeconfig()}, args...)
		if output, err := exec.CommandContext(t.Context(), filepath.Join(harness.BinDir(), "kubectl"), args...).CombinedOutput(); err != nil {
			t.Errorf("kubectl %v: %v: %s", args, err, output)
		}
	}
	kubectl("drain", nodeIn(t, "a"), "--ignore-daemonsets", "--delete-emptydir-data", "--pod-selector=app=web", "--timeout=80s")
	for _, pod := range running(ns, 6) {
		if pod.Spec.NodeName == nodeIn(t, "a") {
			t.Errorf("pod %s is still on the node", pod.Name)
		}
	}
	expectEnforced(t, ns, "web", 6)

	resume, err := the.Sandbox.Halt(product.Controller, 0)
	if err != nil {
		t.Fatal(err)
	}
	back := func(ctx context.Context) error {
		resume()
		ctx, cancel := context.WithTimeout(ctx, harness.Timeout)
		defer cancel()
		return the.Sandbox.WaitReady(ctx)
	}
	t.Cleanup(func() {
		if err := back(context.Background()); err != nil {
			t.Error(err)
		}
	})
	protected, unprotected = running(ns, 6), running(other, 3)
	if err := remove(&protected[0]); err == nil || apierrors.IsTooManyRequests(err) {
		t.Errorf("deletion of a protected pod without the webhook: got %v, want a failure", err)
	}
	if err := evict(&protected[0]); !apierrors.IsForbidden(err) {
		t.Errorf("eviction of a protected pod without the webhook: got %v, want it to be forbidden", err)
	}
	for what, err := range map[string]error{"deletion": remove(&unprotected[0]), "eviction": evict(&unprotected[1])} {
		if err != nil {
			t.Errorf("%s of a pod without a budget, without the webhook: %v", what, err)
		}
	}
	if err := back(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := evict(&protected[0]); err != nil {
		t.Errorf("eviction of a protected pod after the webhook is back: %v", err)
	}
}
