package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/test/harness"
)

const (
	// smallSpread is how many pods each of the many spreads has.
	smallSpread = 30
	// steadySeconds is the duration of the idle phase.
	steadySeconds = 30
	// changesASecond is the steady rate for measuring the cost of one change. changeSeconds is the duration.
	changesASecond, changeSeconds = 10, 10
)

// statuses is a cluster on which only the controller runs. The benchmark creates and binds the pods of its workloads.
type statuses struct {
	*harness.Cluster
	fast      kubernetes.Interface
	namespace string
}

// measureStatus measures the controller with many spreads: while idle, after a restart, and in a burst of binds in a large spread. It also measures
// single pod changes in spreads of different sizes.
func measureStatus(ctx context.Context, s settings) (err error) {
	dir, err := os.MkdirTemp("", "berth-bench-controller-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cluster, err := harness.Start(ctx, sandbox.Config{Name: "bench-controller", Dir: dir,
		Without: []string{sandbox.ControllerManager, sandbox.KWOK, product.Scheduler, product.DefaultScheduler}}, product.Options{CostMetrics: s.cost})
	if err != nil {
		return err
	}
	defer cluster.Sandbox.Stop()
	m := &statuses{Cluster: cluster}
	if m.fast, err = fastClient(cluster); err != nil {
		return err
	}
	if m.namespace, err = m.CreateNamespace(ctx, "bench"); err != nil {
		return err
	}
	if _, err := m.fast.CoreV1().ServiceAccounts(m.namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := m.Sandbox.CreateNodes(ctx, []*corev1.Node{
		sandbox.NewNode("node-a", "zone-a", map[string]string{"pool": "a"}, nil, nil), sandbox.NewNode("node-b", "zone-b", map[string]string{"pool": "b"}, nil, nil)}); err != nil {
		return err
	}
	started := time.Now()
	if err := m.fill(ctx, "small", s.spreads, smallSpread); err != nil {
		return err
	}
	fmt.Printf("%d spreads of %d pods after %.0f s\n", s.spreads, smallSpread, time.Since(started).Seconds())
	return errors.Join(m.measureSteady(ctx), m.measureRestart(ctx, s.spreads), m.measureChanges(ctx), m.measureBurst(ctx, s.pods))
}

// fill creates workloads with one spread each and their pods. It binds the pods as the scheduler would, and waits until the statuses show them.
func (m *statuses) fill(ctx context.Context, prefix string, workloads, pods int) error {
	filling, fillingCtx := errgroup.WithContext(ctx)
	filling.SetLimit(16)
	for i := range workloads {
		filling.Go(func() error {
			name := fmt.Sprintf("%s-%d", prefix, i)
			owner, err := m.workload(fillingCtx, name, pods)
			if err != nil {
				return err
			}
			for n := range pods {
				if err := m.bind(fillingCtx, name, owner, n, pods); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := filling.Wait(); err != nil {
		return err
	}
	for i := range workloads {
		if err := m.waitForStatus(ctx, fmt.Sprintf("%s-%d", prefix, i), pods); err != nil {
			return err
		}
	}
	return nil
}

func (m *statuses) workload(ctx context.Context, name string, pods int) (metav1.OwnerReference, error) {
	labels := map[string]string{"app": name}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: podSpec()}
	deployment, err := m.fast.AppsV1().Deployments(m.namespace).Create(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{Replicas: ptr.To(int32(pods)), Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template}}, metav1.CreateOptions{})
	if err != nil {
		return metav1.OwnerReference{}, err
	}
	set, err := m.fast.AppsV1().ReplicaSets(m.namespace).Create(ctx, &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: name + "-1",
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(deployment, appsv1.SchemeGroupVersion.WithKind("Deployment"))}},
		Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To(int32(pods)), Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template}}, metav1.CreateOptions{})
	if err != nil {
		return metav1.OwnerReference{}, err
	}
	return *metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("ReplicaSet")), m.ApplyYAML(ctx, m.namespace, fmt.Sprintf(`
apiVersion: apps.kruise.io/v1alpha1
kind: WorkloadSpread
metadata: {name: %[1]s}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: %[1]s}
  subsets:
  - {name: a, maxReplicas: %[2]d, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [a]}]}}
  - {name: b, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [b]}]}}
`, name, pods*2/3))
}

// bind creates the n-th pod of a workload and binds it as the scheduler does.
func (m *statuses) bind(ctx context.Context, workload string, owner metav1.OwnerReference, n, pods int) error {
	pod, err := m.create(ctx, workload, owner)
	if err != nil {
		return err
	}
	return m.bindPod(ctx, pod, workload, n, pods)
}

func (m *statuses) create(ctx context.Context, workload string, owner metav1.OwnerReference) (*corev1.Pod, error) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: workload + "-1-", Labels: map[string]string{"app": workload, "pod-template-hash": "1"},
		OwnerReferences: []metav1.OwnerReference{owner}}, Spec: podSpec()}
	pod.Spec.SchedulerName = v1beta1.SchedulerName
	return m.fast.CoreV1().Pods(m.namespace).Create(ctx, pod, metav1.CreateOptions{})
}

