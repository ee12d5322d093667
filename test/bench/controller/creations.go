package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/test/harness"
)

const (
	// workloads is the number of Deployments whose pods are created in turn. Each of them has a spread. Many more spreads exist.
	workloads = 20
	// writers bounds the concurrent requests. So a stall shows as a rate below the target.
	writers = 64
)

// creations are pods that the benchmark itself creates, as the ReplicaSet controller does. Besides the API server only the controller runs. So
// nothing schedules or runs these pods.
type creations struct {
	*harness.Cluster
	fast   kubernetes.Interface
	owners map[string][]metav1.OwnerReference // by namespace
}

// One namespace has the webhook and one does not. In the third the API server calls a webhook that always answers with a patch of the same size. This
// shows what any webhook costs the API server. Everything else is equal.
const (
	with    = "with"
	without = "without"
	stub    = "stub"
)

var namespaces = []string{with, without, stub}

func measureCreations(ctx context.Context, s settings) (err error) {
	dir, err := os.MkdirTemp("", "berth-bench-webhook-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cluster, err := harness.Start(ctx, sandbox.Config{Name: "bench-webhook", Dir: dir,
		Without: []string{sandbox.ControllerManager, sandbox.KWOK, product.Scheduler, product.DefaultScheduler}}, product.Options{})
	if err != nil {
		return err
	}
	defer cluster.Sandbox.Stop()
	c := &creations{Cluster: cluster, owners: map[string][]metav1.OwnerReference{}}
	if c.fast, err = fastClient(cluster); err != nil {
		return err
	}
	for _, namespace := range namespaces {
		if err := c.prepare(ctx, namespace); err != nil {
			return err
		}
	}
	stopStub, err := c.serveStub(ctx)
	if err != nil {
		return err
	}
	defer stopStub()
	before, err := readMemory(ctx, cluster)
	if err != nil {
		return err
	}
	if err := c.createSpreads(ctx, s.spreads); err != nil {
		return err
	}
	// This warms connections and caches, and gives the garbage collectors work.
	for _, namespace := range namespaces {
		if _, err := c.round(ctx, namespace, s.rate, 2); err != nil {
			return err
		}
	}
	after, err := readMemory(ctx, cluster)
	if err != nil {
		return err
	}
	fmt.Printf("\nMemory of the controller with %d spreads: RSS %.1f MiB, before %.1f; heap %.1f MiB, before %.1f\n",
		s.spreads, mebi(after.rss), mebi(before.rss), mebi(after.heap), mebi(before.heap))

	fmt.Printf("\n%d creations a second for %d s, with %d spreads in the cache; milliseconds\n", s.rate, s.seconds, s.spreads)
	fmt.Printf("%-6s %-8s %8s %8s %8s %8s | %10s %10s %11s | %10s %10s | %9s %10s %6s %6s %7s\n", "round", "webhook", "rate", "p50", "p99", "max",
		"call mean", "call <=5ms", "call <=25ms", "answer p50", "answer p99", "CPU berth", "API server", "etcd", "client", "foreign")
	all := map[string][]time.Duration{}
	var calls callTimes
	for i := range s.rounds {
		for j := range namespaces {
			namespace := namespaces[(i+j)%len(namespaces)]
			r, err := c.round(ctx, namespace, s.rate, s.seconds)
			if err != nil {
				return err
			}
			all[namespace] = append(all[namespace], r.took...)
			if namespace == with {
				calls = calls.plus(r.calls)
			}
			r.print(i+1, namespace)
		}
	}
	for _, took := range all {
		slices.Sort(took)
	}
	fmt.Printf("\n%-24s", "all rounds")
	for _, q := range []float64{.5, .9, .99} {
		fmt.Printf(" %8s %8s", fmt.Sprintf("p%.0f", q*100), "added")
	}
	for _, namespace := range namespaces {
		fmt.Printf("\n%-24s", map[string]string{with: "with the webhook", without: "without", stub: "with one that does nothing"}[namespace])
		for _, q := range []float64{.5, .9, .99} {
			fmt.Printf(" %8.2f %8.2f", milliseconds(quantile(all[namespace], q)), milliseconds(quantile(all[namespace], q)-quantile(all[without], q)))
		}
	}
	fmt.Println()
	fmt.Printf("calls of the webhook, as the API server times them: %d, mean %.2f ms, %.2f %% within 5 ms, %.2f %% within 25 ms; as the webhook does: p50 %.2f ms, p99 %.2f ms\n",
		int(calls.server.count), calls.server.mean()*1000, 100*calls.server.share(0.005), 100*calls.server.share(0.025), calls.own.quantile(.5)*1000, calls.own.quantile(.99)*1000)
	return nil
}

