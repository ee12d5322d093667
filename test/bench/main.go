// Command bench measures how long the pods of a Deployment take from the scale-up until all of them run. It uses one sandbox of 100 nodes. It
// measures Berth's scheduler with a spread over three zones, and the stock scheduler, in turn; with -weights, a spread by weights and one by percentages;
// with -gated, a spread with binding Gated and one with Late; with -floor, the stock scheduler beside what no implementation can avoid, and without it.
// Machines are noisy, so it prints every run, the medians and the ratio of each pair.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/manifests"
	"github.com/berth-project/berth/test/harness"
)

const (
	nodes = 100
	// limit bounds one run.
	limit = 5 * time.Minute
	// withWebhook and withPatch are the names of workloads that show what no implementation can avoid.
	withWebhook = "webhook"
	withPatch   = "patch"
)

func main() {
	adaptive := flag.Bool("adaptive", false, "use strategy Adaptive without quotas, and pods so large that the first two zones fill up")
	weights := flag.Bool("weights", false, "compare a spread with weights 1, 1 and 3 to one with percentages 20, 20 and no limit")
	gated := flag.Bool("gated", false, "compare a spread with binding Gated to one with Late")
	floor := flag.String("floor", "", "webhook: compare the stock scheduler beside a webhook that does nothing to the stock scheduler alone; "+
		"patch: the same with one patch of each pod, when all run; empty: do not")
	pods := flag.Int("pods", 1000, "pods of the Deployment; with -adaptive 1000 is all that fits")
	pairs := flag.Int("pairs", 5, "measured runs of each scheduler, after one that is not counted")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *adaptive, *weights, *gated, *floor, *pods, *pairs)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, adaptive, weights, gated bool, floor string, pods, pairs int) (err error) {
	dir, err := os.MkdirTemp("", "berth-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	// The deployed configuration leaves default-scheduler to the stock scheduler.
	cluster, err := harness.Start(ctx,
		sandbox.Config{Name: "bench", Dir: dir, Nodes: nodes, Progress: os.Stdout, Components: []sandbox.Component{stockScheduler()}},
		product.Options{SchedulerConfig: manifests.SchedulerConfig})
	if err != nil {
		return err
	}
	defer cluster.Sandbox.Stop()

	percentages, cpu := spreadBy("Fixed", "maxReplicas: 20%", "maxReplicas: 20%", ""), "100m"
	if adaptive {
		percentages, cpu = spreadBy("Adaptive", "", "", ""), "3" // ten pods fill a node
	}
	spread := &workload{cluster: cluster, name: "spread", scheduler: "berth-scheduler", pods: pods, cpu: cpu, more: percentages}
	other := &workload{cluster: cluster, name: "stock", scheduler: corev1.DefaultSchedulerName, pods: pods, cpu: cpu}
	if weights {
		other, spread = spread, &workload{cluster: cluster, name: "weights", scheduler: "berth-scheduler", pods: pods, cpu: cpu,
			more: spreadBy("Fixed", "weight: 1", "weight: 1", "weight: 3")}
		other.name = "percents"
	}
	if gated {
		other, spread = spread, &workload{cluster: cluster, name: "gated", scheduler: "berth-scheduler", pods: pods, cpu: cpu,
			more: strings.Replace(percentages, "scheduleStrategy: {", "scheduleStrategy: {binding: Gated, ", 1)}
		other.name = "late"
	}
	switch floor {
	case "":
	case withWebhook, withPatch:
		spread = &workload{cluster: cluster, name: floor, scheduler: corev1.DefaultSchedulerName, pods: pods, cpu: cpu}
	default:
		return fmt.Errorf("-floor is %q: must be %s or %s", floor, withWebhook, withPatch)
	}
	for _, w := range []*workload{spread, other} {
		if err := w.create(ctx); err != nil {
			return err
		}
		if w.name == withWebhook {
			stop, err := cluster.ServePodWebhook(ctx, w.namespace, nil)
			if err != nil {
				return err
			}
			defer stop()
		}
		if _, err := w.measure(ctx); err != nil { // warms caches; Berth also takes over the quotas
			return err
		}
	}
	var spreads, others, ratios []float64
	used := map[*workload][]harness.CPU{}
	fmt.Printf("\n%d pods on %d nodes, seconds until all run\n%-6s %8s %8s %8s\n", pods, nodes, "pair", spread.name, other.name, "ratio")
	for i := range pairs {
		order := []*workload{spread, other}
		if i%2 == 1 {
			order = []*workload{other, spread}
		}
		took := map[*workload]float64{}
		for _, w := range order {
			r, err := w.measure(ctx)
			if err != nil {
				return err
			}
			took[w], used[w] = r.seconds, append(used[w], r.cpu)
		}
		spreads, others, ratios = append(spreads, took[spread]), append(others, took[other]), append(ratios, took[spread]/took[other])
		fmt.Printf("%-6d %8.2f %8.2f %8.2f\n", i+1, took[spread], took[other], took[spread]/took[other])
	}
	fmt.Printf("%-6s %8.2f %8.2f %8.2f\n", "median", median(spreads), median(others), median(ratios))
	fmt.Printf("\nseconds of CPU meanwhile, medians\n%-28s %8s %8s\n", "", spread.name, other.name)
	for _, component := range slices.Sorted(maps.Keys(used[spread][0])) {
		fmt.Printf("%-28s %8.2f %8.2f\n", component, median(secondsOf(component, used[spread])), median(secondsOf(component, used[other])))
	}
	return nil
}

// patchPods gives each pod of the namespace an annotation, with as many requests at a time as a scheduler has binds on their way.
func (w *workload) patchPods(ctx context.Context) error {
	pods, err := w.cluster.Pods(ctx, w.namespace)
	if err != nil {
		return err
	}
	requests, ctx := errgroup.WithContext(ctx)
	requests.SetLimit(16)
	for i := range pods {
		requests.Go(func() error {
			_, err := w.cluster.Client.CoreV1().Pods(w.namespace).Patch(ctx, pods[i].Name, types.MergePatchType,
				[]byte(`{"metadata":{"annotations":{"example.com/patched":"true"}}}`), metav1.PatchOptions{})
			return err
		})
	}
	return requests.Wait()
}

func secondsOf(component string, runs []harness.CPU) []float64 {
	seconds := make([]float64, len(runs))
	for i, run := range runs {
		seconds[i] = run[component].Seconds()
	}
	return seconds
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// stockScheduler is kube-scheduler with its defaults and the client limits of Berth's scheduler.
func stockScheduler() sandbox.Component {
	return sandbox.Component{
		Name: "kube-scheduler", Binary: "kube-scheduler", Replicas: 1, User: "system:kube-scheduler",
		Args: func(in sandbox.Instance) ([]string, error) {
			return []string{"--kubeconfig=" + in.Kubeconfig, "--kube-api-qps=1000", "--kube-api-burst=1000", "--leader-elect=false", "--bind-address=127.0.0.1",
				fmt.Sprintf("--secure-port=%d", in.Port("secure")), "--cert-dir=" + in.Dir,
				"--authentication-kubeconfig=" + in.Kubeconfig, "--authorization-kubeconfig=" + in.Kubeconfig, "--v=2"}, nil
		},
		Ready: func(in sandbox.Instance) string { return "https://" + in.Address("secure") + "/readyz" },
	}
}

// workload is a Deployment in its own namespace. Each run scales it from 0 to its pods and back.
type workload struct {
	cluster         *harness.Cluster
	name, scheduler string
	pods            int
	cpu, more       string
	namespace       string
}

// spreadBy is a spread over three zones with these limits, which may be empty.
func spreadBy(strategy string, limits ...string) string {
	const subset = "{%srequiredNodeSelectorTerm: {matchExpressions: [{key: topology.kubernetes.io/zone, operator: In, values: [zone-%s]}]}}"
	text := `
---
apiVersion: apps.kruise.io/v1alpha1
kind: WorkloadSpread
metadata: {name: web}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  scheduleStrategy: {type: ` + strategy + `}
  subsets:
`
	for i, zone := range []string{"a", "b", "c"} {
		start := "name: " + zone + ", "
		if limits[i] != "" {
			start += limits[i] + ", "
		}
		text += "  - " + fmt.Sprintf(subset, start, zone) + "\n"
	}
	return text
}

func (w *workload) create(ctx context.Context) (err error) {
	if w.namespace, err = w.cluster.CreateNamespace(ctx, w.name); err != nil {
		return err
	}
	return w.cluster.ApplyYAML(ctx, w.namespace, `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 0
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      schedulerName: `+w.scheduler+`
      containers: [{name: main, image: "registry.k8s.io/pause:3.10", resources: {requests: {cpu: "`+w.cpu+`", memory: 64Mi}}}]
`+w.more)
}

// result of a run: the seconds from the scale-up until all pods run, and the CPU time used meanwhile.
type result struct {
	seconds float64
	cpu     harness.CPU
}

// measure scales up and waits until all pods run. Then it scales down and waits until they are deleted, which does not count.
func (w *workload) measure(ctx context.Context) (r result, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	before, err := w.cluster.CPU()
	if err != nil {
		return r, err
	}
	started := time.Now()
	if err := w.scale(ctx, w.pods); err != nil {
		return r, err
	}
	if err := w.waitForRunning(ctx, w.pods); err != nil {
		return r, err
	}
	if w.name == withPatch {
		if err := w.patchPods(ctx); err != nil {
			return r, err
		}
	}
	r.seconds = time.Since(started).Seconds()
	after, err := w.cluster.CPU()
	if err != nil {
		return r, err
	}
	r.cpu = after.Since(before)
	if err := w.scale(ctx, 0); err != nil {
		return r, err
	}
	return r, w.waitForRunning(ctx, 0)
}

func (w *workload) scale(ctx context.Context, replicas int) error {
	patch := fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas)
	_, err := w.cluster.Client.AppsV1().Deployments(w.namespace).Patch(ctx, "web", types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "scale")
	return err
}

// waitForRunning watches the pods until exactly the wanted number exists and all of them run.
func (w *workload) waitForRunning(ctx context.Context, want int) error {
	running := map[types.UID]bool{}
	pods := w.cluster.Client.CoreV1().Pods(w.namespace)
	listWatch := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return pods.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return pods.Watch(ctx, options)
		},
	}
	seen := func(e watch.Event) (bool, error) {
		pod, ok := e.Object.(*corev1.Pod)
		if !ok {
			return false, fmt.Errorf("watching pods: %v", e.Object)
		}
		if e.Type == watch.Deleted {
			delete(running, pod.UID)
		} else {
			running[pod.UID] = pod.Status.Phase == corev1.PodRunning
		}
		all := 0
		for _, runs := range running {
			if runs {
				all++
			}
		}
		return all == want && len(running) == want, nil
	}
	list, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if want == 0 && len(list.Items) == 0 {
		return nil
	}
	for i := range list.Items {
		if done, err := seen(watch.Event{Type: watch.Added, Object: &list.Items[i]}); done || err != nil {
			return err
		}
	}
	_, err = watchtools.Until(ctx, list.ResourceVersion, listWatch, seen)
	return err
}
