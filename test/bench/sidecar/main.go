// Command sidecar measures what an update of a SidecarSet costs (`make bench-sidecar`), on a sandbox: how often berth-controller writes each pod, counted in the API server's audit log,
// how long the update takes, and what the controller uses meanwhile and at rest. It fails if a pod is written more often than it must be, or if the controller works at rest.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
	"github.com/berth-project/berth/test/harness"
)

const (
	name = "log"
	// podsOfNode is how many pods there are for each node.
	podsOfNode = 60
	// timeout bounds the wait for all pods, which depends on the machine.
	timeout = 15 * time.Minute
	// mostAtRest is the share of a core that the controller may use at rest.
	mostAtRest = 0.01
)

type settings struct {
	pods int
	max  string
	rest time.Duration
}

func main() {
	var s settings
	flag.IntVar(&s.pods, "pods", 3000, "pods with the sidecar")
	flag.StringVar(&s.max, "max-unavailable", "10%", "maxUnavailable of the SidecarSet")
	flag.DurationVar(&s.rest, "rest", time.Minute, "for how long the controller is at rest")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, s)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-sidecar:", err)
		os.Exit(1)
	}
}

type bench struct {
	settings
	*harness.Cluster
	namespace string
}

func run(ctx context.Context, s settings) (err error) {
	dir, err := os.MkdirTemp("", "berth-bench-sidecar-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cluster, err := harness.Start(ctx, sandbox.Config{
		Name: "bench-sidecar", Dir: dir, Nodes: s.pods/podsOfNode + 1, NodeCPU: resource.MustParse("100"), NodeMemory: resource.MustParse("1000Gi"), AuditLog: true,
	}, product.Options{SidecarSets: true})
	if err != nil {
		return err
	}
	defer cluster.Sandbox.Stop()
	b := &bench{settings: s, Cluster: cluster}
	if b.namespace, err = b.CreateNamespace(ctx, "bench"); err != nil {
		return err
	}
	began := time.Now()
	if err := b.apply(ctx, "log:1", "10m"); err != nil {
		return err
	}
	if err := b.await(ctx, 0); err != nil {
		return err
	}
	if err := b.ApplyYAML(ctx, b.namespace, fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: %d
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {terminationGracePeriodSeconds: 0, containers: [{name: main, image: "registry.k8s.io/pause:3.10", resources: {requests: {cpu: 10m, memory: 16Mi}}}]}
`, b.pods)); err != nil {
		return err
	}
	if err := b.await(ctx, b.pods); err != nil {
		return err
	}
	fmt.Printf("%d pods with a sidecar run after %.0f s, with one replica of the controller.\n\n", b.pods, time.Since(began).Seconds())
	fmt.Printf("%-22s %12s %8s %8s %8s %12s %8s %8s\n", "change", "writes/pod", "writes", "failed", "seconds", "CPU seconds", "RSS MiB", "heap MiB")
	return errors.Join(
		b.measureUpdate(ctx, "image", "log:2", "10m", 1),
		b.measureUpdate(ctx, "image and resources", "log:3", "20m", 2),
		b.measureRest(ctx),
	)
}

func (b *bench) apply(ctx context.Context, image, cpu string) error {
	return b.ApplyYAML(ctx, "", fmt.Sprintf(`
apiVersion: apps.kruise.io/v1beta1
kind: SidecarSet
metadata: {name: %s}
spec:
  namespace: %s
  selector: {matchLabels: {app: web}}
  containers: [{name: log, image: "%s", resources: {requests: {cpu: %s, memory: 16Mi}}}]
  updateStrategy: {maxUnavailable: "%s"}
`, name, b.namespace, image, cpu, b.max))
}

// await waits until so many pods have the latest version and are ready, by the status.
func (b *bench) await(ctx context.Context, pods int) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		object, err := b.Dynamic.Resource(v1beta1.Resource).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		set := &v1beta1.SidecarSet{}
		if err := k8sruntime.DefaultUnstructuredConverter.FromUnstructured(object.Object, set); err != nil {
			return err
		}
		is := set.Status
		if is.ObservedGeneration == set.Generation && int(is.MatchedPods) == pods && int(is.UpdatedReadyPods) == pods && is.NotInjectedPods == 0 && meta.IsStatusConditionTrue(is.Conditions, v1beta1.ReadyCondition) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("of %d pods %d have sidecars, %d the latest ones, %d of these are ready, and %d have none: %w", pods, is.MatchedPods, is.UpdatedPods, is.UpdatedReadyPods, is.NotInjectedPods, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// measureUpdate changes the SidecarSet, and expects so many writes of each pod.
func (b *bench) measureUpdate(ctx context.Context, what, image, cpu string, want int) error {
	if err := b.quiet(ctx); err != nil {
		return err
	}
	from, err := auditedBytes(b.Sandbox.AuditLog())
	if err != nil {
		return err
	}
	before, err := b.CPU()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := b.apply(ctx, image, cpu); err != nil {
		return err
	}
	if err := b.await(ctx, b.pods); err != nil {
		return err
	}
	took := time.Since(began)
	after, err := b.CPU()
	if err != nil {
		return err
	}
	if err := b.quiet(ctx); err != nil { // so that a late write counts too
		return err
	}
	w, err := b.writesSince(from)
	if err != nil {
		return err
	}
	rss, heap, err := b.memory(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("%-22s %12s %8d %8d %8.1f %12.1f %8.0f %8.0f\n", what, w.perPod(), w.all, w.failed, took.Seconds(), (after[product.Controller] - before[product.Controller]).Seconds(), rss/(1<<20), heap/(1<<20))
	if len(w.ofPods) != b.pods || w.least() != want || w.most() != want {
		return fmt.Errorf("a change of %s: %d pods were written %s times, and %d should be %d times", what, len(w.ofPods), w.perPod(), b.pods, want)
	}
	return nil
}

// writes of pods by berth-controller, whatever their outcome.
type writes struct {
	ofPods      map[string]int
	all, failed int
}

func (w *writes) least() int {
	least := math.MaxInt
	for _, n := range w.ofPods {
		least = min(least, n)
	}
	return least
}

func (w *writes) most() (most int) {
	for _, n := range w.ofPods {
		most = max(most, n)
	}
	return most
}

func (w *writes) perPod() string {
	if w.least() == w.most() {
		return strconv.Itoa(w.most())
	}
	return fmt.Sprintf("%d to %d", w.least(), w.most())
}

func auditedBytes(path string) (int64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// writesSince reads the audit log from a position. The API server writes each request into it before it answers.
func (b *bench) writesSince(from int64) (*writes, error) {
	file, err := os.Open(b.Sandbox.AuditLog())
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if _, err := file.Seek(from, 0); err != nil {
		return nil, err
	}
	found := &writes{ofPods: map[string]int{}}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var event struct {
			Stage, Verb      string
			RequestURI       string
			User             struct{ Username string }
			ImpersonatedUser struct{ Username string }
			ObjectRef        struct{ APIGroup, Resource, Namespace, Name string }
			ResponseStatus   struct{ Code int }
		}
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			return nil, fmt.Errorf("reading the audit log: %w", err)
		}
		isWrite := (event.Verb == "patch" || event.Verb == "update" || event.Verb == "create" || event.Verb == "delete") && !strings.Contains(event.RequestURI, "dryRun=All")
		byController := strings.HasSuffix(event.User.Username+event.ImpersonatedUser.Username, ":berth-controller")
		if event.Stage != "ResponseComplete" || !isWrite || !byController || event.ObjectRef.APIGroup != "" || event.ObjectRef.Resource != "pods" {
			continue
		}
		found.all++
		found.ofPods[event.ObjectRef.Namespace+"/"+event.ObjectRef.Name]++
		if event.ResponseStatus.Code >= 300 {
			found.failed++
		}
	}
	return found, lines.Err()
}

// memory is the controller's resident memory without mapped files, and its live heap, in bytes.
func (b *bench) memory(ctx context.Context) (rss, heap float64, err error) {
	for _, status := range b.Sandbox.Status() {
		if status.Name != product.Controller {
			continue
		}
		if rss, err = harness.ResidentMemory(status.PID); err != nil {
			return 0, 0, err
		}
	}
	text, err := b.ControllerMetrics(ctx)
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(text) {
		if value, found := strings.CutPrefix(line, "go_memstats_next_gc_bytes "); found {
			next, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				return 0, 0, err
			}
			heap = next / 2 // the next collection starts at twice the live heap of the last one
		}
	}
	return rss, heap, nil
}

// usedDuring is how much CPU time the controller uses.
func (b *bench) usedDuring(ctx context.Context, d time.Duration) (time.Duration, error) {
	before, err := b.CPU()
	if err != nil {
		return 0, err
	}
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(d):
	}
	after, err := b.CPU()
	return after[product.Controller] - before[product.Controller], err
}

// quiet waits until the controller does nearly nothing.
func (b *bench) quiet(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		if used, err := b.usedDuring(ctx, 2*time.Second); err != nil || used <= 50*time.Millisecond {
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
	share := used.Seconds() / b.rest.Seconds()
	fmt.Printf("\nat rest for %s: %.2f %% of a core\n", b.rest, 100*share)
	if share >= mostAtRest {
		return fmt.Errorf("at rest the controller uses %.2f %% of a core, and should use less than %.0f %%", 100*share, 100*mostAtRest)
	}
	return nil
}
