package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	unitedv1beta1 "github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/test/harness"
)

const (
	uniteds       = 100
	subsetsOfEach = 5
	// growth is to how many pods the UnitedDeployment and the Deployments beside it grow.
	growth = 1000
)

// unitedBench is 100 UnitedDeployments of 5 subsets, and one beside five Deployments.
type unitedBench struct {
	*harness.Cluster
	namespace string
}

// measureUnited measures the controller of UnitedDeployments: at rest, one change at a time, and how fast one grows beside five plain Deployments that are scaled
// at once. The runs of the two alternate.
func measureUnited(ctx context.Context, s settings) (err error) {
	dir, err := os.MkdirTemp("", "berth-bench-united-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cluster, err := harness.Start(ctx, sandbox.Config{Name: "bench-united", Dir: dir, Nodes: s.nodes}, product.Options{})
	if err != nil {
		return err
	}
	defer cluster.Sandbox.Stop()
	b := &unitedBench{Cluster: cluster}
	if b.namespace, err = b.CreateNamespace(ctx, "bench"); err != nil {
		return err
	}
	for i := range uniteds {
		if err := b.ApplyYAML(ctx, b.namespace, unitedOf(fmt.Sprintf("web-%d", i))); err != nil {
			return err
		}
	}
	for i := range uniteds {
		if err := b.await(ctx, fmt.Sprintf("web-%d", i), subsetsOfEach); err != nil {
			return err
		}
	}
	return errors.Join(b.measureRest(ctx), b.measureChanges(ctx), b.measureGrowth(ctx, s.pairs))
}

const podTemplateOfBench = `{metadata: {labels: {app: %[1]s}}, spec: {containers: [{name: main, image: "registry.k8s.io/pause:3.10", resources: {requests: {cpu: 10m, memory: 16Mi}}}]}}`

// unitedOf has a replica in each subset. The subsets have the same nodes, so that the scheduler has the same work as for plain Deployments.
func unitedOf(name string) string {
	var subsets []string
	for i := range subsetsOfEach {
		subsets = append(subsets, fmt.Sprintf("{name: s%d}", i))
	}
	return fmt.Sprintf(`
apiVersion: apps.kruise.io/v1beta1
kind: UnitedDeployment
metadata: {name: %[1]s}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: %[1]s}}
  template: {deploymentTemplate: {spec: {template: `+podTemplateOfBench+`}}}
  topology: {subsets: [%[3]s]}
`, name, subsetsOfEach, strings.Join(subsets, ", "))
}

func (b *unitedBench) read(ctx context.Context, name string) (*unitedv1beta1.UnitedDeployment, error) {
	object, err := b.Dynamic.Resource(unitedv1beta1.Resource).Namespace(b.namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	ud := &unitedv1beta1.UnitedDeployment{}
	return ud, k8sruntime.DefaultUnstructuredConverter.FromUnstructured(object.Object, ud)
}

// await waits until so many pods are ready, and the status says so.
func (b *unitedBench) await(ctx context.Context, name string, ready int) error {
	return b.WaitFor(ctx, fmt.Sprintf("%d pods of %s", ready, name), func(ctx context.Context) (string, error) {
		ud, err := b.read(ctx, name)
		if err != nil {
			return "", err
		}
		if int(ud.Status.ReadyReplicas) != ready || int(ud.Status.Replicas) != ready || ud.Status.ObservedGeneration != ud.Generation {
			return ud.Status.Summary, nil
		}
		return "", nil
	})
}

func (b *unitedBench) scale(ctx context.Context, name string, replicas int) error {
	_, err := b.Dynamic.Resource(unitedv1beta1.Resource).Namespace(b.namespace).Patch(ctx, name, types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas), metav1.PatchOptions{}, "scale")
	return err
}

func (b *unitedBench) measureRest(ctx context.Context) error {
	m := &statuses{Cluster: b.Cluster, namespace: b.namespace}
	if err := m.quiet(ctx); err != nil {
		return err
	}
	before, err := b.CPU()
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(steadySeconds * time.Second):
	}
	after, err := b.CPU()
	if err != nil {
		return err
	}
	fmt.Printf("%d UnitedDeployments of %d subsets, at rest for %d s: %.2f %% of a core\n",
		uniteds, subsetsOfEach, steadySeconds, 100*(after[product.United]-before[product.United]).Seconds()/steadySeconds)
	return nil
}

