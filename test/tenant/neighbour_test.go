package tenant

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/test/checker"
	"github.com/berth-project/berth/test/harness"
)

const (
	creation = "creation"
	deletion = "deletion"
	eviction = "eviction"

	// replicas are those of the Deployment. pool is how many pods the tenant keeps besides, and floor is how many of both its budget keeps.
	replicas, pool, floor = 6, 30, 12
	// every is the time between two operations. One of four is a deletion, one an eviction, and two create the pods for these.
	every = 125 * time.Millisecond
	// patience is how long an operation may take.
	patience = 30 * time.Second
)

// latencies are how long operations took until they had succeeded, by operation.
type latencies map[string][]time.Duration

// neighbour is the other tenant. Its namespace has a Deployment with a spread, and a budget. The budget also covers pods that the neighbour creates, deletes and evicts itself
// at a steady rate. These have a controller, so that the API server calls the webhook about their creation. It is a ConfigMap, and no controller of Kubernetes replaces them.
type neighbour struct {
	cluster   *harness.Cluster
	client    kubernetes.Interface
	namespace string
	owner     types.UID
	created   int

	mu sync.Mutex
	// protected are the neighbour's own pods that are ready and have the protection label, until it deletes or evicts them.
	protected map[types.UID]string
	taken     map[types.UID]bool
}

const objects = `
{apiVersion: apps.kruise.io/v1beta1, kind: WorkloadSpread, metadata: {name: web}, spec: {targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, subsets: [
  {name: a, maxReplicas: 3, requiredNodeSelector: {matchExpressions: [{key: topology.kubernetes.io/zone, operator: In, values: [zone-a]}]}}, {name: rest}]}}
---
{apiVersion: policy.kruise.io/v1beta1, kind: PodUnavailableBudget, metadata: {name: web}, spec: {selector: {matchLabels: {app: web}}, minAvailable: %d}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {replicas: %d, selector: {matchLabels: {app: web, of: deployment}}, template: {metadata: {labels: {app: web, of: deployment}},
  spec: {terminationGracePeriodSeconds: 0, containers: [{name: main, image: "registry.example.com/main:0"}]}}}}
`

func newNeighbour(t *testing.T, cluster *harness.Cluster) *neighbour {
	t.Helper()
	n := &neighbour{cluster: cluster, protected: map[types.UID]string{}, taken: map[types.UID]bool{}}
	var err error
	if n.namespace, err = cluster.CreateNamespace(t.Context(), "neighbour"); err != nil {
		t.Fatal(err)
	}
	if n.client, err = kubernetes.NewForConfig(as(t, cluster, "neighbour", n.namespace)); err != nil {
		t.Fatal(err)
	}
	if err := cluster.ApplyYAML(t.Context(), n.namespace, fmt.Sprintf(objects, floor, replicas)); err != nil {
		t.Fatal(err)
	}
	owner, err := cluster.Client.CoreV1().ConfigMaps(n.namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n.owner = owner.UID
	n.follow(t)
	for range pool {
		if err := n.create(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	n.rest(t)
	return n
}

// follow keeps n.protected up to date until the test ends.
func (n *neighbour) follow(t *testing.T) {
	t.Helper()
	factory := informers.NewSharedInformerFactoryWithOptions(n.cluster.Client, 0, informers.WithNamespace(n.namespace),
		informers.WithTweakListOptions(func(options *metav1.ListOptions) { options.LabelSelector = "of=nobody" }))
	see := func(object any) {
		pod, is := object.(*corev1.Pod)
		if !is {
			return
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		if pod.DeletionTimestamp == nil && budget.IsReady(pod) && pod.Labels[v1beta1.ProtectedLabel] != "" && !n.taken[pod.UID] {
			n.protected[pod.UID] = pod.Name
		} else {
			delete(n.protected, pod.UID)
		}
	}
	informer := factory.Core().V1().Pods().Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: see, UpdateFunc: func(_, pod any) { see(pod) }}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(func() { stop(); factory.Shutdown() })
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
}

// take returns a pod to delete or evict, which nobody else takes.
func (n *neighbour) take() (name string, uid types.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for uid, name := range n.protected { // any
		n.taken[uid] = true
		delete(n.protected, uid)
		return name, uid
	}
	return "", ""
}

func (n *neighbour) create(ctx context.Context) error {
	n.mu.Lock()
	n.created++
	name := fmt.Sprint("own-", n.created)
	n.mu.Unlock()
	_, err := n.client.CoreV1().Pods(n.namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "web", "of": "nobody"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: n.owner, Controller: ptr.To(true)}}},
		Spec: corev1.PodSpec{TerminationGracePeriodSeconds: new(int64), Containers: []corev1.Container{{Name: "main", Image: "registry.example.com/main:0"}}},
	}, metav1.CreateOptions{})
	return err
}

