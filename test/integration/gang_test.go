//go:build !kubernetes_1_37

package integration

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/manifests"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/sandbox"
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

// group is a PodGroup, and groupMembers a ReplicaSet with this many pods, of which the new ones belong to a group. Each pod takes a CPU.
const (
	group = `
apiVersion: scheduling.x-k8s.io/v1alpha1
kind: PodGroup
metadata: {name: %s}
spec: {minMember: %d}
---`
	groupMembers = `
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: web}
spec:
  replicas: %d
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web, scheduling.x-k8s.io/pod-group: %q}}
    spec:
      schedulerName: berth-scheduler
      containers: [{name: main, image: registry.k8s.io/pause:3.10, resources: {requests: {cpu: "1"}}}]
`
	groupSubsets = spreadHeader + `  targetRef: {apiVersion: apps/v1, kind: ReplicaSet, name: web}
  scheduleStrategy: %[1]s
  subsets:
  - {name: a, maxReplicas: %[2]d, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [a-%[4]s]}]}}
  - {name: b, maxReplicas: %[3]d, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [b-%[4]s]}]}}
---`
)

// TestPodGroupsStayTogether runs the scheduler with coscheduling.
func TestPodGroupsStayTogether(t *testing.T) {
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
	// A step of a case makes groups and pods, and then waits until so many pods of each group are bound in each subset, and no others.
	type step struct {
		groups      map[string]int
		replicas    int
		group, want string
	}
	for name, tc := range map[string]struct {
		strategy   string
		a, b       int // quotas
		cpuA, cpuB string
		steps      []step
	}{
		"where there is quota for all": {
			"{whenFull: Wait}", 5, 8, "20", "20", []step{{map[string]int{"g": 8}, 8, "g", "b/g=8"}}},
		"unless the spread divides them": {
			"{whenFull: Wait, podGroups: Divided}", 5, 8, "20", "20", []step{{map[string]int{"g": 8}, 8, "g", "a/g=5 b/g=3"}}},
		"one that is given up at once makes way for another": {
			"{whenFull: Wait}", 0, 8, "20", "5", []step{{map[string]int{"g": 8, "h": 5}, 8, "g", ""}, {nil, 13, "h", "b/h=5"}}},
		"one that is given up at its timeout makes way for a pod without a group": {
			"{whenFull: Wait}", 0, 10, "20", "9", []step{{map[string]int{"g": 10}, 10, "g", ""}, {nil, 11, "", "b/=1"}}},
		"with strategy Adaptive they go on at once": {
			"{type: Adaptive, whenFull: Wait}", 8, 8, "5", "20", []step{{map[string]int{"g": 8}, 8, "g", "b/g=8"}}},
		"with strategy Adaptive they go on at the timeout": {
			"{type: Adaptive, whenFull: Wait}", 10, 10, "9", "20", []step{{map[string]int{"g": 10}, 10, "g", "b/g=10"}}},
		"with strategy Adaptive one that fits nowhere makes way for another": {
			"{type: Adaptive, whenFull: Wait}", 8, 8, "5", "4", []step{{map[string]int{"g": 8, "h": 5}, 8, "g", ""}, {nil, 13, "h", "a/h=5"}}},
	} {
		t.Run(name, func(t *testing.T) {
			ns, err := cluster.CreateNamespace(t.Context(), "gangs")
			if err != nil {
				t.Fatal(err)
			}
			var nodes []*corev1.Node
			for pool, cpu := range map[string]string{"a": tc.cpuA, "b": tc.cpuB} {
				nodes = append(nodes, sandbox.NewNode(ns+"-"+pool, "zone-a", map[string]string{"pool": pool + "-" + ns}, nil,
					sandbox.Allocatable(resource.MustParse(cpu), resource.MustParse(sandbox.DefaultNodeMemory))))
			}
			if err := cluster.Sandbox.CreateNodes(t.Context(), nodes); err != nil {
				t.Fatal(err)
			}
			apply := func(text string) {
				t.Helper()
				if err := cluster.ApplyYAML(t.Context(), ns, text); err != nil {
					t.Fatal(err)
				}
			}
			apply(fmt.Sprintf(groupSubsets, tc.strategy, tc.a, tc.b, ns))
			for _, step := range tc.steps {
				for name, minMember := range step.groups {
					apply(fmt.Sprintf(group, name, minMember))
				}
				began := time.Now()
				apply(fmt.Sprintf(groupMembers, step.replicas, step.group))
				if err := cluster.WaitFor(t.Context(), "pods in "+step.want, func(ctx context.Context) (string, error) {
					pods, err := cluster.Pods(ctx, ns)
					if err != nil {
						return "", err
					}
					return unlike(pods, step.replicas, step.want), nil
				}); err != nil {
					t.Fatal(err)
				}
				// Without a wake-up, kube-scheduler tries again after five minutes. A few of a group's timeouts of 5 s pass on a busy machine.
				if took := time.Since(began); took > time.Minute {
					t.Errorf("it took %v, which is more than a few of a group's timeouts of 5 s", took)
				}
			}
			for _, violation := range watcher.Violations() {
				t.Error(violation)
			}
		})
	}
}

// unlike says how pods differ from what is wanted: so many of them, each with its status by the scheduler, and in each subset so many of a group.
func unlike(pods []corev1.Pod, replicas int, want string) string {
	count, untried := map[string]int{}, 0
	for i := range pods {
		switch pod := &pods[i]; {
		case pod.Spec.NodeName != "":
			count[pod.Labels[v1beta1.SubsetLabel]+"/"+pod.Labels[v1beta1.PodGroupLabel]]++
		case len(pod.Status.Conditions) == 0:
			untried++
		}
	}
	var got []string
	for _, place := range slices.Sorted(maps.Keys(count)) {
		got = append(got, fmt.Sprintf("%s=%d", place, count[place]))
	}
	if text := strings.Join(got, " "); text != want || len(pods) != replicas || untried > 0 {
		return fmt.Sprintf("%d pods, %d of them untried, bound %q", len(pods), untried, text)
	}
	return ""
}