// fastClient is as fast as the ReplicaSet controller's client: it has no rate limit and uses protobuf.
func fastClient(cluster *harness.Cluster) (kubernetes.Interface, error) {
	config := rest.CopyConfig(cluster.Sandbox.RESTConfig())
	config.QPS, config.ContentType, config.AcceptContentTypes = -1, "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf"
	return kubernetes.NewForConfig(config)
}

func mebi(bytes float64) float64 { return bytes / (1 << 20) }

// prepare creates a namespace with workloads. Without a controller manager it also creates the service account and the ReplicaSets.
func (c *creations) prepare(ctx context.Context, name string) error {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if name != with {
		namespace.Labels = map[string]string{v1beta1.AdmissionLabel: "disabled"}
	}
	if _, err := c.fast.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		return err
	}
	if _, err := c.fast.CoreV1().ServiceAccounts(name).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	for i := range workloads {
		labels := map[string]string{"app": workloadName(i)}
		template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: podSpec()}
		deployment, err := c.fast.AppsV1().Deployments(name).Create(ctx, &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: workloadName(i)},
			Spec:       appsv1.DeploymentSpec{Replicas: ptr.To[int32](1000), Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		replicaSet, err := c.fast.AppsV1().ReplicaSets(name).Create(ctx, &appsv1.ReplicaSet{
			ObjectMeta: metav1.ObjectMeta{Name: workloadName(i) + "-1",
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(deployment, appsv1.SchemeGroupVersion.WithKind("Deployment"))}},
			Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To[int32](1000), Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		c.owners[name] = append(c.owners[name], *metav1.NewControllerRef(replicaSet, appsv1.SchemeGroupVersion.WithKind("ReplicaSet")))
	}
	return nil
}

func workloadName(i int) string { return fmt.Sprintf("web-%d", i) }

