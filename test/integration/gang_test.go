//go:build !kubernetes_1_37

package integration

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/manifests"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/test/checker"
	"github.com/berth-project/berth/test/harness"
)

// withCoscheduling is the deployed configuration with the changes that docs/concepts.md shows.
func withCoscheduling(t *testing.T) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(harness.Root(), "docs", "concepts.md"))
	if err != nil {
		t.Fatal(err)
	}
	config := string(manifests.SchedulerConfig)
	for _, rest := range strings.Split(string(text), "```diff\n")[1:] {
		block, _, _ := strings.Cut(rest, "```")
		var before, after strings.Builder
		for line := range strings.Lines(block) {
			after.WriteString(line[1:])
			if line[0] == ' ' {
				before.WriteString(line[1:])
			}
		}
		if strings.Count(config, before.String()) != 1 {
			t.Fatalf("the deployed configuration has not one\n%s", before.String())
		}
		config = strings.Replace(config, before.String(), after.String(), 1)
	}
	return []byte(config)
}

// podGroupKind is the definition of PodGroup from coscheduling's module.
func podGroupKind(t *testing.T) []byte {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/scheduler-plugins")
	list.Dir = harness.Root()
	dir, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "config", "crd", "bases", "scheduling.x-k8s.io_podgroups.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

const (
	groupMembers = `
apiVersion: scheduling.x-k8s.io/v1alpha1
kind: PodGroup
metadata: {name: g}
spec: {minMember: 8}
---
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: web}
spec:
  replicas: 8
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web, scheduling.x-k8s.io/pod-group: g}}
    spec:
      schedulerName: berth-scheduler
      containers: [{name: main, image: registry.k8s.io/pause:3.10}]
`
	groupSubsets = spreadHeader + `  targetRef: {apiVersion: apps/v1, kind: ReplicaSet, name: web}
  scheduleStrategy: {whenFull: Wait}
  subsets:
  - {name: a, maxReplicas: 5, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [a]}]}}
  - {name: b, maxReplicas: 8, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [b]}]}}
---`
)

// TestASpreadDividesAPodGroup runs the scheduler with coscheduling, which binds the pods of a group only if all of them have a node.
func TestASpreadDividesAPodGroup(t *testing.T) {
	harness.Long(t)
	t.Parallel() // it has a cluster of its own
	cluster, err := harness.Start(t.Context(), sandbox.Config{Name: "gangs", Dir: t.TempDir(), Manifests: [][]byte{podGroupKind(t)}},
		product.Options{SchedulerConfig: withCoscheduling(t)})
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
	for _, pool := range []string{"a", "b"} {
		nodes = append(nodes, sandbox.NewNode(ns+"-"+pool, "zone-a", map[string]string{"pool": pool}, nil,
			sandbox.Allocatable(resource.MustParse("20"), resource.MustParse(sandbox.DefaultNodeMemory))))
	}
	if err := cluster.Sandbox.CreateNodes(t.Context(), nodes); err != nil {
		t.Fatal(err)
	}
	if err := cluster.ApplyYAML(t.Context(), ns, groupSubsets+groupMembers); err != nil {
		t.Fatal(err)
	}
	if err := cluster.WaitFor(t.Context(), "five pods in a and three in b", func(ctx context.Context) (string, error) {
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
		return cmp.Diff(map[string]int{"a": 5, "b": 3}, bound), nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, violation := range watcher.Violations() {
		t.Error(violation)
	}
}
