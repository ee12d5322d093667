package budget

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/guard"
	"github.com/berth-project/berth/test/harness"
)

// disruptionBudget creates a PodDisruptionBudget that allows no disruption of web.
func disruptionBudget(t *testing.T, namespace string, expected int32) {
	t.Helper()
	apply(t, namespace, "{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: pdb}, spec: {maxUnavailable: 0, selector: {matchLabels: {app: web}}}}")
	waitFor(t, "the PodDisruptionBudget", func(ctx context.Context) (string, error) {
		pdb, err := the.Client.PolicyV1().PodDisruptionBudgets(namespace).Get(ctx, "pdb", metav1.GetOptions{})
		return map[bool]string{false: "it has not been looked at"}[err == nil && pdb.Status.ExpectedPods == expected], err
	})
}

// TestARolloutGoesOnBesideADrainThatTriesAgain has a PodDisruptionBudget that refuses every eviction of a drain. This drain retries much more often
// than real drains do.
func TestARolloutGoesOnBesideADrainThatTriesAgain(t *testing.T) {
	harness.Long(t)
	namespace := web(t, 4, "maxUnavailable: 1")
	watch(t, namespace, 3)
	disruptionBudget(t, namespace, 4)
	ctx, stop := context.WithCancel(t.Context())
	var drain sync.WaitGroup
	var attempts atomic.Int64
	drain.Go(func() {
		for ctx.Err() == nil {
			all, err := the.Pods(ctx, namespace)
			if err != nil {
				return
			}
			for i := range all {
				if !isAvailable(&all[i]) {
					continue
				}
				// The rollout may have begun to delete the pod. Then no PodDisruptionBudget refuses its eviction.
				if err := evict(ctx, &all[i]); err != nil && ctx.Err() == nil && !apierrors.IsTooManyRequests(err) && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
					t.Errorf("evicting a pod: %v, want a refusal on which a drain tries again", err)
				}
				attempts.Add(1)
			}
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
	})
	waitFor(t, "some attempts", func(context.Context) (string, error) {
		return map[bool]string{false: "none"}[attempts.Load() > 3], nil
	})
	waitFor(t, "events that tell of refusals", func(ctx context.Context) (string, error) {
		events, err := the.Client.EventsV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=" + string(v1beta1.ReasonPodDisruptionBudget)})
		return map[bool]string{false: "none"}[err == nil && len(events.Items) > 0], err
	})
	if entries := ledger(t, namespace); len(entries) > 0 {
		t.Errorf("%+v were allowed, but the PodDisruptionBudget refuses them", entries)
	}
	body := `{"spec":{"strategy":{"rollingUpdate":{"maxSurge":0,"maxUnavailable":1}},"template":{"spec":{"containers":[{"name":"main","image":"` + nextImage + `"}]}}}}`
	if _, err := the.Client.AppsV1().Deployments(namespace).Patch(t.Context(), "web", "application/strategic-merge-patch+json", []byte(body), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the rollout", func(context.Context) (string, error) {
		all := pods(t, namespace)
		for i := range all {
			if all[i].Spec.Containers[0].Image != nextImage || !isAvailable(&all[i]) {
				return all[i].Name, nil
			}
		}
		return map[bool]string{false: "not 4 pods"}[len(all) == 4], nil
	})
	stop()
	drain.Wait()
	t.Logf("%d evictions were tried", attempts.Load())
}

// TestErrorsThatPassDoNotEndADrain puts a proxy between the webhook and the API server. The proxy disturbs all reads and writes of the webhook.
func TestErrorsThatPassDoNotEndADrain(t *testing.T) {
	harness.Long(t)
	namespace := web(t, 4, "maxUnavailable: 1")
	watch(t, namespace, 3)
	spoils := func(r *http.Request) bool { return r.URL.Query().Get("watch") == "" }
	proxy, err := harness.StartProxy(t.Context(), 1, spoils, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := proxy.PassTo(berth.config.Host, berth.config.CAData, berth.config.BearerToken); err != nil {
		t.Fatal(err)
	}
	config := rest.CopyConfig(berth.config)
	config.Host, config.TLSClientConfig, config.BearerToken = proxy.URL, rest.TLSClientConfig{}, ""
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	spoilt, _, err := berth.newGuard(ctx, config, guard.Options{})
	if err != nil {
		t.Fatal(err)
	}
	berth.set(func(i *installation) { i.instead = spoilt })
	defer berth.set(func(i *installation) { i.instead = nil })

	// These are the errors that a drain sees when its client library stops retrying.
	attempts := map[string]func(*corev1.Pod) *rest.Request{
		"eviction": func(pod *corev1.Pod) *rest.Request {
			return the.Client.CoreV1().RESTClient().Post().MaxRetries(0).Namespace(namespace).Resource("pods").Name(pod.Name).SubResource("eviction").Body(evictionOf(pod))
		},
		"deletion": func(pod *corev1.Pod) *rest.Request {
			return the.Client.CoreV1().RESTClient().Delete().MaxRetries(0).Namespace(namespace).Resource("pods").Name(pod.Name)
		},
	}
	for fault, kinds := range map[harness.Fault][]string{
		harness.ConflictInstead: {"eviction", "deletion"}, harness.UnavailableInstead: {"eviction", "deletion"}, harness.ExpiredInstead: {"eviction", "deletion"},
		harness.LeaderChangedInstead: {"eviction", "deletion"}, harness.TimeoutAfter: {"eviction", "deletion"}, harness.ForbiddenInstead: {"eviction", "deletion"},
		harness.TooManyInstead: {"deletion"}, harness.Late: {"eviction"}, // these take as long as the webhook may take
	} {
		for _, kind := range kinds {
			t.Run(kind+": "+string(fault), func(t *testing.T) {
				proxy.Spoil(100, fault)
				defer proxy.Spoil(0)
				err := attempts[kind](&pods(t, namespace)[0]).Do(t.Context()).Error()
				if fault == harness.ForbiddenInstead {
					if !apierrors.IsInternalError(err) {
						t.Errorf("got %v, want an error that ends a drain, since it needs a person", err)
					}
				} else if !apierrors.IsTooManyRequests(err) {
					t.Errorf("got %v, want 429", err)
				}
				if proxy.Spoilt()[fault] == 0 {
					t.Error("nothing met the fault")
				}
			})
		}
	}
	// A third of all requests fails. The drain must complete without help.
	proxy.Spoil(30, harness.ConflictInstead, harness.ConnectionRefused, harness.ResponseLost, harness.UnavailableInstead, harness.LeaderChangedInstead, harness.TimeoutAfter)
	defer proxy.Spoil(0)
	left := map[string]bool{}
	for _, p := range pods(t, namespace) {
		left[p.Name] = true
	}
	poll(t, 3*harness.Timeout, "all pods to be evicted", func(ctx context.Context) (string, error) {
		for _, p := range pods(t, namespace) {
			if !left[p.Name] {
				continue
			}
			err := evict(ctx, &p)
			if err != nil && !apierrors.IsTooManyRequests(err) && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				return "", err
			}
		}
		n := 0
		for _, p := range pods(t, namespace) {
			if left[p.Name] {
				n++
			}
		}
		return map[bool]string{false: fmt.Sprintf("%d are left", n)}[n == 0], nil
	})
	t.Logf("%v", proxy.Spoilt())
}
