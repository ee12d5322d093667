// Command federation measures what FederatedReplicaSets cost (`make bench-federation`), on a hub and three members with everything in them: how long after a scale-up the last pod has a
// node, beside plain ReplicaSets that are scaled in the members by hand, in turn, with and without the hub's share of requests, and what the hub's controller uses at rest.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/cmd/sandbox/federated"
	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	"github.com/berth-project/berth/test/harness"
)

const (
	memberCount = 3
	namespace   = "bench"
	// writers is how many writes are sent at the same time, to the hub or to the members.
	writers = 10
	timeout = 3 * time.Minute
)

type settings struct {
	workloads, replicas, growth, pairs int
	rest                               time.Duration
}

func main() {
	var s settings
	flag.IntVar(&s.workloads, "workloads", 100, "FederatedReplicaSets, and as many ReplicaSets beside them in each member")
	flag.IntVar(&s.replicas, "replicas", 3, "replicas of each before a scale-up")
	flag.IntVar(&s.growth, "growth", 300, "pods that a scale-up adds")
	flag.IntVar(&s.pairs, "pairs", 5, "measured rounds, after one that is not counted")
	flag.DurationVar(&s.rest, "rest", 30*time.Second, "for how long the hub is at rest")
	flag.Parse()
	ctrllog.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, s)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-federation:", err)
		os.Exit(1)
	}
}

// bench is a hub and its members.
type bench struct {
	settings
	*federated.Federation
	hub     client.Client
	members []client.Client

	mu    sync.Mutex
	bound map[string]int // pods with a node that are not being deleted, by federated and plain
	all   map[string]int // all pods
	last  time.Time      // of the last change
	pods  map[string]podState
}

type podState struct {
	kind  string
	bound bool
}

const (
	byHub  = "federated"
	byHand = "plain"
	// floor is by hand, with the requests to the hub that nobody can avoid.
	floor = "floor"
)

var kinds = []string{byHub, byHand, floor}

// podsOf is the label of the pods that a scale-up of a kind makes.
func podsOf(kind string) string {
	if kind == floor {
		return byHand
	}
	return kind
}

func run(ctx context.Context, s settings) (err error) {
	dir, err := os.MkdirTemp("", "berth-bench-federation-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	f, err := federated.Start(ctx, sandbox.Config{Name: "bench-federation", Dir: filepath.Join(dir, "federation"), BinDir: harness.BinDir()}, memberCount)
	if err != nil {
		return err
	}
	defer f.Stop()
	b := &bench{settings: s, Federation: f, bound: map[string]int{}, all: map[string]int{}, pods: map[string]podState{}}
	if err := b.prepare(ctx); err != nil {
		return err
	}
	if err := b.measureRest(ctx); err != nil {
		return err
	}
	if err := b.measureScaling(ctx, "one of them", 1); err != nil {
		return err
	}
	return b.measureScaling(ctx, "all of them", s.workloads)
}

func (b *bench) prepare(ctx context.Context) error {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	for i, cluster := range b.Clusters {
		config := cluster.RESTConfig()
		config.QPS, config.Burst = 1000, 2000
		c, err := client.New(config, client.Options{Scheme: scheme})
		if err != nil {
			return err
		}
		if err := c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{v1alpha1.AllowedLabel: "true"}}}); err != nil {
			return err
		}
		if i == 0 {
			b.hub = c
			continue
		}
		b.members = append(b.members, c)
		if err := b.addNodes(ctx, cluster); err != nil {
			return err
		}
		watched, err := ctrlcache.New(config, ctrlcache.Options{Scheme: scheme, DefaultNamespaces: map[string]ctrlcache.Config{namespace: {}}})
		if err != nil {
			return err
		}
		informer, err := watched.GetInformer(ctx, &corev1.Pod{}, ctrlcache.BlockUntilSynced(false))
		if err != nil {
			return err
		}
		see := func(object any) { b.see(cluster.Name, object, false) }
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: see, UpdateFunc: func(_, object any) { see(object) }, DeleteFunc: func(object any) { b.see(cluster.Name, object, true) },
		}); err != nil {
			return err
		}
		go func() { _ = watched.Start(ctx) }() // without it, waiting times out
	}
	creating, ctx2 := errgroup.WithContext(ctx)
	creating.SetLimit(writers)
	for i := range b.workloads {
		creating.Go(func() error { return b.create(ctx2, i) })
	}
	if err := creating.Wait(); err != nil {
		return err
	}
	if _, err := b.await(ctx, byHub, b.workloads*b.replicas); err != nil {
		return err
	}
	_, err := b.await(ctx, byHand, b.workloads*b.replicas)
	return err
}

