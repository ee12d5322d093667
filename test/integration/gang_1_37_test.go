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

// theGang is the gang of docs/schedulers.md, and the flags that the page names.
func theGang(t *testing.T) (manifest, gates, api string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(harness.Root(), "docs", "schedulers.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "<!-- gang -->\n```yaml\n")
	manifest, _, _ = strings.Cut(after, "```")
	flags := regexp.MustCompile("(?m)^\\| `(--[^`]+)` \\|").FindAllStringSubmatch(string(text), -1)
	if manifest == "" || len(flags) != 2 {
		t.Fatalf("docs/schedulers.md has no gang, or other flags: %v", flags)
	}
	return manifest, flags[0][1], flags[1][1]
}

// TestAGangGoesWholeIntoOneSubset runs Kubernetes' own gang scheduling, which has one cycle for all pods of a group.
func TestAGangGoesWholeIntoOneSubset(t *testing.T) {
	harness.Long(t)
	t.Parallel() // it has a cluster of its own
	gang, gates, api := theGang(t)
	cluster, err := harness.Start(t.Context(), sandbox.Config{Name: "gangs", Dir: t.TempDir(),
		APIServerFlags: []string{gates, api}}, product.Options{SchedulerFlags: []string{gates}})
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
