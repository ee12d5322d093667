// Command descheduler measures one cycle of berth-descheduler, as a CronJob runs it, on a sandbox of many nodes, pods and spreads. It measures the
// time from the start of the process to its end, and its peak memory.
//
// This is case 35 of the descheduler's tests. There are four measurements. "at rest": there is nothing to do. "without room": two fifths of all pods
// should move to the preferred subset, but no node has room, so the cycle proves that for every spread. "moves": the cycle evicts one pod of every
// spread, with the writes before and the events after; components that have no part in it stand still. "moves, all": the same while new pods are
// created, placed and started on the same processors.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/test/harness"
)

type settings struct {
	nodes, pods, spreads, runs int
}

const (
	// These are the required limits.
	mostTime   = 5 * time.Second
	mostMemory = 500 // MiB

	setUp = 10 * time.Minute
)

func main() {
	var s settings
	flag.IntVar(&s.nodes, "nodes", 500, "nodes")
	flag.IntVar(&s.pods, "pods", 5000, "pods of all workloads")
	flag.IntVar(&s.spreads, "spreads", 200, "spreads, one for each workload")
	flag.IntVar(&s.runs, "runs", 3, "runs of each case")
	flag.Parse()
	rest.SetDefaultWarningHandler(rest.NoWarnings{}) // about the spreads that exist before their workloads
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, s)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-descheduler:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, s settings) error {
	dir, err := os.MkdirTemp("", "berth-bench-descheduler-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	cluster, err := harness.Start(ctx, sandbox.Config{Name: "bench-descheduler", Dir: filepath.Join(dir, "sandbox")}, product.Options{})
	if err != nil {
		return err
	}
	defer cluster.Sandbox.Stop()
	b := &bench{Cluster: cluster, settings: s, policy: filepath.Join(dir, "policy.yaml")}
	if err := os.WriteFile(b.policy, []byte(policy), 0o600); err != nil {
		return err
	}
	if err := b.prepare(ctx); err != nil {
		return fmt.Errorf("preparing: %w", err)
	}
	fmt.Printf("%-14s %8s %8s %8s %8s %8s   %s\n", "case", "seconds", "CPU", "MiB", "moves", "kept", "CPU of others")
	var missed []error
	for _, c := range []struct {
		name   string
		before func(context.Context) error
		alone  bool
		// most is the maximum time. 0 means no limit.
		most time.Duration
	}{
		{"at rest", func(context.Context) error { return nil }, false, mostTime},
		{"without room", b.openAndCordon, false, mostTime},
		{"moves", b.uncordonAndSettle, true, mostTime},
		{"moves, all", b.uncordonAndSettle, false, 0},
	} {
		for range s.runs {
			if err := c.before(ctx); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			m, err := b.measure(ctx, c.alone)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			fmt.Printf("%-14s %8.2f %8.2f %8d %8d %8d   %s\n", c.name, m.took.Seconds(), m.cpu.Seconds(), m.memory, m.moves, m.kept, others(m.others))
			if c.most > 0 && m.took > c.most || m.memory > mostMemory {
				missed = append(missed, fmt.Errorf("%s: %s and %d MiB; asked were %s and %d MiB", c.name, m.took, m.memory, mostTime, mostMemory))
			}
		}
	}
	return errors.Join(missed...)
}

// policy has every strategy, without waiting times.
const policy = `
apiVersion: descheduler/v1alpha2
kind: DeschedulerPolicy
profiles:
- name: berth
  pluginConfig:
  - {name: DefaultEvictor, args: {}}
  - {name: SubsetEvictor, args: {}}
  - {name: EvictUnschedulableSubsetPods, args: {}}
  - {name: EnforceSubsetMaxReplicas, args: {settleTime: 0s}}
  - {name: RebalanceToPreferredSubset, args: {stabilizationWindow: 0s, minResidence: 0s, cooldown: 0s, backoff: {base: 1s, longest: 2s}}}
  plugins:
    filter: {enabled: [SubsetEvictor]}
    preEvictionFilter: {enabled: [SubsetEvictor]}
    deschedule: {enabled: [EvictUnschedulableSubsetPods, EnforceSubsetMaxReplicas]}
    balance: {enabled: [RebalanceToPreferredSubset]}
`

type bench struct {
	*harness.Cluster
	settings
	policy    string
	namespace string
	preferred []*corev1.Node
}

// perWorkload is the number of pods of a workload. Three fifths of them are in the preferred subset.
func (b *bench) perWorkload() int { return b.pods / b.spreads }
func (b *bench) quota() int       { return b.perWorkload() * 3 / 5 }

func (b *bench) prepare(ctx context.Context) error {
	var nodes []*corev1.Node
	for i := range b.nodes {
		pool := []string{"a", "b"}[i%2]
		node := sandbox.NewNode(fmt.Sprintf("bench-%d", i), "zone-"+pool, map[string]string{"pool": pool}, nil, nil)
		nodes = append(nodes, node)
		if pool == "a" {
			b.preferred = append(b.preferred, node)
		}
	}
	if err := b.Sandbox.CreateNodes(ctx, nodes); err != nil {
		return err
	}
	var err error
	if b.namespace, err = b.CreateNamespace(ctx, "bench"); err != nil {
		return err
	}
	creating, createCtx := errgroup.WithContext(ctx)
	creating.SetLimit(8)
	for i := range b.spreads {
		creating.Go(func() error {
			return b.ApplyYAML(createCtx, b.namespace, fmt.Sprintf(`
apiVersion: apps.kruise.io/v1alpha1
kind: WorkloadSpread
metadata: {name: web-%[1]d}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web-%[1]d}
  scheduleStrategy: {type: Adaptive}
  subsets:
  - {name: a, maxReplicas: %[2]d, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [a]}]}}
  - {name: b, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [b]}]}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web-%[1]d}
spec:
  replicas: %[3]d
  selector: {matchLabels: {app: web-%[1]d}}
  template:
    metadata: {labels: {app: web-%[1]d}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: main, image: registry.k8s.io/pause:3.10, resources: {requests: {cpu: 100m, memory: 64Mi}}}]
`, i, b.quota(), b.perWorkload()))
		})
	}
	if err := creating.Wait(); err != nil {
		return err
	}
	return b.settle(ctx)
}

// settle waits until all pods are ready, for setUp at most.
func (b *bench) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, setUp)
	defer cancel()
	for {
		err := b.WaitFor(ctx, "all pods to be ready", func(ctx context.Context) (string, error) {
			deployments, err := b.Client.AppsV1().Deployments(b.namespace).List(ctx, metav1.ListOptions{})
			if err != nil {
				return "", err
			}
			ready := 0
			for i := range deployments.Items {
				status := &deployments.Items[i].Status
				if status.Replicas == status.ReadyReplicas {
					ready += int(status.ReadyReplicas)
				}
			}
			if want := b.perWorkload() * b.spreads; ready != want {
				return fmt.Sprintf("%d of %d are", ready, want), nil
			}
			return "", nil
		})
		if err == nil || ctx.Err() != nil {
			return err
		}
	}
}

