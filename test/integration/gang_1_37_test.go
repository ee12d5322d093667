//go:build kubernetes_1_37

package integration

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/test/checker"
	"github.com/berth-project/berth/test/harness"
)

// theGang is docs/examples/gang.yaml. docs/schedulers.md must name the flags that the cluster has.
func theGang(t *testing.T) string {
	t.Helper()
	var text [2]string
	for i, name := range []string{"schedulers.md", "examples/gang.yaml"} {
		content, err := os.ReadFile(filepath.Join(harness.Root(), "docs", name))
		if err != nil {
			t.Fatal(err)
		}
		text[i] = string(content)
	}
	var flags []string
	for _, found := range regexp.MustCompile("(?m)^\\| `(--[^`]+)` \\|").FindAllStringSubmatch(text[0], -1) {
		flags = append(flags, found[1])
	}
	if diff := cmp.Diff([]string{product.GangGates, product.GangAPI}, flags); diff != "" {
		t.Fatalf("docs/schedulers.md names other flags (-want +got):\n%s", diff)
	}
	return text[1]
}

// yard is a cluster that schedules gangs, with two pools of nodes.
type yard struct {
	*harness.Cluster
	t *testing.T
}

// newYard has so many nodes in each pool, with 20 CPUs each.
func newYard(t *testing.T, name string, each int) *yard {
	t.Helper()
	cluster, err := harness.Start(t.Context(), sandbox.Config{Name: name, Dir: t.TempDir()}, product.Options{Gangs: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Sandbox.Stop)
	var nodes []*corev1.Node
	for _, pool := range []string{"reserved", "spot"} {
		for i := range each {
			nodes = append(nodes, sandbox.NewNode(fmt.Sprintf("%s-%s-%d", name, pool, i), "zone-a", map[string]string{"pool": pool}, nil,
				sandbox.Allocatable(resource.MustParse("20"), resource.MustParse(sandbox.DefaultNodeMemory))))
		}
	}
	if err := cluster.Sandbox.CreateNodes(t.Context(), nodes); err != nil {
		t.Fatal(err)
	}
	return &yard{cluster, t}
}

func (y *yard) namespace(name string) string {
	y.t.Helper()
	ns, err := y.CreateNamespace(y.t.Context(), name)
	if err != nil {
		y.t.Fatal(err)
	}
	return ns
}

func (y *yard) apply(ns, text string) {
	y.t.Helper()
	if err := y.ApplyYAML(y.t.Context(), ns, text); err != nil {
		y.t.Fatal(err)
	}
}

// expect waits until so many pods of each subset are bound. Pods without one have an empty name.
func (y *yard) expect(what, ns string, want map[string]int) {
	y.t.Helper()
	if err := y.WaitFor(y.t.Context(), what, func(ctx context.Context) (string, error) {
		pods, err := y.Pods(ctx, ns)
		if err != nil {
			return "", err
		}
		bound := map[string]int{}
		for i := range pods {
			if pods[i].Spec.NodeName != "" {
				bound[pods[i].Labels[v1beta1.SubsetLabel]]++
			}
		}
		return cmp.Diff(want, bound), nil
	}); err != nil {
		y.t.Fatal(err)
	}
}

// TestAGangGoesWholeIntoOneSubset runs Kubernetes' own gang scheduling, which has one cycle for all pods of a group.
func TestAGangGoesWholeIntoOneSubset(t *testing.T) {
	harness.Long(t)
	t.Parallel() // it has a cluster of its own
	gang, y := theGang(t), newYard(t, "gangs", 1)
	watchCtx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	watcher, err := checker.Start(watchCtx, y.Dynamic)
	if err != nil {
		t.Fatal(err)
	}
	ns := y.namespace("gangs")
	y.apply(ns, gang)
	y.expect("eight pods in the second subset", ns, map[string]int{"spot": 8})
	larger := strings.NewReplacer("train", "larger", "minCount: 8", "minCount: 9", "parallelism: 8", "parallelism: 9", "completions: 8", "completions: 9").Replace(gang)
	y.apply(ns, larger)
	if err := y.WaitFor(t.Context(), "the gang of nine to be told", func(ctx context.Context) (string, error) {
		pods, err := y.Pods(ctx, ns)
		if err != nil {
			return "", err
		}
		told := 0
		for i := range pods {
			for _, condition := range pods[i].Status.Conditions {
				if condition.Type == corev1.PodScheduled && condition.Reason == "SubsetsFull" && strings.Contains(condition.Message, `no subset has room for the 9 pods of the group "larger"`) {
					told++
				}
			}
		}
		return cmp.Diff(9, told), nil
	}); err != nil {
		t.Fatal(err)
	}
	y.expect("no pod of the gang of nine", ns, map[string]int{"spot": 8})
	for _, violation := range watcher.Violations() {
		t.Error(violation)
	}
}

var (
	gangs      = flag.Int("gangs", 4, "how many gangs TestGangsBesideTheStockScheduler creates at once")
	gangRounds = flag.Int("gang-rounds", 1, "how often it does so with each scheduler, after one that is not counted")
)

// TestGangsBesideTheStockScheduler creates many gangs of eight at once, in turns for the stock scheduler with a node selector, and for Berth's with a spread.
// It measures until all pods are bound.
func TestGangsBesideTheStockScheduler(t *testing.T) {
	harness.Long(t)
	gang, y := theGang(t), newYard(t, "many-gangs", 10)
	_, stock, _ := strings.Cut(gang, "---\n") // without the spread
	stock = strings.NewReplacer("schedulerName: berth-scheduler", "nodeSelector: {pool: spot}").Replace(stock)
	took := map[string][]time.Duration{}
	for round := range 1 + *gangRounds {
		for _, turn := range []struct{ name, gang, subset string }{{"stock", stock, ""}, {"berth", gang, "spot"}} {
			ns := y.namespace(turn.name)
			began := time.Now()
			var creating errgroup.Group
			creating.SetLimit(8)
			for i := range *gangs {
				creating.Go(func() error {
					return y.ApplyYAML(t.Context(), ns, strings.ReplaceAll(turn.gang, "train", fmt.Sprintf("train-%d", i)))
				})
			}
			if err := creating.Wait(); err != nil {
				t.Fatal(err)
			}
			y.expect("all gangs", ns, map[string]int{turn.subset: 8 * *gangs})
			if round > 0 {
				took[turn.name] = append(took[turn.name], time.Since(began).Round(10*time.Millisecond))
			}
			if err := y.DeleteNamespace(t.Context(), ns); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Logf("%d gangs: stock %v, berth %v", *gangs, took["stock"], took["berth"])
}