// measureChanges adds a replica to one UnitedDeployment after the other. It measures the time until its child asks for it, and counts the writes.
func (b *unitedBench) measureChanges(ctx context.Context) error {
	deployments := b.Client.AppsV1().Deployments(b.namespace)
	writesOf := func(text metrics) float64 {
		sum := 0.0
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "berth_uniteddeployment_writes_total{") {
				name, _, _ := strings.Cut(strings.TrimSpace(line), " ")
				sum += text.value(name)
			}
		}
		return sum
	}
	beforeText, err := unitedMetrics(ctx, b.Cluster)
	if err != nil {
		return err
	}
	watcher, err := b.Dynamic.Resource(unitedv1beta1.Resource).Namespace(b.namespace).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	events := make(chan int)
	go func() {
		n := 0
		for event := range watcher.ResultChan() {
			if event.Type == watch.Modified {
				n++
			}
		}
		events <- n
	}()
	var took []time.Duration
	for i := range uniteds {
		name := fmt.Sprintf("web-%d", i)
		started := time.Now()
		if err := b.scale(ctx, name, subsetsOfEach+1); err != nil {
			return err
		}
		if err := b.WaitFor(ctx, "a child of "+name, func(ctx context.Context) (string, error) {
			list, err := deployments.List(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
			if err != nil {
				return "", err
			}
			sum := int32(0)
			for j := range list.Items {
				sum += *list.Items[j].Spec.Replicas
			}
			if sum != subsetsOfEach+1 {
				return fmt.Sprint(sum), nil
			}
			return "", nil
		}); err != nil {
			return err
		}
		took = append(took, time.Since(started))
		if err := b.await(ctx, name, subsetsOfEach+1); err != nil {
			return err
		}
	}
	afterText, err := unitedMetrics(ctx, b.Cluster)
	if err != nil {
		return err
	}
	watcher.Stop()
	statusWrites := float64(<-events - uniteds) // without the changes themselves
	const reconciles = "controller_runtime_reconcile_time_seconds"
	reconcile := afterText.histogram(reconciles, `controller="uniteddeployment"`).minus(beforeText.histogram(reconciles, `controller="uniteddeployment"`))
	slices.Sort(took)
	fmt.Printf("one replica more in each of %d, one at a time: p50 %.0f ms, p99 %.0f ms until the child asks for it\n"+
		"  reconcile p50 %.1f ms of %.1f per change; %.2f writes of children and %.2f of the status per change, until its pod is ready\n",
		uniteds, milliseconds(quantile(took, 0.5)), milliseconds(quantile(took, 0.99)),
		1000*reconcile.quantile(0.5), reconcile.count/uniteds, (writesOf(afterText)-writesOf(beforeText))/uniteds, statusWrites/uniteds)
	return nil
}

// measureGrowth scales a UnitedDeployment, and five Deployments, from 0 to 1,000 pods in turn.
func (b *unitedBench) measureGrowth(ctx context.Context, pairs int) error {
	if err := b.ApplyYAML(ctx, b.namespace, strings.Replace(unitedOf("united"), "replicas: 5", "replicas: 0", 1)); err != nil {
		return err
	}
	for i := range subsetsOfEach {
		if err := b.ApplyYAML(ctx, b.namespace, fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: plain-%[2]d, labels: {of: plain}}
spec: {replicas: 0, selector: {matchLabels: {app: %[1]s, n: "%[2]d"}}, template: `+strings.Replace(podTemplateOfBench, "{app: %[1]s}", `{app: %[1]s, n: "%[2]d"}`, 1)+`}
`, "plain", i)); err != nil {
			return err
		}
	}
	grow := map[string]func(replicas int) error{
		"united": func(replicas int) error { return b.scale(ctx, "united", replicas) },
		"plain": func(replicas int) error {
			for i := range subsetsOfEach {
				if _, err := b.Client.AppsV1().Deployments(b.namespace).Patch(ctx, fmt.Sprintf("plain-%d", i), types.MergePatchType,
					fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas/subsetsOfEach), metav1.PatchOptions{}); err != nil {
					return err
				}
			}
			return nil
		},
	}
	measure := func(kind string) (seconds float64, err error) {
		started := time.Now()
		for _, replicas := range []int{growth, 0} {
			if err := grow[kind](replicas); err != nil {
				return 0, err
			}
			if err := b.WaitFor(ctx, fmt.Sprintf("%d pods of %s", replicas, kind), func(ctx context.Context) (string, error) {
				return b.missing(ctx, kind, replicas)
			}); err != nil {
				return 0, err
			}
			if replicas > 0 {
				seconds = time.Since(started).Seconds()
			}
		}
		return seconds, nil
	}
	fmt.Printf("\nfrom 0 to %d pods over %d subsets; seconds until all are ready\n%-6s %8s %8s %8s\n", growth, subsetsOfEach, "pair", "united", "plain", "ratio")
	var ratios []float64
	for i := range pairs + 1 {
		order := []string{"united", "plain"}
		if i%2 == 1 {
			order = []string{"plain", "united"}
		}
		took := map[string]float64{}
		for _, kind := range order {
			seconds, err := measure(kind)
			if err != nil {
				return err
			}
			took[kind] = seconds
		}
		if i == 0 {
			continue // it warms caches
		}
		ratios = append(ratios, took["united"]/took["plain"])
		fmt.Printf("%-6d %8.2f %8.2f %8.2f\n", i, took["united"], took["plain"], took["united"]/took["plain"])
	}
	fmt.Printf("median of the ratios %.2f\n", median(ratios))
	return nil
}

// missing says what is missing until a kind has so many ready pods, and no others. It reads the Deployments, which costs both kinds the same.
func (b *unitedBench) missing(ctx context.Context, kind string, replicas int) (string, error) {
	selector := "of=plain"
	if kind == "united" {
		selector = "app=united"
	}
	list, err := b.Client.AppsV1().Deployments(b.namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return "", err
	}
	ready, all := 0, 0
	for i := range list.Items {
		ready += int(list.Items[i].Status.ReadyReplicas)
		all += int(list.Items[i].Status.Replicas)
	}
	if ready != replicas || all != replicas {
		return fmt.Sprintf("%d of %d are ready", ready, all), nil
	}
	if replicas > 0 {
		return "", nil
	}
	pods, err := b.Client.CoreV1().Pods(b.namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + kind, Limit: 1})
	if err != nil || len(pods.Items) == 0 {
		return "", err
	}
	return "some are terminating", nil
}

func unitedMetrics(ctx context.Context, cluster *harness.Cluster) (metrics, error) {
	text, err := harness.UnitedMetrics(ctx, cluster.Sandbox)
	return metrics(text), err
}