func (n *neighbour) delete(ctx context.Context, name string, uid types.UID) error {
	return n.client.CoreV1().Pods(n.namespace).Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
}

func (n *neighbour) evict(ctx context.Context, name string, uid types.UID) error {
	return n.client.CoreV1().Pods(n.namespace).EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}})
}

// work operates at a steady rate, whether or not the previous operations are over: a slow answer must not hide the next one. Each must succeed. The client library tries again after
// an answer that says when, so that its latency has that, too.
func (n *neighbour) work(t *testing.T, length time.Duration, took latencies) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), length+patience)
	defer cancel()
	var mu sync.Mutex
	var failures []string
	var working sync.WaitGroup
	tick := time.NewTicker(every)
	defer tick.Stop()
	for i, end := 0, time.Now().Add(length); time.Now().Before(end); i++ {
		<-tick.C
		operation, operate := creation, n.create
		if i%2 == 1 {
			name, uid := n.take()
			if name == "" {
				failures = append(failures, "none of the tenant's pods is ready and protected")
				continue
			}
			if operation, operate = deletion, func(ctx context.Context) error { return n.delete(ctx, name, uid) }; i%4 == 3 {
				operation, operate = eviction, func(ctx context.Context) error { return n.evict(ctx, name, uid) }
			}
		}
		working.Go(func() {
			began := time.Now()
			err := operate(ctx)
			mu.Lock()
			defer mu.Unlock()
			if took[operation] = append(took[operation], time.Since(began)); err != nil {
				failures = append(failures, fmt.Sprintf("%s: %v", operation, err))
			}
		})
	}
	working.Wait()
	if len(failures) > 0 {
		t.Errorf("%d operations of the other tenant failed, the first: %s", len(failures), strings.Join(failures[:min(len(failures), 3)], "; "))
	}
}

// rest waits until everything of the tenant has settled.
func (n *neighbour) rest(t *testing.T) {
	t.Helper()
	if err := n.cluster.WaitFor(t.Context(), "the other tenant's objects to settle", func(ctx context.Context) (string, error) {
		pods, err := n.cluster.Pods(ctx, n.namespace)
		if err != nil {
			return "", err
		}
		for i := range pods {
			if pod := &pods[i]; pod.DeletionTimestamp != nil || !budget.IsReady(pod) || pod.Labels[v1beta1.ProtectedLabel] == "" {
				return fmt.Sprintf("pod %s terminates, is not ready or not protected", pod.Name), nil
			}
		}
		object, err := n.cluster.Dynamic.Resource(v1beta1.Resource).Namespace(n.namespace).Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		available, _, _ := unstructured.NestedInt64(object.Object, "status", "currentAvailable")
		ledger, _, _ := unstructured.NestedSlice(object.Object, "status", "ledger")
		if int(available) != len(pods) || len(ledger) > 0 {
			return fmt.Sprintf("the budget counts %d of %d pods, and %d operations are under way", available, len(pods), len(ledger)), nil
		}
		differences, err := checker.Recount(ctx, n.cluster.Dynamic, n.namespace)
		return strings.Join(differences, "\n"), err
	}); err != nil {
		t.Fatal(err)
	}
}
