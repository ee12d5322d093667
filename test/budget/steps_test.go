package budget

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/test/harness"
)

// Images of the pods. Real nodes have them.
const (
	image     = sandbox.ServerImage
	nextImage = sandbox.NextServerImage
)

const deployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: %d
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: main
        image: ` + image + `
        resources: {requests: {cpu: 10m, memory: 16Mi}}
        resizePolicy:
        - {resourceName: cpu, restartPolicy: NotRequired}
        - {resourceName: memory, restartPolicy: RestartContainer}
`

const pub = `
apiVersion: policy.kruise.io/v1alpha1
kind: PodUnavailableBudget
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  %s
`

// namespace creates a namespace for the test. At the end of the test it deletes the budgets before the namespace.
func namespace(t *testing.T) string {
	t.Helper()
	name, err := the.CreateNamespace(t.Context(), "budget")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.Background()
		if err := berth.client().DeleteAllOf(ctx, &v1beta1.PodUnavailableBudget{}, inNamespace(name)); err != nil {
			t.Error(err)
		}
		if err := the.DeleteNamespace(ctx, name); err != nil {
			t.Error(err)
		}
	})
	return name
}

// web creates a Deployment of this many pods and a budget with the rule. It waits until both are in force.
func web(t *testing.T, replicas int, rule string) (namespace string) {
	t.Helper()
	namespace = newNamespace(t)
	apply(t, namespace, fmt.Sprintf(deployment, replicas)+"---"+fmt.Sprintf(pub, rule))
	inForce(t, namespace, replicas)
	return namespace
}

func newNamespace(t *testing.T) string { t.Helper(); return namespace(t) }

func apply(t *testing.T, namespace, text string) {
	t.Helper()
	if err := the.ApplyYAML(t.Context(), namespace, text); err != nil {
		t.Fatal(err)
	}
}

// inForce waits until the budget web counts this number of available pods and all of them are protected.
func inForce(t *testing.T, namespace string, available int) {
	t.Helper()
	poll(t, harness.Timeout, fmt.Sprintf("%d protected pods", available), func(ctx context.Context) (string, error) {
		b, err := read(ctx, namespace)
		if err != nil {
			return "", err
		}
		if b.Status.ObservedGeneration != b.Generation || int(b.Status.CurrentAvailable) != available || len(b.Status.Ledger) > 0 ||
			!meta.IsStatusConditionTrue(b.Status.Conditions, v1beta1.ConditionEnforcing) {
			return fmt.Sprintf("%+v", b.Status), nil
		}
		return "", nil
	})
}

func read(ctx context.Context, namespace string) (*v1beta1.PodUnavailableBudget, error) {
	b := &v1beta1.PodUnavailableBudget{}
	return b, berth.client().Get(ctx, types.NamespacedName{Namespace: namespace, Name: "web"}, b)
}

func ledger(t *testing.T, namespace string) []v1beta1.LedgerEntry {
	t.Helper()
	b, err := read(t.Context(), namespace)
	if err != nil {
		t.Fatal(err)
	}
	return b.Status.Ledger
}

func waitFor(t *testing.T, what string, condition func(context.Context) (missing string, err error)) {
	t.Helper()
	if err := the.WaitFor(t.Context(), what, condition); err != nil {
		t.Fatal(err)
	}
}

// poll waits with its own timeout, for conditions that take longer than usual.
func poll(t *testing.T, timeout time.Duration, what string, condition func(context.Context) (missing string, err error)) {
	t.Helper()
	var last string
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, timeout, true, func(ctx context.Context) (bool, error) {
		var err error
		last, err = condition(ctx)
		return last == "", err
	})
	if err != nil {
		t.Fatalf("waiting for %s: %v: %s", what, err, last)
	}
}

func pods(t *testing.T, namespace string) []corev1.Pod {
	t.Helper()
	all, err := the.Pods(t.Context(), namespace)
	if err != nil {
		t.Fatal(err)
	}
	var alive []corev1.Pod
	for i := range all {
		if all[i].DeletionTimestamp == nil {
			alive = append(alive, all[i])
		}
	}
	return alive
}

// operation is an operation on a pod.
type operation func(ctx context.Context, pod *corev1.Pod) error

var dryRun = []string{metav1.DryRunAll}

func remove(ctx context.Context, pod *corev1.Pod) error {
	return the.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}})
}

func evict(ctx context.Context, pod *corev1.Pod) error {
	return the.Client.CoreV1().Pods(pod.Namespace).EvictV1(ctx, evictionOf(pod))
}

func evictionOf(pod *corev1.Pod) *policyv1.Eviction {
	return &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}},
	}
}

func patchImage(ctx context.Context, pod *corev1.Pod) error {
	to := image
	if pod.Spec.Containers[0].Image == image {
		to = nextImage
	}
	return patch(ctx, pod, fmt.Sprintf(`{"metadata":{"uid":%q},"spec":{"containers":[{"name":"main","image":%q}]}}`, pod.UID, to))
}

func resize(resource, amount string) operation {
	return func(ctx context.Context, pod *corev1.Pod) error {
		return patch(ctx, pod, fmt.Sprintf(`{"spec":{"containers":[{"name":"main","resources":{"requests":{%q:%q}}}]}}`, resource, amount), "resize")
	}
}

func resizeMemory(ctx context.Context, pod *corev1.Pod) error {
	amount := "16Mi"
	if pod.Spec.Containers[0].Resources.Requests.Memory().String() == amount {
		amount = "24Mi"
	}
	return resize("memory", amount)(ctx, pod)
}

func patch(ctx context.Context, pod *corev1.Pod, body string, subresources ...string) error {
	_, err := the.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{}, subresources...)
	return err
}

func expectAllowed(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

// expectRefused fails unless the error is the refusal on which kubectl drain retries.
func expectRefused(t *testing.T, what string, err error) {
	t.Helper()
	if !isRefused(err) {
		t.Errorf("%s: got %v, want a refusal by the budget", what, err)
	}
}

func isRefused(err error) bool {
	var status *apierrors.StatusError
	if !errors.As(err, &status) || !apierrors.IsTooManyRequests(err) {
		return false
	}
	details := status.ErrStatus.Details
	return details != nil && details.RetryAfterSeconds == 0 && len(details.Causes) == 1 &&
		details.Causes[0].Type == policyv1.DisruptionBudgetCause && strings.Contains(status.ErrStatus.Message, "PodUnavailableBudget web")
}

func inNamespace(name string) client.DeleteAllOfOption { return client.InNamespace(name) }
