package install

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/endpoint"
)

// asking makes the API server call the webhook for a protected pod continuously, in several ways at once. It records failures.
type asking struct {
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu       sync.Mutex
	answered int
	refused  []error
	// first and last are the times of the first and the last failed request.
	first, last time.Time
}

func (c *cluster) startAsking(t *testing.T, pod string) *asking {
	t.Helper()
	a := &asking{}
	ctx, cancel := context.WithCancel(t.Context())
	a.cancel = cancel
	config := c.RESTConfig()
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	dryRun := metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}
	for _, ask := range []func() error{
		func() error { return client.CoreV1().Pods("default").Delete(ctx, pod, dryRun) },
		func() error {
			return client.CoreV1().Pods("default").EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod}, DeleteOptions: &dryRun})
		},
	} {
		for range 2 {
			a.running.Go(func() {
				for tick := time.NewTicker(10 * time.Millisecond); ctx.Err() == nil; <-tick.C {
					err := ask()
					if ctx.Err() != nil {
						return
					}
					a.mu.Lock()
					if err == nil || apierrors.IsTooManyRequests(err) {
						a.answered++
					} else {
						a.refused, a.last = append(a.refused, err), time.Now()
						if len(a.refused) == 1 {
							a.first = a.last
						}
					}
					a.mu.Unlock()
				}
			})
		}
	}
	t.Cleanup(func() { a.cancel(); a.running.Wait() })
	a.expectMore(t)
	return a
}

// expectMore waits until many more requests have answers.
func (a *asking) expectMore(t *testing.T) {
	t.Helper()
	count := func() int { a.mu.Lock(); defer a.mu.Unlock(); return a.answered }
	want := count() + 100
	waitFor(t, "more answers", func(context.Context) (string, error) {
		if got := count(); got < want {
			return fmt.Sprintf("%d of %d", got, want), nil
		}
		return "", nil
	})
}

// stop returns the failed requests, and the time between the first and the last of them.
func (a *asking) stop(t *testing.T) (refused []error, during time.Duration) {
	t.Helper()
	a.expectMore(t)
	a.cancel()
	a.running.Wait()
	t.Logf("%d answered, %d refused, in %s", a.answered, len(a.refused), a.last.Sub(a.first))
	return a.refused, a.last.Sub(a.first)
}

// webhookPaths returns the paths of all webhooks that the API server calls.
func (c *cluster) webhookPaths(t *testing.T) []string {
	t.Helper()
	return c.ofWebhooks(t, "clientConfig.service.path")
}

// ofWebhooks returns the values of a field of all webhooks that have it.
func (c *cluster) ofWebhooks(t *testing.T, field string) []string {
	t.Helper()
	return strings.Fields(c.kubectl(t, "get", "validatingwebhookconfiguration,mutatingwebhookconfiguration", "-o", "jsonpath={.items[*].webhooks[*]."+field+"}"))
}

func ofBudgets(path string) bool {
	handler := endpoint.HandlerOf(path)
	return !slices.Contains([]string{endpoint.Pods, endpoint.RequiredPods, endpoint.Spreads, endpoint.UnitedDeployments, endpoint.FederatedReplicaSets, endpoint.SpreadRules, endpoint.ClusterSpreadRules, endpoint.Sidecars, endpoint.SidecarSets}, handler)
}

// expectNewPaths waits until each webhook has a secret path, and those of budgets have a new one.
func (c *cluster) expectNewPaths(t *testing.T, before []string) (paths []string) {
	t.Helper()
	all := len(c.ofWebhooks(t, "name"))
	waitFor(t, "new paths", func(context.Context) (string, error) {
		paths = c.webhookPaths(t)
		for _, path := range paths {
			if slices.Contains(before, path) && ofBudgets(path) || strings.Count(path, "/") != 2 {
				return fmt.Sprint(paths), nil
			}
		}
		if len(paths) != all {
			return fmt.Sprint(paths), nil
		}
		return "", nil
	})
	return paths
}

