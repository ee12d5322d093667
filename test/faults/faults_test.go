package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/manifests"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/sandbox"
	"github.com/berth-project/berth/test/checker"
	"github.com/berth-project/berth/test/harness"
	"github.com/berth-project/berth/test/linear"
)

var (
	rounds = flag.Int("rounds", 1, "how many bursts to spoil, each with a seed of its own")
	seed   = flag.Uint64("seed", 1, "seed of the first round")
)

const (
	schedulerName = "spoilt-scheduler"
	schedulerUser = "system:serviceaccount:berth-system:berth-scheduler"
)

var binding = regexp.MustCompile(`/pods/[^/]+/binding$`)

func isBind(r *http.Request) bool {
	return r.Method == http.MethodPost && binding.MatchString(r.URL.Path)
}

// startSpoilt starts a sandbox whose scheduler reaches the API server through the proxy.
func startSpoilt(t *testing.T, p *harness.Proxy) *harness.Cluster {
	t.Helper()
	config := sandbox.Config{Name: "faults", Dir: t.TempDir(), AuditLog: true, Without: harness.WithoutController(product.Scheduler),
		Components: []sandbox.Component{{
			Name: schedulerName, Binary: "berth-scheduler", User: schedulerUser, Groups: []string{"system:serviceaccounts", "system:serviceaccounts:berth-system"},
			Args: func(in sandbox.Instance) ([]string, error) {
				kubeconfig, err := p.Kubeconfig(in)
				if err != nil {
					return nil, err
				}
				settings := map[string]any{}
				if err := yaml.Unmarshal(manifests.SchedulerConfig, &settings); err != nil {
					return nil, err
				}
				settings["clientConnection"] = map[string]any{"kubeconfig": kubeconfig, "qps": 1000, "burst": 1000}
				settings["leaderElection"] = map[string]any{"leaderElect": false}
				text, err := yaml.Marshal(settings)
				if err != nil {
					return nil, err
				}
				path := filepath.Join(in.Dir, "config.yaml")
				if err := os.WriteFile(path, text, 0o600); err != nil {
					return nil, err
				}
				return []string{"--config=" + path, "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", in.Port("secure")), "--cert-dir=" + in.Dir,
					"--authentication-kubeconfig=" + in.Kubeconfig, "--authorization-kubeconfig=" + in.Kubeconfig, "--v=2"}, nil
			},
			Ready: func(in sandbox.Instance) string { return "https://" + in.Address("secure") + "/readyz" },
		}}}
	cluster, err := harness.Start(t.Context(), config, product.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Sandbox.Stop)
	return cluster
}

// spreads has one spread of each kind that counts differently. Each Deployment has 120 pods. Each pool has room for more than all of them, so only
// the quotas limit the pods.
var spreads = map[string]struct {
	spec string
	// want is the number of pods in each subset when no change is under way.
	want map[string]int
	// edit is a spec, and quotas its quotas. While binds are under way, the test changes the spread to it and back.
	edit   string
	quotas linear.Quotas
}{
	"fixed": {
		spec:   "scheduleStrategy: {type: Fixed, quotaScope: Workload}, subsets: [" + in("a", "maxReplicas: 30") + ", " + in("b", "maxReplicas: 50") + ", " + in("c", "") + "]",
		want:   map[string]int{"a": 30, "b": 50, "c": 40},
		edit:   "scheduleStrategy: {type: Fixed, quotaScope: Workload}, subsets: [" + in("a", "maxReplicas: 35") + ", " + in("b", "maxReplicas: 45") + ", " + in("c", "") + "]",
		quotas: linear.Quotas{"a": 35, "b": 45},
	},
	"adaptive": {
		spec: "scheduleStrategy: {type: Adaptive}, subsets: [" + in("a", "maxReplicas: 25%") + ", " + in("b", "maxReplicas: 25%") + ", " + in("c", "") + "]",
		want: map[string]int{"a": 30, "b": 30, "c": 60},
	},
	"waiting": {
		spec: "scheduleStrategy: {type: Fixed, whenFull: Wait}, subsets: [" + in("a", "maxReplicas: 60") + ", " + in("b", "maxReplicas: 40") + "]",
		want: map[string]int{"a": 60, "b": 40}, // 20 pods wait
	},
}

