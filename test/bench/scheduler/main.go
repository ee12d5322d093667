// Command scheduler compares Berth's scheduler with the stock one on a real API server. It prints and stores the results.
//
// In a run, all pods are created while no scheduler runs. Then one scheduler starts. The run measures the time from the first bind to the last, as a
// watch sees them, and the scheduler's processor time in between. So the rate at which a client can create pods does not matter, and the queue is
// full from the beginning. On both sides the start of the scheduler does not count: its first lists, and Berth's wait for binds of a predecessor. The
// two alternate in the order AB BA AB and so on, on one cluster whose nodes are only API objects. They share the machine only with etcd and the API
// server.
//
// Machines are noisy, so compare the ratios of pairs and their medians. The results are stored in the format of Go benchmarks, for benchstat.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-project/berth/test/harness"
)

// runLimit bounds one run.
const runLimit = 5 * time.Minute

type options struct {
	nodes, pods, pairs, freed int
	cases                     *regexp.Regexp
	// out is the directory for the results. If it is empty, they are only printed.
	out string
	// profile is how many seconds of each run a CPU profile covers. It is stored in out, and costs the scheduler some time. 0 means no profile.
	profile int
}

func main() {
	var o options
	cases := flag.String("cases", ".", "regular expression of the cases to run; the last one is called waiting")
	flag.IntVar(&o.nodes, "nodes", 5000, "nodes of the cluster")
	flag.IntVar(&o.pods, "pods", 10000, "pods of a run")
	flag.IntVar(&o.pairs, "pairs", 6, "runs of each scheduler in each case")
	flag.IntVar(&o.freed, "freed", 3000, "slots that are freed in the case waiting, a hundred a second")
	flag.StringVar(&o.out, "out", "", "directory for stock.txt and berth.txt, for benchstat")
	flag.IntVar(&o.profile, "profile", 0, "seconds of each run of which to store a CPU profile in -out")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	var err error
	if o.cases, err = regexp.Compile(*cases); err == nil {
		_, err = run(ctx, o)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// runner runs cases on one cluster.
type runner struct {
	options
	dir          string
	cluster      *cluster
	stock, berth side
}

// sample is what one run measured.
type sample struct {
	podsPerSecond float64
	cpuPerPod     time.Duration
	pools         map[string]int
}

// outcome contains the results of one case, pair by pair.
type outcome struct {
	*benchmark
	stock, berth []sample
}

func run(ctx context.Context, o options) (outcomes []outcome, err error) {
	dir, err := os.MkdirTemp("", "berth-bench-scheduler-")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			fmt.Fprintln(os.Stderr, "the logs are in", dir)
			return
		}
		err = os.RemoveAll(dir)
	}()
	began := time.Now()
	r := &runner{options: o, dir: dir}
	if r.cluster, err = startCluster(ctx, filepath.Join(dir, "cluster"), o.nodes, podsPerNode(o.nodes, o.pods)); err != nil {
		return nil, err
	}
	defer r.cluster.Sandbox.Stop()
	if r.stock, r.berth, err = sides(r.cluster.Sandbox.Kubeconfig()); err != nil {
		return nil, err
	}
	fmt.Printf("%d nodes after %.0f s\n", o.nodes, time.Since(began).Seconds())
	for i := range benchmarks {
		if !o.cases.MatchString(benchmarks[i].name) {
			continue
		}
		outcome, err := r.compare(ctx, &benchmarks[i])
		if err != nil {
			return nil, fmt.Errorf("case %s: %w", benchmarks[i].name, err)
		}
		outcomes = append(outcomes, outcome)
	}
	if err := report(os.Stdout, outcomes, o); err != nil {
		return nil, err
	}
	if o.cases.MatchString("waiting") {
		result, err := r.measureWaiting(ctx, o.pods, o.freed)
		if err != nil {
			return nil, fmt.Errorf("case waiting: %w", err)
		}
		reportWaiting(os.Stdout, result)
	}
	return outcomes, nil
}

