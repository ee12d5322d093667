// Command cluster measures what Berth costs the API server for objects that do not use Berth. It compares a control plane on which Berth was never installed
// with one that has Berth and no spread, budget or set. Both run at the same time, and the operations alternate between them. It prints the processor time
// of the API server for each operation, medians over rounds, and their ratio. What the API server uses at rest is a line of its own, and is no part of the operations. With
// -protected, both also have that many pods in another namespace, which a budget protects where Berth is. With -watch, the one without Berth gets as many plain watches of pods and nodes
// as Berth has: the rest is what Berth's admission costs.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/test/harness"
)

// namespace of the measured pods.
const namespace = "measured"

func main() {
	rounds := flag.Int("rounds", 11, "rounds; the medians are over all but the first")
	times := flag.Int("times", 300, "operations of each kind in a round")
	protected := flag.Int("protected", 0, "pods in another namespace, which a budget protects where Berth is")
	watch := flag.Bool("watch", false, "watch on the control plane without Berth what Berth watches: what remains is the cost of its admission")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *rounds, *times, *protected, *watch)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

// plane is a control plane.
type plane struct {
	sandbox *sandbox.Sandbox
	client  kubernetes.Interface
	// used is the processor time of the API server for one operation in each round, by operation.
	used map[string][]time.Duration
	// owner is a ConfigMap that owns pods.
	owner types.UID
	// atRest is its share of a processor in this round without any operation.
	atRest float64
}

// rest is for how long the API servers are measured at rest in each round.
const rest = 4 * time.Second

// resting is the operation of doing nothing for a second.
const resting = "a second at rest"

