package neighbours

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-project/berth/cmd/sandbox/federated"
	"github.com/berth-project/berth/internal/sandbox"
	federationv1alpha1 "github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	unitedv1beta1 "github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/test/checker"
	"github.com/berth-project/berth/test/harness"
)

var (
	deployments = appsv1.SchemeGroupVersion.WithResource("deployments")
	federations = federationv1alpha1.GroupVersion.WithResource("federatedreplicasets")
	podMetrics  = schema.GroupVersion{Group: "external.metrics.k8s.io", Version: "v1beta1"}
)

// autoscaled returns the config with the autoscaler of kube-controller-manager, which looks at its metrics every second and not every 15, and may scale to zero. It has nearly no tolerance: by
// default it takes the replicas of the moment, while they move, for the goal if they are within a tenth of it.
func autoscaled(config sandbox.Config) sandbox.Config {
	zero := "--feature-gates=HPAScaleToZero=true"
	config.APIServerFlags = append(config.APIServerFlags, zero)
	config.ControllerManagerFlags = append(config.ControllerManagerFlags, zero, "--horizontal-pod-autoscaler-sync-period=1s", "--horizontal-pod-autoscaler-tolerance=0.001")
	return config
}

// queue has one metric in each namespace, whatever its name.
type queue struct {
	url string

	mu     sync.Mutex
	values map[string]int
}

// newQueue serves the metrics until the test program ends, at the path of each namespace.
func newQueue(ctx context.Context, serve func(http.Handler) *httptest.Server) *queue {
	q := &queue{values: map[string]int{}}
	server := serve(q)
	q.url = server.URL
	context.AfterFunc(ctx, server.Close)
	return q
}

// serveQueue makes the queue an API of external metrics behind the API server's aggregator.
func serveQueue(ctx context.Context, cluster *harness.Cluster) (*queue, error) {
	q := newQueue(ctx, httptest.NewTLSServer)
	return q, cluster.ApplyYAML(ctx, metav1.NamespaceSystem, fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: queue, namespace: kube-system}
spec: {type: ExternalName, externalName: localhost}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: %s.%s}
spec:
  group: %[2]s
  version: %[1]s
  groupPriorityMinimum: 100
  versionPriority: 100
  insecureSkipTLSVerify: true
  service: {name: queue, namespace: kube-system, port: %[3]s}
`, podMetrics.Version, podMetrics.Group, q.url[strings.LastIndex(q.url, ":")+1:]))
}

func (q *queue) of(namespace string) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.values[namespace]
}

func (q *queue) set(namespace string, n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.values[namespace] = n
}

// ServeHTTP answers GET /NAMESPACE, GET /apis/GROUP/VERSION and GET /apis/GROUP/VERSION/namespaces/NAMESPACE/METRIC.
func (q *queue) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var answer any
	switch at := strings.Split(strings.Trim(r.URL.Path, "/"), "/"); {
	case len(at) == 1:
		answer = map[string]any{"value": q.of(at[0])}
	case len(at) == 3:
		answer = metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: podMetrics.String(),
			APIResources: []metav1.APIResource{{Name: "queue", Namespaced: true, Kind: "ExternalMetricValueList", Verbs: []string{"get"}}}}
	case len(at) == 6:
		answer = map[string]any{"kind": "ExternalMetricValueList", "apiVersion": podMetrics.String(), "metadata": map[string]any{},
			"items": []any{map[string]any{"metricName": at[5], "metricLabels": map[string]any{}, "timestamp": metav1.Now(), "value": fmt.Sprint(q.of(at[4]))}}}
	default:
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // the client may be gone
}

// autoscaler has one replica of web for each entry of the queue, and goes from any number to any other at once.
func autoscaler(apiVersion, kind string) string {
	return fmt.Sprintf(`---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web}
spec:
  scaleTargetRef: {apiVersion: %s, kind: %s, name: web}
  minReplicas: 0
  maxReplicas: 24
  metrics: [{type: External, external: {metric: {name: queue}, target: {type: AverageValue, averageValue: "1"}}}]
  behavior:
    scaleUp: {stabilizationWindowSeconds: 0, policies: [{type: Pods, value: 24, periodSeconds: 1}]}
    scaleDown: {stabilizationWindowSeconds: 0, policies: [{type: Percent, value: 100, periodSeconds: 1}]}