// addNodes adds three nodes that have room for all pods.
func (b *bench) addNodes(ctx context.Context, cluster federated.Cluster) error {
	var nodes []*corev1.Node
	for i := range 3 {
		node := sandbox.NewNode(fmt.Sprint("node-", i), "zone-a", nil, nil, sandbox.Allocatable(resource.MustParse("1000"), resource.MustParse("1000Gi")))
		for _, list := range []corev1.ResourceList{node.Status.Allocatable, node.Status.Capacity} {
			list[corev1.ResourcePods] = *resource.NewQuantity(5000, resource.DecimalSI)
		}
		nodes = append(nodes, node)
	}
	return cluster.CreateNodes(ctx, nodes)
}

const template = `{metadata: {labels: {app: %[1]s, kind: %[2]s}}, spec: {terminationGracePeriodSeconds: 0, containers: [{name: main, image: "registry.k8s.io/pause:3.10", resources: {requests: {cpu: 10m, memory: 16Mi}}}]}}`

func nameOf(kind string, i int) string { return fmt.Sprintf("%s-%d", kind, i) }

func (b *bench) create(ctx context.Context, i int) error {
	name := nameOf(byHub, i)
	frs := &v1alpha1.FederatedReplicaSet{}
	if err := yaml.UnmarshalStrict(fmt.Appendf(nil, `
metadata: {name: %[1]s, namespace: `+namespace+`}
spec: {replicas: %[3]d, selector: {matchLabels: {app: %[1]s}}, preferences: {rebalance: true, clusters: {"*": {weight: 1}}}, template: `+template+`}
`, name, byHub, b.replicas), frs); err != nil {
		return err
	}
	if err := b.hub.Create(ctx, frs); err != nil {
		return err
	}
	name = nameOf(byHand, i)
	for at, member := range b.members {
		set := &appsv1.ReplicaSet{}
		if err := yaml.UnmarshalStrict(fmt.Appendf(nil, `
metadata: {name: %[1]s, namespace: `+namespace+`}
spec: {replicas: %[3]d, selector: {matchLabels: {app: %[1]s}}, template: `+template+`}
`, name, byHand, partOf(b.replicas, at)), set); err != nil {
			return err
		}
		if err := member.Create(ctx, set); err != nil {
			return err
		}
	}
	return nil
}

// partOf is a member's part of so many replicas.
func partOf(replicas, member int) int {
	part := replicas / memberCount
	if member < replicas%memberCount {
		part++
	}
	return part
}