// podSpec is a spec of ordinary size.
func podSpec() corev1.PodSpec {
	return corev1.PodSpec{Containers: []corev1.Container{{
		Name: "main", Image: "registry.example.com/shop/web:v1.2.3", Command: []string{"/web", "--port=8080"},
		Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
		Env: []corev1.EnvVar{{Name: "REGION", Value: "eu-1"}, {Name: "POD", ValueFrom: &corev1.EnvVarSource{
			FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}},
		ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/ready", Port: intstr.FromString("http")}}},
	}}}
}

// createSpreads creates the spreads of the workloads in all namespaces, so that their status costs the same. It creates all other spreads in the
// namespace with Berth's webhook.
func (c *creations) createSpreads(ctx context.Context, n int) error {
	creating, creatingCtx := errgroup.WithContext(ctx)
	creating.SetLimit(8)
	for i := range n {
		in := namespaces
		if i >= workloads {
			in = []string{with}
		}
		for _, namespace := range in {
			creating.Go(func() error { return c.ApplyYAML(creatingCtx, namespace, spreadOver(workloadName(i))) })
		}
	}
	if err := creating.Wait(); err != nil {
		return err
	}
	// The last spread has a status once the controller's cache contains it. The webhook uses the same cache.
	return c.WaitFor(ctx, "the spreads to be known", func(ctx context.Context) (string, error) {
		for i := range min(n, workloads) {
			spread, err := c.Spread(ctx, with, workloadName(i))
			if err != nil {
				return "", err
			}
			if spread.Status.ObservedGeneration == 0 {
				return spread.Name + " has no status", nil
			}
		}
		spread, err := c.Spread(ctx, with, workloadName(n-1))
		if err != nil || spread.Status.ObservedGeneration != 0 {
			return "", err
		}
		return spread.Name + " has no status", nil
	})
}

// spreadOver is a spread over three pools, of which two are tainted.
func spreadOver(name string) string {
	return fmt.Sprintf(`
apiVersion: apps.kruise.io/v1alpha1
kind: WorkloadSpread
metadata: {name: %[1]s}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: %[1]s}
  subsets:
  - {name: reserved, maxReplicas: 100, requiredNodeSelectorTerm: {matchExpressions: [{key: topology.kubernetes.io/zone, operator: In, values: [zone-a]}]}}
  - {name: spot, maxReplicas: 200, requiredNodeSelectorTerm: {matchExpressions: [{key: topology.kubernetes.io/zone, operator: In, values: [zone-b]}]}, tolerations: [{key: spot, operator: Exists}]}
  - {name: elastic, requiredNodeSelectorTerm: {matchExpressions: [{key: topology.kubernetes.io/zone, operator: In, values: [zone-c]}]}, tolerations: [{key: elastic, operator: Exists}]}
`, name)
}

// round is one run at a steady rate.
type round struct {
	took  []time.Duration // sorted
	lasts time.Duration
	calls callTimes
	// cpu is the CPU time that each component used.
	cpu harness.CPU
}

func (r *round) print(number int, namespace string) {
	n := float64(len(r.took))
	fmt.Printf("%-6d %-8s %8.0f %8.2f %8.2f %8.2f |", number, namespace, n/r.lasts.Seconds(),
		milliseconds(quantile(r.took, .5)), milliseconds(quantile(r.took, .99)), milliseconds(quantile(r.took, 1)))
	if namespace != with {
		fmt.Printf(" %10s %10s %11s | %10s %10s |", "", "", "", "", "")
	} else {
		fmt.Printf(" %10.2f %9.2f%% %10.2f%% | %10.2f %10.2f |", r.calls.server.mean()*1000, 100*r.calls.server.share(.005), 100*r.calls.server.share(.025),
			r.calls.own.quantile(.5)*1000, r.calls.own.quantile(.99)*1000)
	}
	// Components of the sandbox use milliseconds per pod. Other processes use cores.
	perPod := func(component string) float64 { return milliseconds(r.cpu[component]) / n }
	fmt.Printf(" %9.2f %10.2f %6.2f %6.2f %7.2f\n", perPod(product.Controller), perPod(sandbox.APIServer), perPod(sandbox.Etcd), perPod(harness.ThisProcess),
		r.cpu[harness.OtherProcesses].Seconds()/r.lasts.Seconds())
}

// round creates pods of all workloads in turn at a steady rate. Afterwards it deletes them.
func (c *creations) round(ctx context.Context, namespace string, rate, seconds int) (*round, error) {
	r := &round{}
	callsBefore, cpuBefore, err := c.observe(ctx)
	if err != nil {
		return nil, err
	}
	var (
		mu       sync.Mutex
		creating errgroup.Group
		started  = time.Now()
	)
	creating.SetLimit(writers)
	for i := range rate * seconds {
		due := started.Add(time.Duration(i) * time.Second / time.Duration(rate))
		if wait := time.Until(due); wait > 0 {
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(wait):
			}
		}
		creating.Go(func() error {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: workloadName(i%workloads) + "-1-", Labels: map[string]string{"app": workloadName(i % workloads)},
				OwnerReferences: []metav1.OwnerReference{c.owners[namespace][i%workloads]}}, Spec: podSpec()}
			sent := time.Now()
			made, err := c.fast.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
			took := time.Since(sent)
			if err != nil {
				return err
			}
			if changed := made.Annotations[v1beta1.ConstraintsAnnotation] != ""; changed != (namespace != without) {
				return fmt.Errorf("pod %s/%s was changed: %t", namespace, made.Name, changed)
			}
			mu.Lock()
			defer mu.Unlock()
			r.took = append(r.took, took)
			return nil
		})
	}
	if err := creating.Wait(); err != nil {
		return nil, err
	}
	r.lasts = time.Since(started)
	callsAfter, cpuAfter, err := c.observe(ctx)
	if err != nil {
		return nil, err
	}
	r.calls, r.cpu = callsAfter.minus(callsBefore), cpuAfter.Since(cpuBefore)
	slices.Sort(r.took)
	return r, c.clear(ctx, namespace)
}

func (c *creations) observe(ctx context.Context) (callTimes, harness.CPU, error) {
	calls, err := readCalls(ctx, c.Cluster)
	if err != nil {
		return callTimes{}, nil, err
	}
	cpu, err := c.CPU()
	return calls, cpu, err
}

// clear deletes the pods and waits until the controller is idle, so that each round begins in the same state.
func (c *creations) clear(ctx context.Context, namespace string) error {
	now := metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}
	if err := c.fast.CoreV1().Pods(namespace).DeleteCollection(ctx, now, metav1.ListOptions{}); err != nil && !apierrors.IsTimeout(err) {
		return err
	}
	return c.WaitFor(ctx, "the pods to be gone", func(ctx context.Context) (string, error) {
		list, err := c.fast.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil || len(list.Items) == 0 {
			return "", err
		}
		return "some are left", c.fast.CoreV1().Pods(namespace).DeleteCollection(ctx, now, metav1.ListOptions{})
	})
}