`, apiVersion, kind)
}

// expectReplicas waits until the autoscaler has given the workload web so many replicas.
func expectReplicas(t *testing.T, cluster *harness.Cluster, of schema.GroupVersionResource, ns string, want int) {
	t.Helper()
	if err := cluster.WaitFor(t.Context(), fmt.Sprintf("%d replicas of %s web", want, of.Resource), func(ctx context.Context) (string, error) {
		object, err := cluster.Dynamic.Resource(of).Namespace(ns).Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if is, _, _ := unstructured.NestedInt64(object.Object, "spec", "replicas"); is != int64(want) {
			scaler, err := cluster.Client.AutoscalingV2().HorizontalPodAutoscalers(ns).Get(ctx, "web", metav1.GetOptions{})
			return fmt.Sprintf("%d; the autoscaler says %+v", is, scaler.Status.Conditions), err
		}
		return "", nil
	}); err != nil {
		t.Fatal(err)
	}
}

// flap lets the queue jump, and returns when the replicas have followed each time, whether the pods have or not.
func (q *queue) flap(t *testing.T, cluster *harness.Cluster, of schema.GroupVersionResource, ns string, between ...int) {
	t.Helper()
	for range 4 {
		for _, n := range between {
			q.set(ns, n)
			expectReplicas(t, cluster, of, ns, n)
		}
	}
}

// evict evicts pods web of a namespace at random, as fast as their budget allows, until end is called, which waits for at least so many.
func evict(t *testing.T, ns string) (end func(atLeast int32)) {
	ctx, cancel := context.WithCancel(t.Context())
	var evicting sync.WaitGroup
	var evicted atomic.Int32
	evicting.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
			all, err := the.Pods(ctx, ns)
			all = slices.DeleteFunc(all, func(pod corev1.Pod) bool { return !isAvailable(&pod) })
			if err != nil || len(all) == 0 {
				continue // the test's own look at the cluster says what is wrong with it
			}
			pod := all[rand.IntN(len(all))]
			err = the.Client.PolicyV1().Evictions(ns).Evict(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: ns}})
			switch {
			case err == nil:
				evicted.Add(1)
			// On a busy machine the webhook may not answer in time. Then a policy refuses.
			case ctx.Err() == nil && !apierrors.IsTooManyRequests(err) && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err):
				t.Errorf("evicting %s: %v", pod.Name, err)
			}
		}
	})
	return func(atLeast int32) {
		t.Helper()
		err := the.WaitFor(t.Context(), fmt.Sprintf("%d evictions", atLeast), func(context.Context) (string, error) {
			if n := evicted.Load(); n < atLeast {
				return fmt.Sprint(n), nil
			}
			return "", nil
		})
		cancel()
		evicting.Wait()
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestAnAutoscalerMovesADeployment: subsets keep their percentages and minimums while the replicas move, and a budget holds meanwhile.
func TestAnAutoscalerMovesADeployment(t *testing.T) {
	ns := namespace(t)
	quotas, err := checker.StartIn(t.Context(), the.Dynamic, ns)
	if err != nil {
		t.Fatal(err)
	}
	p := promise(t, the, ns, nil, ofWorkload)
	apply(t, ns, fmt.Sprintf(`
apiVersion: apps.kruise.io/v1alpha1
kind: WorkloadSpread
metadata: {name: web}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  subsets:
  - {name: a, maxReplicas: 50%%, requiredNodeSelectorTerm: %s}
  - {name: b, maxReplicas: 25%%, requiredNodeSelectorTerm: %s}
  - {name: c, minReplicas: 1, maxReplicas: 25%%, requiredNodeSelectorTerm: %s}
---
apiVersion: policy.kruise.io/v1alpha1
kind: PodUnavailableBudget
metadata: {name: web}
spec: {targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, maxUnavailable: 25%%}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec: {selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {terminationGracePeriodSeconds: 0, containers: [{name: main, image: %s}]}}}
`, inPool("a"), inPool("b"), inPool("c"), oldImage)+autoscaler("apps/v1", "Deployment"))
	for _, step := range []struct {
		queue  int
		layout string
	}{{4, "a=2 b=1 c=1"}, {20, "a=10 b=5 c=5"}, {8, "a=4 b=2 c=2"}, {1, "a=0 b=0 c=1"}, {0, "a=0 b=0 c=0"}, {12, "a=6 b=3 c=3"}, {20, "a=10 b=5 c=5"}} {
		metrics.set(ns, step.queue)
		expect(t, ns, step.layout, 0)
	}
	p.atLeast(3) // of the 4 that the autoscaler leaves
	end := evict(t, ns)
	metrics.flap(t, the, deployments, ns, 4, 20, 12)
	end(5)
	// What goes by an eviction in a scale-down comes back nowhere, whatever its subset. So the shares are those of 12 again only after the next pods.
	for _, step := range []struct {
		queue  int
		layout string
	}{{20, "a=10 b=5 c=5"}, {12, "a=6 b=3 c=3"}} {
		metrics.set(ns, step.queue)
		expect(t, ns, step.layout, 0)
	}
	for _, violation := range quotas.Violations() {
		t.Error(violation)
	}
	if quotas.Judged() < 30 {
		t.Errorf("only %d binds were judged", quotas.Judged())
	}
}

// TestAnAutoscalerMovesAUnitedDeployment: as with a Deployment.
func TestAnAutoscalerMovesAUnitedDeployment(t *testing.T) {
	ns := namespace(t)
	children, err := checker.WatchChildren(the.Dynamic, ns)
	if err != nil {
		t.Fatal(err)
	}
	p := promise(t, the, ns, nil, ofWorkload)
	apply(t, ns, fmt.Sprintf(`