func (b *bench) see(cluster string, object any, gone bool) {
	pod, is := object.(*corev1.Pod)
	if !is {
		pod, is = object.(cache.DeletedFinalStateUnknown).Obj.(*corev1.Pod)
		if !is {
			return
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	key := cluster + string(pod.UID)
	before, known := b.pods[key]
	if known {
		b.all[before.kind]--
		if before.bound {
			b.bound[before.kind]--
		}
	}
	delete(b.pods, key)
	if !gone {
		now := podState{pod.Labels["kind"], pod.Spec.NodeName != "" && pod.DeletionTimestamp == nil}
		b.pods[key] = now
		b.all[now.kind]++
		if now.bound {
			b.bound[now.kind]++
		}
		if known && now == before {
			return
		}
	}
	b.last = time.Now()
}

// await waits until so many pods of a kind have a node, and there are no others. It returns when the last one got it.
func (b *bench) await(ctx context.Context, kind string, pods int) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		b.mu.Lock()
		bound, all, last := b.bound[kind], b.all[kind], b.last
		b.mu.Unlock()
		if bound == pods && all == pods {
			return last, nil
		}
		select {
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("%d of %d %s pods have a node, and there are %d: %w", bound, pods, kind, all, ctx.Err())
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// scale scales the first so many workloads of a kind, as a user would: with one write to the hub, or one to each member. The floor has a write to the hub, one more for the status, and then those to the members.
func (b *bench) scale(ctx context.Context, kind string, workloads, replicas int) error {
	writing, ctx := errgroup.WithContext(ctx)
	writing.SetLimit(writers)
	patch := func(to client.Client, object client.Object, name, format string, value int) error {
		object.SetNamespace(namespace)
		object.SetName(name)
		return to.Patch(ctx, object, client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, format, value)))
	}
	const ofReplicas = `{"spec":{"replicas":%d}}`
	inMember := func(i, at int) error {
		return patch(b.members[at], &appsv1.ReplicaSet{}, nameOf(byHand, i), ofReplicas, partOf(replicas, at))
	}
	inHub := func(i int, format string, value int) error {
		return patch(b.hub, &v1alpha1.FederatedReplicaSet{}, nameOf(byHub, i), format, value)
	}
	for i := range workloads {
		switch kind {
		case byHub:
			writing.Go(func() error { return inHub(i, ofReplicas, replicas) })
		case byHand:
			for at := range b.members {
				writing.Go(func() error { return inMember(i, at) })
			}
		case floor:
			writing.Go(func() error {
				const nothing = `{"metadata":{"annotations":{"bench":"%d"}}}`
				err := errors.Join(inHub(i, nothing, 2*replicas), inHub(i, nothing, 2*replicas+1))
				for at := range b.members {
					err = errors.Join(err, inMember(i, at))
				}
				return err
			})
		}
	}
	return writing.Wait()
}

// measureScaling adds pods to so many of the workloads, by the hub and by hand in turn.
func (b *bench) measureScaling(ctx context.Context, what string, workloads int) error {
	more := b.growth / workloads
	fmt.Printf("\n%d more pods for %s, %d workloads in %d members; seconds until the last has a node, and ratios to %s\n", more*workloads, what, b.workloads, memberCount, byHand)
	row("round", func(kind string) string { return kind })
	rest := b.workloads * b.replicas
	took := map[string][]float64{}
	ratios := map[string][]float64{}
	used, requests := map[string]map[string][]float64{}, map[string]map[string][]float64{}
	for _, kind := range kinds {
		used[kind], requests[kind] = map[string][]float64{}, map[string][]float64{}
	}
	for i := range b.pairs + 1 {
		order := slices.Clone(kinds)
		if i%2 == 1 {
			slices.Reverse(order)
		}
		seconds := map[string]float64{}
		for _, kind := range order {
			if err := b.quiet(ctx); err != nil {
				return err
			}
			sentBefore, err := b.requests(ctx)
			if err != nil {
				return err
			}
			cpuBefore, err := b.cpu()
			if err != nil {
				return err
			}
			began := time.Now()
			if err := b.scale(ctx, kind, workloads, b.replicas+more); err != nil {
				return err
			}
			ended, err := b.await(ctx, podsOf(kind), rest+more*workloads)
			if err != nil {
				return err
			}
			seconds[kind] = ended.Sub(began).Seconds()
			cpu, err := b.cpu()
			if err != nil {
				return err
			}
			all := 0.0
			for name := range cpu {
				seconds := (cpu[name] - cpuBefore[name]).Seconds()
				used[kind][name] = append(used[kind][name], seconds)
				all += seconds
			}
			used[kind]["all"] = append(used[kind]["all"], all)
			sent, err := b.requests(ctx)
			if err != nil {
				return err
			}
			for name := range sent {
				requests[kind][name] = append(requests[kind][name], sent[name]-sentBefore[name])
			}
			if err := b.scale(ctx, kind, workloads, b.replicas); err != nil {
				return err
			}
			if _, err := b.await(ctx, podsOf(kind), rest); err != nil {
				return err
			}
		}
		if i == 0 {
			continue // it warms caches
		}
		for kind, n := range seconds {
			took[kind] = append(took[kind], n)
			ratios[kind] = append(ratios[kind], n/seconds[byHand])
		}
		row(fmt.Sprint(i), func(kind string) string { return fmt.Sprintf("%.2f", seconds[kind]) })
	}
	row("median", func(kind string) string { return fmt.Sprintf("%.2f", median(took[kind])) })
	row("ratio", func(kind string) string { return fmt.Sprintf("%.2f", median(ratios[kind])) })
	for _, name := range slices.Sorted(maps.Keys(used[byHub])) {
		row("CPU seconds, "+name, func(kind string) string { return fmt.Sprintf("%.2f", median(used[kind][name])) })
	}
	for _, name := range slices.Sorted(maps.Keys(requests[byHub])) {
		if hub, hand := median(requests[byHub][name]), median(requests[byHand][name]); math.Abs(hub-hand) >= 1 {
			row("requests, "+name, func(kind string) string { return fmt.Sprintf("%.0f", median(requests[kind][name])) })
		}
	}
	return nil
}

// row prints a value of each kind.
func row(of string, value func(kind string) string) {
	fmt.Printf("%-46s", of)
	for _, kind := range kinds {
		fmt.Printf(" %10s", value(kind))
	}
	fmt.Println()
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	if len(sorted) == 0 {
		return 0
	}
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// cpu is the CPU time of each component, of the hub and of all members together.
func (b *bench) cpu() (map[string]time.Duration, error) {
	all := map[string]time.Duration{}
	for i, cluster := range b.Clusters {
		used, err := (&harness.Cluster{Sandbox: cluster.Sandbox}).CPU()
		if err != nil {
			return nil, err
		}
		for name, d := range used {
			switch {
			case name == harness.OtherProcesses, name == harness.ThisProcess:
			case i > 0:
				all["members "+name] += d
			default:
				all["hub "+name] += d
			}
		}
	}
	return all, nil
}

// requests counts those that the API servers have answered, of the hub and of all members together, by verb and resource.
func (b *bench) requests(ctx context.Context) (map[string]float64, error) {
	all := map[string]float64{}
	for i, cluster := range b.Clusters {
		text, err := kubernetes.NewForConfigOrDie(cluster.RESTConfig()).RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
		if err != nil {
			return nil, err
		}
		parser := expfmt.NewTextParser(model.LegacyValidation)
		families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
		if err != nil {
			return nil, err
		}
		where := "hub"
		if i > 0 {
			where = "members"
		}
		for _, metric := range families["apiserver_request_total"].GetMetric() {
			labels := map[string]string{}
			for _, pair := range metric.GetLabel() {
				labels[pair.GetName()] = pair.GetValue()
			}
			all[strings.Join([]string{where, labels["verb"], path.Join(labels["resource"], labels["subresource"])}, " ")] += metric.GetCounter().GetValue()
		}
	}
	return all, nil
}

func (b *bench) usedDuring(ctx context.Context, d time.Duration) (time.Duration, error) {
	before, err := b.cpu()
	if err != nil {
		return 0, err
	}
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(d):
	}
	after, err := b.cpu()
	return after["hub "+product.United] - before["hub "+product.United], err
}

// quiet waits until the hub's controller does nearly nothing.
func (b *bench) quiet(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		if used, err := b.usedDuring(ctx, time.Second); err != nil || used <= 50*time.Millisecond {
			return err
		}
	}
}

func (b *bench) measureRest(ctx context.Context) error {
	if err := b.quiet(ctx); err != nil {
		return err
	}
	used, err := b.usedDuring(ctx, b.rest)
	if err != nil {
		return err
	}
	fmt.Printf("%d FederatedReplicaSets in %d members, at rest for %s: %.2f %% of a core\n", b.workloads, memberCount, b.rest, 100*used.Seconds()/b.rest.Seconds())
	return nil
}