// replacePaths gives the webhooks of budgets other paths, as install.md says for a path that has leaked.
func (c *cluster) replacePaths(t *testing.T) {
	t.Helper()
	validating, mutating := c.client.AdmissionregistrationV1().ValidatingWebhookConfigurations(), c.client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	first, err := validating.Get(t.Context(), "berth-budget", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	second, err := mutating.Get(t.Context(), "berth-budget", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	segment := strings.ReplaceAll(string(uuid.NewUUID()), "-", "")
	for _, configuration := range []runtime.Object{first, second} {
		for _, webhook := range endpoint.WebhooksOf(configuration) {
			webhook.Client.Service.Path = ptr.To("/" + segment + webhook.Handler)
		}
	}
	if _, err := validating.Update(t.Context(), first, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := mutating.Update(t.Context(), second, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// forge sends a review to every replica as the API server would. It returns the status code of each answer.
func forge(t *testing.T, k *kubelet, path string, pod *corev1.Pod, dryRun bool) (answers []int) {
	t.Helper()
	review := fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"forged","operation":"DELETE","dryRun":%t,
		"kind":{"version":"v1","kind":"Pod"},"resource":{"version":"v1","resource":"pods"},"namespace":%q,"name":%q,"userInfo":{"username":"somebody"},
		"oldObject":{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":%q,"name":%q,"uid":%q,"labels":{"app":"api","policy.berth.dev/protected":"true"}}}}}`,
		dryRun, pod.Namespace, pod.Name, pod.Namespace, pod.Name, pod.UID)
	for _, p := range k.of("controller") {
		if !p.running() {
			continue
		}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+net.JoinHostPort(p.address, "9443")+path, strings.NewReader(review))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/json")
		response, err := anyCertificate.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		answers = append(answers, response.StatusCode)
	}
	return answers
}

func (c *cluster) expectAnswers(t *testing.T, k *kubelet, path string, pod *corev1.Pod, dryRun bool, want int) {
	t.Helper()
	if got := forge(t, k, path, pod, dryRun); !slices.Equal(got, []int{want, want}) {
		t.Errorf("a forged review at %s is answered %v, want %d by both replicas", path, got, want)
	}
	if ledger := c.kubectl(t, "get", "podunavailablebudget/api", "-o", "jsonpath={.status.ledger}"); ledger != "" {
		t.Errorf("a review at %s was written into the ledger: %s", path, ledger)
	}
}

// TestOnlyTheAPIServerIsAnswered without client certificates, even if the webhook configurations change meanwhile.
func TestOnlyTheAPIServerIsAnswered(t *testing.T) {
	t.Parallel()
	c, k, dir := installWithKustomize(t)
	c.kubectl(t, "apply", "-f", example)
	c.kubectl(t, "rollout", "status", "deployment/api", "--timeout=60s")
	c.apply(t, "default", budget)
	c.kubectl(t, "wait", "--for=condition=Enforcing", "--timeout=60s", "podunavailablebudget/api")
	pod, err := c.client.CoreV1().Pods("default").Get(t.Context(), c.examplePods(t)[0], metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}

	paths := c.expectNewPaths(t, nil)
	secret := func() string {
		for _, path := range c.webhookPaths(t) {
			if endpoint.HandlerOf(path) == endpoint.BudgetPods {
				return path
			}
		}
		t.Fatal("no webhook is asked about protected pods")
		return ""
	}
	c.expectAnswers(t, k, endpoint.BudgetPods, pod, false, http.StatusNotFound)
	c.expectAnswers(t, k, "/"+strings.Repeat("0", 32)+"-0-0"+endpoint.BudgetPods, pod, false, http.StatusNotFound)
	c.expectAnswers(t, k, secret(), pod, true, http.StatusOK)

	t.Run("the API server asks while paths are replaced", func(t *testing.T) {
		asking := c.startAsking(t, pod.Name)
		for range 5 {
			c.replacePaths(t)
			paths = c.expectNewPaths(t, paths)
			asking.expectMore(t)
		}
		if refused, _ := asking.stop(t); len(refused) > 0 {
			t.Errorf("%d were refused, the first with %v", len(refused), refused[0])
		}
		c.expectAnswers(t, k, secret(), pod, true, http.StatusOK)
	})
	t.Run("the API server asks while the authority is replaced", func(t *testing.T) {
		asking, before := c.startAsking(t, pod.Name), c.ofWebhooks(t, "clientConfig.caBundle")
		c.kubectl(t, "-n", berthSystem, "patch", "secret", "berth-webhook-cert", "--type=json", "-p", `[{"op": "remove", "path": "/data"}]`)
		waitFor(t, "a new authority", func(context.Context) (string, error) {
			if now := c.ofWebhooks(t, "clientConfig.caBundle"); len(now) != len(before) || slices.ContainsFunc(now, func(one string) bool { return slices.Contains(before, one) }) {
				return "the webhook configurations have the former one", nil
			}
			return "", nil
		})
		if refused, _ := asking.stop(t); len(refused) > 0 {
			t.Errorf("%d were refused, the first with %v", len(refused), refused[0])
		}
		if now := c.webhookPaths(t); !slices.Equal(now, paths) {
			t.Errorf("it changed the paths %v to %v", paths, now)
		}
		c.expectAnswers(t, k, secret(), pod, true, http.StatusOK)
		c.expectAnswers(t, k, endpoint.BudgetPods, pod, false, http.StatusNotFound)
	})
	t.Run("a replica that starts later", func(t *testing.T) {
		before := k.of("controller")[0]
		c.kubectl(t, "-n", berthSystem, "delete", "pod", before.pod.Name)
		expectRunning(t, k, "controller")
		asking := c.startAsking(t, pod.Name)
		if refused, _ := asking.stop(t); len(refused) > 0 {
			t.Errorf("%d were refused, the first with %v", len(refused), refused[0])
		}
		if now := c.webhookPaths(t); !slices.Equal(now, paths) {
			t.Errorf("it changed the paths %v to %v", paths, now)
		}
		c.expectAnswers(t, k, secret(), pod, true, http.StatusOK)
	})
	t.Run("the manifests are applied again", func(t *testing.T) {
		asking := c.startAsking(t, pod.Name)
		c.in(dir).documented(t, "kubectl apply -k .")
		c.in(dir).documented(t, "kubectl apply -k .", "--server-side", "--force-conflicts")
		if refused, _ := asking.stop(t); len(refused) > 0 {
			t.Errorf("%d were refused, the first with %v", len(refused), refused[0])
		}
		if now := c.webhookPaths(t); !slices.Equal(now, paths) {
			t.Errorf("it changed the paths %v to %v", paths, now)
		}
	})
	expectNothingForbidden(t, c.AuditLog())
}