apiVersion: apps.kruise.io/v1beta1
kind: UnitedDeployment
metadata: {name: web}
spec:
  replicas: 4
  selector: {matchLabels: {app: web}}
  template: {deploymentTemplate: {metadata: {labels: {app: web}}, spec: {template: {metadata: {labels: {app: web}}, spec: {terminationGracePeriodSeconds: 0, containers: [{name: main, image: %s}]}}}}}
  topology:
    subsets:
    - {name: a, maxReplicas: 5, nodeSelectorTerm: %s}
    - {name: b, minReplicas: 1, maxReplicas: 4, nodeSelectorTerm: %s}
    - {name: c, nodeSelectorTerm: %s}
`, oldImage, inPool("a"), inPool("b"), inPool("c"))+budgetOf(1)+autoscaler("apps.kruise.io/v1beta1", "UnitedDeployment"))
	for _, step := range []struct {
		queue  int
		layout string
	}{{4, "a=3 b=1 c=0"}, {20, "a=5 b=4 c=11"}, {7, "a=5 b=2 c=0"}, {0, "a=0 b=0 c=0"}, {20, "a=5 b=4 c=11"}} {
		metrics.set(ns, step.queue)
		expect(t, ns, step.layout, 0)
	}
	p.atLeast(3)
	end := evict(t, ns)
	metrics.flap(t, the, unitedv1beta1.Resource, ns, 4, 20, 10)
	end(5)
	expect(t, ns, "a=5 b=4 c=1", 0)
	violations, checked := children.Violations()
	for _, violation := range violations {
		t.Error(violation)
	}
	if checked == 0 {
		t.Error("no child was checked")
	}
}

// TestAnAutoscalerMovesAFederatedReplicaSet: the autoscaler of the hub moves what runs in two members. These never run more than the most replicas, and what may move.
func TestAnAutoscalerMovesAFederatedReplicaSet(t *testing.T) {
	t.Parallel()
	f, err := federated.Start(t.Context(), harness.Audited(sandbox.Config{Name: "neighbours-hub", Dir: filepath.Join(t.TempDir(), "hub"), BinDir: harness.BinDir()}), 2,
		func(name string, cluster sandbox.Config) sandbox.Config {
			if name != federated.Hub {
				cluster.Nodes = 2
				return cluster
			}
			cluster.Without = slices.DeleteFunc(cluster.Without, func(component string) bool { return component == sandbox.ControllerManager })
			cluster.Controllers = []string{"horizontal-pod-autoscaler-controller"}
			return autoscaled(cluster)
		})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Stop)
	hub, err := harness.Of(f.Hub())
	if err != nil {
		t.Fatal(err)
	}
	var members []*harness.Cluster
	for _, member := range f.Members() {
		m, err := harness.Of(member.Sandbox)
		if err != nil {
			t.Fatal(err)
		}
		allowed := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{federationv1alpha1.AllowedLabel: "true"}}}
		if _, err := m.Client.CoreV1().Namespaces().Create(t.Context(), allowed, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		members = append(members, m)
	}
	q, err := serveQueue(t.Context(), hub)
	if err != nil {
		t.Fatal(err)
	}
	if err := hub.ApplyYAML(t.Context(), "shop", `
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: federation.berth.dev/v1alpha1
kind: FederatedReplicaSet
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  preferences: {clusters: {member-1: {minReplicas: 1, maxReplicas: 6, weight: 2}, member-2: {weight: 1}}}
  template: {metadata: {labels: {app: web}}, spec: {terminationGracePeriodSeconds: 0, containers: [{name: main, image: "`+oldImage+`"}]}}
`+autoscaler(federationv1alpha1.GroupVersion.String(), "FederatedReplicaSet")); err != nil {
		t.Fatal(err)
	}
	// layout is how many pods are available in each member.
	layout := func(want string) {
		t.Helper()
		if err := hub.WaitFor(t.Context(), want, func(ctx context.Context) (string, error) {
			var counts []string
			for _, m := range members {
				all, err := m.Pods(ctx, "shop")
				if err != nil {
					return "", err
				}
				counts = append(counts, fmt.Sprint(len(all)-len(slices.DeleteFunc(slices.Clone(all), func(pod corev1.Pod) bool { return isAvailable(&pod) }))))
			}
			if is := strings.Join(counts, " "); is != want {
				return is, nil
			}
			return "", nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		queue  int
		layout string
	}{{6, "4 2"}, {20, "6 14"}, {2, "1 1"}, {0, "0 0"}, {9, "6 3"}} {
		q.set("shop", step.queue)
		layout(step.layout)
	}
	q.flap(t, hub, federations, "shop", 3, 20)
	q.set("shop", 0)
	layout("0 0")
	q.set("shop", 12)
	layout("6 6")
}