func (m *statuses) bindPod(ctx context.Context, pod *corev1.Pod, workload string, n, pods int) error {
	in, cost := "a", 200
	if n >= pods*2/3 {
		in, cost = "b", 100
	}
	record, err := json.Marshal(v1beta1.MatchedSubset{Name: workload, Subset: in, UID: string(pod.UID)})
	if err != nil {
		return err
	}
	return m.fast.CoreV1().Pods(m.namespace).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name, UID: pod.UID, Labels: map[string]string{v1beta1.SubsetLabel: in},
			Annotations: map[string]string{v1beta1.MatchedAnnotation: string(record), v1beta1.PodDeletionCostAnnotation: strconv.Itoa(cost)}},
		Target: corev1.ObjectReference{Kind: "Node", Name: "node-" + in},
	}, metav1.CreateOptions{})
}

func (m *statuses) waitForStatus(ctx context.Context, spread string, pods int) error {
	return m.WaitFor(ctx, "the status of "+spread, func(ctx context.Context) (string, error) {
		object, err := m.Spread(ctx, m.namespace, spread)
		if err != nil {
			return "", err
		}
		if kept := keptIn(object); kept != pods {
			return fmt.Sprintf("%d of %d pods", kept, pods), nil
		}
		return "", nil
	})
}

func keptIn(spread *v1beta1.WorkloadSpread) (pods int) {
	for i := range spread.Status.SubsetStatuses {
		pods += int(spread.Status.SubsetStatuses[i].Replicas)
	}
	return pods
}

// revision returns the sum of the resourceVersions of the namespace's spreads and pods. Any write of one of them increases it.
func (m *statuses) revision(ctx context.Context) (sum int64, err error) {
	spreads, err := m.Dynamic.Resource(v1beta1.Resource).Namespace(m.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	pods, err := m.fast.CoreV1().Pods(m.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	add := func(version string) {
		n, parseErr := strconv.ParseInt(version, 10, 64)
		sum, err = sum+n, errors.Join(err, parseErr)
	}
	for i := range spreads.Items {
		add(spreads.Items[i].GetResourceVersion())
	}
	for i := range pods.Items {
		add(pods.Items[i].ResourceVersion)
	}
	return sum, err
}

// quiet waits until the controller has used almost no CPU for a while.
func (m *statuses) quiet(ctx context.Context) error {
	var last time.Duration
	return m.WaitFor(ctx, "the controller to come to rest", func(ctx context.Context) (string, error) {
		used, err := m.CPU()
		if err != nil {
			return "", err
		}
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(time.Second):
		}
		before := last
		last = used[product.Controller]
		if last-before > 50*time.Millisecond {
			return fmt.Sprintf("it has used %v of CPU in a second", last-before), nil
		}
		return "", nil
	})
}

func (m *statuses) measureSteady(ctx context.Context) error {
	if err := m.quiet(ctx); err != nil {
		return err
	}
	revision, err := m.revision(ctx)
	if err != nil {
		return err
	}
	before, err := m.CPU()
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(steadySeconds * time.Second):
	}
	after, err := m.CPU()
	if err != nil {
		return err
	}
	now, err := m.revision(ctx)
	if err != nil {
		return err
	}
	memory, err := readMemory(ctx, m.Cluster)
	if err != nil {
		return err
	}
	fmt.Printf("at rest for %d s: %.2f %% of a core; spreads or pods written: %t; RSS %.0f MiB, heap %.0f MiB\n",
		steadySeconds, 100*(after[product.Controller]-before[product.Controller]).Seconds()/steadySeconds, now != revision, mebi(memory.rss), mebi(memory.heap))
	return nil
}