func in(pool, limit string) string {
	if limit != "" {
		limit = ", " + limit
	}
	return fmt.Sprintf("{name: %[1]s%[2]s, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [%[1]s]}]}}", pool, limit)
}

const podsEach = 120

func spreadYAML(name, spec string) string {
	return fmt.Sprintf("\n---\napiVersion: apps.kruise.io/v1alpha1\nkind: WorkloadSpread\nmetadata: {name: %[1]s}\nspec: {targetRef: {apiVersion: apps/v1, kind: Deployment, name: %[1]s}, %[2]s}\n", name, spec)
}

func deploymentYAML(name string) string {
	return fmt.Sprintf(`
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec: {schedulerName: berth-scheduler, terminationGracePeriodSeconds: 0, containers: [{name: main, image: "registry.k8s.io/pause:3.10"}]}
`, name, podsEach)
}

// TestSpoiltBindsNeitherLoseNorInventASlot disturbs a third of all binds, with every kind of fault. Meanwhile it deletes pods in the middle of their
// binds, moves nodes to other pools, edits quotas and kills the scheduler. The quotas must hold at every revision. At the end pods must be able to
// use exactly the slots of the quotas.
func TestSpoiltBindsNeitherLoseNorInventASlot(t *testing.T) {
	inFlight := make(chan string, 1000)
	p, err := harness.StartProxy(t.Context(), *seed, isBind, func(path string) {
		select {
		case inFlight <- path:
		default: // the channel has enough names
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	cluster := startSpoilt(t, p)
	var nodes []*corev1.Node
	for i := range 15 {
		pool := string("abc"[i%3])
		nodes = append(nodes, sandbox.NewNode(fmt.Sprintf("fault-%d-%s", i, pool), "zone-"+pool, map[string]string{"pool": pool}, nil, nil))
	}
	if err := cluster.Sandbox.CreateNodes(t.Context(), nodes); err != nil {
		t.Fatal(err)
	}
	watcher, err := checker.Start(t.Context(), cluster.Dynamic)
	if err != nil {
		t.Fatal(err)
	}
	watcher.Grace = 2 * harness.ProxyTimeout // the scheduler decided a late bind up to this long ago
	for round := range *rounds {
		p.Reseed(*seed + uint64(round))
		burst(t, cluster, p, watcher, inFlight, *seed+uint64(round), nodes)
		if t.Failed() {
			break
		}
	}
	for _, violation := range watcher.Violations() {
		t.Error(violation)
	}
	expectNoDeletionBy(t, cluster, schedulerUser)
	counts := p.Spoilt()
	for _, f := range harness.AllFaults {
		if counts[f] == 0 {
			t.Errorf("no bind met the fault %q", f)
		}
	}
	for _, f := range slices.Sorted(maps.Keys(counts)) {
		t.Logf("%4d binds: %s", counts[f], f)
	}
	t.Logf("%d binds in all", watcher.Binds())
}

func burst(t *testing.T, cluster *harness.Cluster, p *harness.Proxy, watcher *checker.Checker, inFlight <-chan string, seed uint64, nodes []*corev1.Node) {
	t.Helper()
	ctx, random := t.Context(), rand.New(rand.NewPCG(seed, 7))
	ns, err := cluster.CreateNamespace(ctx, "faults")
	if err != nil {
		t.Fatal(err)
	}
	p.Spoil(33, harness.AllFaults...)
	for _, name := range slices.Sorted(maps.Keys(spreads)) {
		if err := cluster.ApplyYAML(ctx, ns, spreadYAML(name, spreads[name].spec)+deploymentYAML(name)); err != nil {
			t.Fatal(err)
		}
	}
	relabel := func(node *corev1.Node, pool string) {
		t.Helper()
		patch := fmt.Sprintf(`{"metadata":{"labels":{"pool":%q}}}`, pool)
		if _, err := cluster.Client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	edits := map[string][]change{}
	edit := func(spec string, quotas linear.Quotas) {
		t.Helper()
		sent := time.Now()
		if err := cluster.ApplyYAML(ctx, ns, spreadYAML("fixed", spec)); err != nil {
			t.Fatal(err)
		}
		edits["fixed"] = append(edits["fixed"], change{quotas, sent, time.Now()})
	}
	// The test moves the last node of each pool to the next pool and back.
	moved := nodes[len(nodes)-3:]
	steps := []func(){
		func() {
			for i, node := range moved {
				relabel(node, string("abc"[(i+1)%3]))
			}
		},
		func() { edit(spreads["fixed"].edit, spreads["fixed"].quotas) },
		func() {
			if err := cluster.Sandbox.Signal(schedulerName, 0, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		},
		func() {
			for i, node := range moved {
				relabel(node, string("abc"[i%3]))
			}
		},
		func() { edit(spreads["fixed"].spec, limits("fixed")) },
	}
	deleted := 0
	for i, step := range steps {
		// Before each step the test waits for three requests that are slow or late. It deletes about half of their pods meanwhile.
		for range 3 {
			select {
			case path := <-inFlight:
				name := strings.Split(strings.TrimSuffix(path, "/binding"), "/")
				if random.IntN(2) == 0 {
					err := cluster.Client.CoreV1().Pods(name[4]).Delete(ctx, name[len(name)-1], metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
					if err == nil {
						deleted++
					} else if !apierrors.IsNotFound(err) {
						t.Fatal(err)
					}
				}
			case <-time.After(15 * time.Second):
				t.Logf("step %d came without a slow bind, because all pods are bound", i)
			}
		}
		step()
	}
	p.Spoil(0)
	t.Logf("seed %d: %d pods were deleted in the middle of their bind", seed, deleted)
	expectAtRest(t, cluster, ns, "after the faults", false)
	// New pods use every slot again.
	if err := cluster.Client.CoreV1().Pods(ns).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	expectAtRest(t, cluster, ns, "after all pods were replaced", true)
	for _, name := range slices.Sorted(maps.Keys(spreads)) {
		expectLinearizable(t, watcher, p, ns, name, edits[name])
	}
	if err := cluster.DeleteNamespace(ctx, ns); err != nil {
		t.Fatal(err)
	}
}

// expectAtRest waits until all pods that fit the plan are bound, in the subsets of the plan. A pod that took its slot while a quota was edited may
// keep it. So only the sums are exact until all pods are replaced.
func expectAtRest(t *testing.T, cluster *harness.Cluster, ns, when string, exact bool) {
	t.Helper()
	if err := cluster.WaitFor(t.Context(), "the pods to be in place "+when, func(ctx context.Context) (string, error) {
		pods, err := cluster.Pods(ctx, ns)
		if err != nil {
			return "", err
		}
		kept := map[string]map[string]int{}
		for name := range spreads {
			kept[name] = map[string]int{}
		}
		for i := range pods {
			if pods[i].Spec.NodeName != "" && pods[i].DeletionTimestamp == nil {
				kept[pods[i].Labels["app"]][pods[i].Labels[v1beta1.SubsetLabel]]++
			}
		}
		for _, name := range slices.Sorted(maps.Keys(spreads)) {
			got, want := kept[name], spreads[name].want
			if !exact {
				got, want = map[string]int{"all": total(got)}, map[string]int{"all": total(want)}
			}
			if !maps.Equal(got, want) {
				return fmt.Sprintf("%s: %v, want %v", name, kept[name], spreads[name].want), nil
			}
		}
		return "", nil
	}); err != nil {
		t.Error(err)
	}
}

func total(kept map[string]int) (sum int) {
	for _, n := range kept {
		sum += n
	}
	return sum
}

// expectNoDeletionBy reads the API server's audit log. The scheduler must not delete a pod to place it elsewhere.
func expectNoDeletionBy(t *testing.T, cluster *harness.Cluster, user string) {
	t.Helper()
	file, err := os.Open(cluster.Sandbox.AuditLog())
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	binds := 0
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var entry struct {
			Verb      string
			User      struct{ Username string }
			ObjectRef struct{ Resource, Subresource, Name string }
		}
		if err := json.Unmarshal(lines.Bytes(), &entry); err != nil || entry.User.Username != user || entry.ObjectRef.Resource != "pods" {
			continue
		}
		if entry.ObjectRef.Subresource == "binding" {
			binds++
		}
		if strings.HasPrefix(entry.Verb, "delete") || entry.ObjectRef.Subresource == "eviction" {
			t.Errorf("the scheduler sent %s %+v", entry.Verb, entry.ObjectRef)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	if binds == 0 {
		t.Errorf("the audit log has no binds of %s", user)
	}
}