// compare runs the two schedulers in turn.
func (r *runner) compare(ctx context.Context, b *benchmark) (outcome, error) {
	o := outcome{benchmark: b}
	for pair := range r.pairs {
		order := []side{r.stock, r.berth}
		if pair%2 == 1 {
			order = []side{r.berth, r.stock}
		}
		for _, s := range order {
			measured, err := r.measure(ctx, b, s)
			if err != nil {
				return o, fmt.Errorf("%s, pair %d: %w", s.name, pair+1, err)
			}
			if s.name == r.stock.name {
				o.stock = append(o.stock, measured)
			} else {
				o.berth = append(o.berth, measured)
			}
			fmt.Printf("%-18s pair %d %-6s %7.0f pods/s %6.2f ms CPU per pod  %v\n", b.name, pair+1, s.name,
				measured.podsPerSecond, float64(measured.cpuPerPod.Microseconds())/1000, measured.pools)
		}
	}
	return o, nil
}

// prepare makes the workloads of a case and all pods, and watches for binds.
func (r *runner) prepare(ctx context.Context, b *benchmark, withSpread bool, pods int) (namespace string, seen *binds, err error) {
	if namespace, err = r.cluster.newNamespace(ctx, b.name); err != nil {
		return "", nil, err
	}
	samples := make([]*corev1.Pod, min(b.workloads, pods))
	creating, createCtx := errgroup.WithContext(ctx)
	creating.SetLimit(writers)
	for i := range samples {
		creating.Go(func() (err error) {
			samples[i], err = r.cluster.createWorkload(createCtx, namespace, fmt.Sprintf("web-%d", i), pods/len(samples), b, withSpread)
			return err
		})
	}
	if err := creating.Wait(); err != nil {
		return "", nil, err
	}
	if err := r.cluster.createPods(ctx, namespace, samples, pods); err != nil {
		return "", nil, err
	}
	seen, err = r.cluster.watchBinds(ctx, namespace, poolOf)
	return namespace, seen, err
}

// poolOf returns the pool in a node's name.
func poolOf(node string) string {
	for _, pool := range []string{poolA, poolB, poolC, poolSmall} {
		if len(node) > len(pool) && node[:len(pool)+1] == pool+"-" {
			return pool
		}
	}
	return node
}

// measure runs one scheduler until all pods are bound.
func (r *runner) measure(ctx context.Context, b *benchmark, s side) (measured sample, err error) {
	ctx, cancel := context.WithTimeout(ctx, runLimit)
	defer cancel()
	namespace, binds, err := r.prepare(ctx, b, s.name == r.berth.name, r.pods)
	if err != nil {
		return measured, err
	}
	p, err := s.start(ctx, r.dir, r.cluster.Sandbox.Kubeconfig(), r.cluster.Sandbox.RESTConfig().BearerToken)
	if err != nil {
		return measured, err
	}
	profiled := make(chan error, 1)
	go func() { profiled <- r.storeProfile(ctx, p, binds, b.name+"-"+s.name) }()
	before, after, err := r.cpuWhile(ctx, p, binds)
	if err := errors.Join(err, <-profiled, p.stop()); err != nil {
		return measured, err
	}
	times, pools := binds.result()
	first, last := times[0], times[len(times)-1]
	measured = sample{podsPerSecond: float64(len(times)-1) / last.Sub(first).Seconds(), cpuPerPod: (after - before) / time.Duration(len(times)), pools: pools}
	for pool, percent := range b.want {
		if pools[pool] != r.pods*percent/100 {
			return measured, fmt.Errorf("%v: want %d %% in %s", pools, percent, pool)
		}
	}
	return measured, r.cluster.clear(ctx, namespace)
}

// storeProfile stores a profile that begins at the first bind.
func (r *runner) storeProfile(ctx context.Context, p *process, binds *binds, name string) error {
	if r.profile == 0 || r.out == "" {
		return nil
	}
	select {
	case <-binds.first:
	case <-ctx.Done():
		return ctx.Err()
	}
	profile, err := p.get(ctx, fmt.Sprintf("/debug/pprof/profile?seconds=%d", r.profile))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, name+".pprof"), profile, 0o644)
}

// cpuWhile returns the scheduler's processor time at the first bind and at the last.
func (r *runner) cpuWhile(ctx context.Context, p *process, binds *binds) (before, after time.Duration, err error) {
	if err := binds.wait(ctx, 1); err != nil {
		return 0, 0, err
	}
	if before, err = harness.ProcessCPU(p.cmd.Process.Pid); err != nil {
		return 0, 0, err
	}
	if err := binds.wait(ctx, r.pods); err != nil {
		return 0, 0, err
	}
	after, err = harness.ProcessCPU(p.cmd.Process.Pid)
	return before, after, err
}