// openAndCordon raises the preferred subset's limit for all pods, and cordons its nodes.
func (b *bench) openAndCordon(ctx context.Context) error {
	if err := b.cordon(ctx, true); err != nil {
		return err
	}
	patch := fmt.Sprintf(`[{"op":"replace","path":"/spec/subsets/0/maxReplicas","value":%d}]`, b.perWorkload())
	for i := range b.spreads {
		if _, err := b.Dynamic.Resource(v1beta1.Resource).Namespace(b.namespace).Patch(ctx, fmt.Sprintf("web-%d", i), types.JSONPatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) uncordonAndSettle(ctx context.Context) error {
	if err := b.cordon(ctx, false); err != nil {
		return err
	}
	return b.settle(ctx)
}

func (b *bench) cordon(ctx context.Context, cordoned bool) error {
	for _, node := range b.preferred {
		patch := fmt.Sprintf(`{"spec":{"unschedulable":%t}}`, cordoned)
		if _, err := b.Client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			return err
		}
	}
	return nil
}

type measured struct {
	took        time.Duration
	cpu         time.Duration // of the command alone
	memory      int64         // MiB
	moves, kept int
	others      harness.CPU
}

// others lists the components that used the most CPU time.
func others(used harness.CPU) string {
	names := slices.SortedFunc(maps.Keys(used), func(a, b string) int { return cmp.Compare(used[b], used[a]) })
	var words []string
	for _, name := range names {
		if name != harness.ThisProcess && name != harness.OtherProcesses && used[name] >= 50*time.Millisecond {
			words = append(words, fmt.Sprintf("%s %.1f", name, used[name].Seconds()))
		}
	}
	return strings.Join(words, ", ")
}

// idle are the components without a part in a cycle.
var idle = []string{sandbox.ControllerManager, sandbox.KWOK, product.Scheduler, product.DefaultScheduler}

// hold halts the components without a part in a cycle. Call release to resume them.
func (b *bench) hold() (release func(), _ error) {
	signal := func(sig syscall.Signal) (err error) {
		for _, component := range idle {
			err = errors.Join(err, b.Sandbox.Signal(component, 0, sig))
		}
		return err
	}
	release = func() {
		if err := signal(syscall.SIGCONT); err != nil {
			fmt.Fprintln(os.Stderr, "bench-descheduler:", err)
		}
	}
	if err := signal(syscall.SIGSTOP); err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// measure runs the command once. With alone, components without a part in a cycle stand still.
func (b *bench) measure(ctx context.Context, alone bool) (measured, error) {
	if alone {
		release, err := b.hold()
		if err != nil {
			return measured{}, err
		}
		defer release()
	}
	before, err := b.CPU()
	if err != nil {
		return measured{}, err
	}
	var out, logs bytes.Buffer
	cmd := exec.CommandContext(ctx, filepath.Join(harness.BinDir(), "berth-descheduler"), "--kubeconfig="+b.Sandbox.Kubeconfig(),
		"--policy-config-file="+b.policy, "--secure-port=0", "--explain=json")
	cmd.Stdout, cmd.Stderr = &out, &logs
	began := time.Now()
	if err := cmd.Run(); err != nil {
		return measured{}, fmt.Errorf("%w\n%s", err, logs.String())
	}
	m := measured{took: time.Since(began), cpu: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()}
	after, err := b.CPU()
	if err != nil {
		return m, err
	}
	m.others = after.Since(before)
	if usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		m.memory = usage.Maxrss >> 10
	}
	var report struct {
		Plan []struct{ Verdict string }
	}
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		return m, fmt.Errorf("reading the plan: %w", err)
	}
	for _, line := range report.Plan {
		if line.Verdict == "Move" {
			m.moves++
		} else {
			m.kept++
		}
	}
	return m, nil
}