func run(ctx context.Context, rounds, times, protected int, watch bool) (err error) {
	dir, err := os.MkdirTemp("", "berth-cluster-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	bare, err := sandbox.Start(ctx, sandbox.Config{Name: "bare", Dir: filepath.Join(dir, "bare"), BinDir: harness.BinDir(), Without: []string{sandbox.KWOK}})
	if err != nil {
		return err
	}
	defer bare.Stop()
	cluster, err := harness.Start(ctx, sandbox.Config{Name: "berth", Dir: filepath.Join(dir, "berth"), Without: []string{sandbox.KWOK}}, product.Options{})
	if err != nil {
		return err
	}
	defer cluster.Sandbox.Stop()
	var planes []*plane
	for _, s := range []*sandbox.Sandbox{bare, cluster.Sandbox} {
		client, err := kubernetes.NewForConfig(s.RESTConfig())
		if err != nil {
			return err
		}
		p := &plane{sandbox: s, client: client, used: map[string][]time.Duration{}}
		if err := p.prepare(ctx); err != nil {
			return err
		}
		planes = append(planes, p)
	}
	if err := protect(ctx, planes, cluster, protected); err != nil {
		return err
	}
	if watch {
		if err := planes[0].watchLike(ctx, planes[1]); err != nil {
			return err
		}
	}
	for round := range rounds {
		if err := measureRest(ctx, planes); err != nil {
			return err
		}
		for _, operation := range operations {
			if err := measure(ctx, planes, operation, round, times); err != nil {
				return err
			}
		}
		for _, p := range planes {
			if err := p.tidy(ctx); err != nil {
				return err
			}
		}
	}
	fmt.Printf("milliseconds of CPU of the API server for one operation: medians of %d rounds of %d\n%-24s %8s %8s %8s\n", rounds-1, times, "", "without", "Berth", "ratio")
	for _, operation := range append(operations, operation{name: resting}) {
		var without, with, ratios []float64
		for round := 1; round < rounds; round++ {
			a, b := planes[0].used[operation.name][round], planes[1].used[operation.name][round]
			without, with = append(without, a.Seconds()*1000), append(with, b.Seconds()*1000)
			ratios = append(ratios, float64(b)/float64(a))
		}
		fmt.Printf("%-24s %8.2f %8.2f %8.2f\n", operation.name, median(without), median(with), median(ratios))
	}
	return nil
}

func median(values []float64) float64 {
	slices.Sort(values)
	return (values[(len(values)-1)/2] + values[len(values)/2]) / 2
}

// operation is done many times. The number is different each time.
type operation struct {
	name string
	do   func(ctx context.Context, p *plane, n int) error
}

var operations = []operation{
	{"status of a pod", func(ctx context.Context, p *plane, n int) error {
		patch := fmt.Appendf(nil, `{"status":{"message":"%d","conditions":[{"type":"Ready","status":"True","lastProbeTime":null,"message":"%d"}]}}`, n, n)
		_, err := p.client.CoreV1().Pods(namespace).Patch(ctx, "measured", types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	}},
	{"status of a node", func(ctx context.Context, p *plane, n int) error {
		patch := fmt.Appendf(nil, `{"status":{"conditions":[{"type":"Ready","status":"True","message":"%d"}]}}`, n)
		_, err := p.client.CoreV1().Nodes().Patch(ctx, "measured", types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	}},
	{"creation of a pod", func(ctx context.Context, p *plane, n int) error {
		_, err := p.client.CoreV1().Pods(namespace).Create(ctx, newPod("new-", n), metav1.CreateOptions{})
		return err
	}},
	{"creation of an owned pod", func(ctx context.Context, p *plane, n int) error {
		pod := newPod("owned-", n)
		// The owner exists, so that the garbage collector leaves the pod alone. It is of a kind whose controller does not look at pods.
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: p.owner, Controller: ptr.To(true)}}
		_, err := p.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
		return err
	}},
	{"eviction of a pod", func(ctx context.Context, p *plane, n int) error {
		return p.client.CoreV1().Pods(namespace).EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("new-", n)}})
	}},
	{"annotation of a pod", func(ctx context.Context, p *plane, n int) error {
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"example.com/n":"%d"}}}`, n)
		_, err := p.client.CoreV1().Pods(namespace).Patch(ctx, "measured", types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}},
	{"list of 100 pods", func(ctx context.Context, p *plane, _ int) error {
		_, err := p.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{Limit: 100})
		return err
	}},
}

// podNamed is a small pod on the measured node. It tolerates that nobody reports for the node.
func podNamed(name string) *corev1.Pod {
	container := corev1.Container{Name: "main", Image: "registry.k8s.io/pause:3.10", Env: []corev1.EnvVar{{Name: "A", Value: "a"}, {Name: "B", Value: "b"}}}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": "measured"}},
		Spec: corev1.PodSpec{NodeName: "measured", Containers: []corev1.Container{container}, AutomountServiceAccountToken: new(bool),
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}}}
}

// newPod is a pod that tidy removes.
func newPod(prefix string, n int) *corev1.Pod {
	pod := podNamed(fmt.Sprint(prefix, n))
	pod.Labels["new"] = ""
	return pod
}

func (p *plane) prepare(ctx context.Context) error {
	if err := p.sandbox.CreateNodes(ctx, []*corev1.Node{sandbox.NewNode("measured", "zone-a", nil, nil, nil)}); err != nil {
		return err
	}
	if _, err := p.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	owner, err := p.client.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	p.owner = owner.UID
	for i := range 100 {
		if _, err := p.client.CoreV1().Pods(namespace).Create(ctx, podNamed(fmt.Sprint("listed-", i)), metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	_, err = p.client.CoreV1().Pods(namespace).Create(ctx, podNamed("measured"), metav1.CreateOptions{})
	return err
}

// protect creates pods in a namespace of their own, and a budget that covers them if the control plane has Berth. It waits until all have the label.
func protect(ctx context.Context, planes []*plane, cluster *harness.Cluster, pods int) error {
	if pods == 0 {
		return nil
	}
	const other = "protected"
	for _, p := range planes {
		if _, err := p.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: other}}, metav1.CreateOptions{}); err != nil {
			return err
		}
		for i := range pods {
			pod := podNamed(fmt.Sprint("protected-", i))
			pod.Namespace = other
			if _, err := p.client.CoreV1().Pods(other).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
				return err
			}
		}
	}
	const pub = `{apiVersion: policy.kruise.io/v1beta1, kind: PodUnavailableBudget, metadata: {name: all}, spec: {selector: {matchLabels: {app: measured}}, minAvailable: 1}}`
	if err := cluster.ApplyYAML(ctx, other, pub); err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(ctx, time.Second, 10*time.Minute, true, func(ctx context.Context) (bool, error) {
		labelled, err := planes[1].client.CoreV1().Pods(other).List(ctx, metav1.ListOptions{LabelSelector: v1beta1.ProtectedLabel})
		return err == nil && len(labelled.Items) == pods, err
	})
}

// watchLike opens the watches of pods and nodes that the other control plane has and this one has not. They end with the context.
func (p *plane) watchLike(ctx context.Context, other *plane) error {
	for _, resource := range []string{"pods", "nodes"} {
		mine, err := p.watches(ctx, resource)
		if err != nil {
			return err
		}
		others, err := other.watches(ctx, resource)
		if err != nil {
			return err
		}
		fmt.Printf("watches of %s: %d without Berth, %d with it\n", resource, mine, others)
		for range others - mine {
			stream, err := p.client.CoreV1().RESTClient().Get().Resource(resource).Param("watch", "true").SetHeader("Accept", runtime.ContentTypeProtobuf).Stream(ctx)
			if err != nil {
				return fmt.Errorf("watching %s: %w", resource, err)
			}
			go func() { _, _ = io.Copy(io.Discard, stream) }()
		}
	}
	return nil
}

// watches is how many watches of the resource the API server serves.
func (p *plane) watches(ctx context.Context, resource string) (n int, _ error) {
	text, err := p.client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return 0, err
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return 0, err
	}
	for _, metric := range families["apiserver_longrunning_requests"].GetMetric() {
		labels := map[string]string{}
		for _, pair := range metric.GetLabel() {
			labels[pair.GetName()] = pair.GetValue()
		}
		if labels["resource"] == resource && labels["verb"] == "WATCH" {
			n += int(metric.GetGauge().GetValue())
		}
	}
	return n, nil
}

// tidy removes the pods of a round: in a larger namespace everything takes longer.
func (p *plane) tidy(ctx context.Context) error {
	now := metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}
	return p.client.CoreV1().Pods(namespace).DeleteCollection(ctx, now, metav1.ListOptions{LabelSelector: "new"})
}

// measureRest measures all control planes at the same time.
func measureRest(ctx context.Context, planes []*plane) error {
	before := make([]time.Duration, len(planes))
	var err error
	for i, p := range planes {
		if before[i], err = p.serverCPU(); err != nil {
			return err
		}
	}
	began := time.Now()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(rest):
	}
	for i, p := range planes {
		after, err := p.serverCPU()
		if err != nil {
			return err
		}
		p.atRest = (after - before[i]).Seconds() / time.Since(began).Seconds()
		p.used[resting] = append(p.used[resting], time.Duration(p.atRest*float64(time.Second)))
	}
	return nil
}

// turn is how many operations a control plane does before the other one does as many, so that both meet the same state of the machine.
const turn = 50

// measure does an operation some times on each control plane, in turns.
func measure(ctx context.Context, planes []*plane, operation operation, round, times int) error {
	used := make([]time.Duration, len(planes))
	for from := 0; from < times; from += turn {
		for i := range planes {
			at := (i + from/turn + round) % len(planes)
			took, err := planes[at].cpuOf(ctx, operation, round*times+from, min(turn, times-from))
			if err != nil {
				return err
			}
			used[at] += took
		}
	}
	for i, p := range planes {
		p.used[operation.name] = append(p.used[operation.name], used[i]/time.Duration(times))
	}
	return nil
}

// cpuOf is the processor time of the API server for some operations, without what it uses at rest.
func (p *plane) cpuOf(ctx context.Context, operation operation, from, times int) (time.Duration, error) {
	before, err := p.serverCPU()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	for i := range times {
		if err := operation.do(ctx, p, from+i); err != nil {
			return 0, fmt.Errorf("%s: %w", operation.name, err)
		}
	}
	after, err := p.serverCPU()
	return after - before - time.Duration(p.atRest*float64(time.Since(began))), err
}

func (p *plane) serverCPU() (used time.Duration, err error) {
	for _, status := range p.sandbox.Status() {
		if status.Name == sandbox.APIServer {
			cpu, err := harness.ProcessCPU(status.PID)
			if err != nil {
				return 0, err
			}
			used += cpu
		}
	}
	return used, nil
}