// measureRestart ends the controller. It measures how long the next process takes to look at every spread.
func (m *statuses) measureRestart(ctx context.Context, spreads int) error {
	revision, err := m.revision(ctx)
	if err != nil {
		return err
	}
	before := m.controllerPID()
	if err := m.Sandbox.Signal(product.Controller, 0, syscall.SIGTERM); err != nil {
		return err
	}
	var first, last time.Time
	if err := m.WaitFor(ctx, "all spreads to be looked at", func(ctx context.Context) (string, error) {
		text, err := controllerMetrics(ctx, m.Cluster)
		if now := m.controllerPID(); err != nil || now == 0 || now == before {
			return "the next one is on its way", nil //nolint:nilerr // it does not answer yet
		}
		seen := 0.0
		for _, result := range []string{"success", "requeue_after"} { // after a count the controller looks at the spread again some time later
			seen += text.value(`controller_runtime_reconcile_total{controller="workloadspread",result="` + result + `"}`)
		}
		if first.IsZero() && seen > 0 {
			first = time.Now()
		}
		if int(seen) < spreads {
			return fmt.Sprintf("%.0f of %d", seen, spreads), nil
		}
		last = time.Now()
		return "", nil
	}); err != nil {
		return err
	}
	used, err := m.CPU()
	if err != nil {
		return err
	}
	if err := m.quiet(ctx); err != nil {
		return err
	}
	now, err := m.revision(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("after a restart: all %d spreads looked at %.2f s after the first, with %.2f s of CPU since the start; spreads or pods written: %t\n",
		spreads, last.Sub(first).Seconds(), used[product.Controller].Seconds(), now != revision)
	return nil
}

// controllerPID returns 0 while no controller runs.
func (m *statuses) controllerPID() int {
	for _, status := range m.Sandbox.Status() {
		if status.Name == product.Controller {
			return status.PID
		}
	}
	return 0
}

// measureChanges creates and deletes pods one at a time, in spreads of different sizes.
func (m *statuses) measureChanges(ctx context.Context) error {
	fmt.Printf("one pod at a time, %d a second for %d s:\n%8s %24s\n", changesASecond, changeSeconds, "pods", "CPU per change, ms")
	for _, size := range []int{smallSpread, 300, 3000} {
		name := fmt.Sprintf("sized-%d", size)
		owner, err := m.workload(ctx, name, size)
		if err != nil {
			return err
		}
		binding, bindingCtx := errgroup.WithContext(ctx)
		binding.SetLimit(writers)
		for n := range size {
			binding.Go(func() error { return m.bind(bindingCtx, name, owner, n, size) })
		}
		if err := binding.Wait(); err != nil {
			return err
		}
		if err := errors.Join(m.waitForStatus(ctx, name, size), m.quiet(ctx)); err != nil {
			return err
		}
		before, err := m.CPU()
		if err != nil {
			return err
		}
		tick := time.NewTicker(time.Second / changesASecond)
		for range changesASecond * changeSeconds {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-tick.C:
			}
			if err := m.bind(ctx, name, owner, size, size); err != nil { // one more pod in b
				return err
			}
		}
		tick.Stop()
		if err := errors.Join(m.waitForStatus(ctx, name, size+changesASecond*changeSeconds), m.quiet(ctx)); err != nil {
			return err
		}
		after, err := m.CPU()
		if err != nil {
			return err
		}
		// A change is a creation and a bind.
		fmt.Printf("%8d %24.2f\n", size, (after[product.Controller]-before[product.Controller]).Seconds()*1000/(2*changesASecond*changeSeconds))
	}
	return nil
}

// measureBurst binds the pods of one spread as fast as the API server allows, and watches the status.
func (m *statuses) measureBurst(ctx context.Context, pods int) error {
	const name = "burst"
	owner, err := m.workload(ctx, name, pods)
	if err != nil {
		return err
	}
	made := make([]*corev1.Pod, pods)
	creating, creatingCtx := errgroup.WithContext(ctx)
	creating.SetLimit(writers)
	for n := range made {
		creating.Go(func() (err error) {
			made[n], err = m.create(creatingCtx, name, owner)
			return err
		})
	}
	if err := errors.Join(creating.Wait(), m.quiet(ctx)); err != nil {
		return err
	}
	var mu sync.Mutex
	var writes []time.Time
	var complete time.Time
	watch, err := m.Dynamic.Resource(v1beta1.Resource).Namespace(m.namespace).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		return err
	}
	defer watch.Stop()
	go func() {
		for event := range watch.ResultChan() {
			spread := &v1beta1.WorkloadSpread{}
			text, err := json.Marshal(event.Object)
			if err != nil || json.Unmarshal(text, spread) != nil {
				continue
			}
			mu.Lock()
			writes = append(writes, time.Now())
			if keptIn(spread) == pods && complete.IsZero() {
				complete = time.Now()
			}
			mu.Unlock()
		}
	}()
	started := time.Now()
	binding, bindingCtx := errgroup.WithContext(ctx)
	binding.SetLimit(writers)
	for n, pod := range made {
		binding.Go(func() error { return m.bindPod(bindingCtx, pod, name, n, pods) })
	}
	if err := binding.Wait(); err != nil {
		return err
	}
	last := time.Now()
	if err := m.WaitFor(ctx, "the final status", func(context.Context) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		if complete.IsZero() {
			return "it is not there", nil
		}
		return "", nil
	}); err != nil {
		return err
	}
	mu.Lock()
	defer mu.Unlock()
	var closest time.Duration
	for i := range writes[1:] { // the first is the initial state
		if gap := writes[i+1].Sub(writes[i]); i > 0 && (closest == 0 || gap < closest) {
			closest = gap
		}
	}
	fmt.Printf("a burst of %d binds of one spread in %.1f s: %d status writes, no two closer than %.2f s; the final one %.2f s after the last bind\n",
		pods, last.Sub(started).Seconds(), len(writes)-1, closest.Seconds(), complete.Sub(last).Seconds())
	return nil
}
