//go:build kubernetes_1_37

package integration

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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

// TestAGangGoesWholeIntoOneSubset runs Kubernetes' own gang scheduling, which has one cycle for all pods of a group.
func TestAGangGoesWholeIntoOneSubset(t *testing.T) {
	harness.Long(t)
	t.Parallel() // it has a cluster of its own
	gang := theGang(t)
	cluster, err := harness.Start(t.Context(), sandbox.Config{Name: "gangs", Dir: t.TempDir()}, product.Options{Gangs: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Sandbox.Stop)
	watchCtx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	watcher, err := checker.Start(watchCtx, cluster.Dynamic)
	if err != nil {
		t.Fatal(err)
	}
	ns, err := cluster.CreateNamespace(t.Context(), "gangs")
	if err != nil {
		t.Fatal(err)
	}
	var nodes []*corev1.Node
	for _, pool := range []string{"reserved", "spot"} {
		nodes = append(nodes, sandbox.NewNode(ns+"-"+pool, "zone-a", map[string]string{"pool": pool}, nil,
			sandbox.Allocatable(resource.MustParse("20"), resource.MustParse(sandbox.DefaultNodeMemory))))
	}
	if err := cluster.Sandbox.CreateNodes(t.Context(), nodes); err != nil {
		t.Fatal(err)
	}
	if err := cluster.ApplyYAML(t.Context(), ns, gang); err != nil {
		t.Fatal(err)
	}
	expect := func(what string, want map[string]int) {
		t.Helper()
		if err := cluster.WaitFor(t.Context(), what, func(ctx context.Context) (string, error) {
			pods, err := cluster.Pods(ctx, ns)
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
			t.Fatal(err)
		}
	}
	expect("eight pods in the second subset", map[string]int{"spot": 8})
	larger := strings.NewReplacer("train", "larger", "minCount: 8", "minCount: 9", "parallelism: 8", "parallelism: 9", "completions: 8", "completions: 9").Replace(gang)
	if err := cluster.ApplyYAML(t.Context(), ns, larger); err != nil {
		t.Fatal(err)
	}
	if err := cluster.WaitFor(t.Context(), "the gang of nine to be told", func(ctx context.Context) (string, error) {
		pods, err := cluster.Pods(ctx, ns)
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
	expect("no pod of the gang of nine", map[string]int{"spot": 8})
	for _, violation := range watcher.Violations() {
		t.Error(violation)
	}
}
