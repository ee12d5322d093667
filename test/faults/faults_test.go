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

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/manifests"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
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

// spreads has one spread of each kind that counts differently. Each workload has 120 pods, and is a Deployment, or a StatefulSet if it has revisions. Each pool has room for more than all of them, so only
// the quotas limit the pods.
var spreads = map[string]struct {
	spec string
	// want is the number of pods in each subset when no change is under way.
	want map[string]int
	// edit is a spec, and quotas its quotas. While binds are under way, the test changes the spread to it and back.
	edit   string
	quotas linear.Quotas
	// revisions is true if there are pods of several revisions. Each revision has slots of its own, and want is that of one revision.
	revisions bool
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
	"revised": {
		spec:      "scheduleStrategy: {type: Fixed, quotaScope: Revision, whenFull: Wait}, subsets: [" + in("a", fmt.Sprint("maxReplicas: ", revisedEach)) + ", " + in("b", fmt.Sprint("maxReplicas: ", revisedEach)) + "]",
		want:      map[string]int{"a": revisedEach, "b": revisedEach}, // 40 pods of the same revision wait
		revisions: true,
	},
}

func in(pool, limit string) string {
	if limit != "" {
		limit = ", " + limit
	}
	return fmt.Sprintf("{name: %[1]s%[2]s, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [%[1]s]}]}}", pool, limit)
}

const (
	podsEach = 120
	// revisedEach is the quota of each of two subsets, in each revision.
	revisedEach = 40
	// relabels is how many pods a step changes to the newer revision. The steps together, and the pods that come back in it during the faults, are fewer than revisedEach. So no subset can become full of that
	// revision by changes of labels, which no quota stops, while the scheduler binds pods there.
	relabels = 6
)

func kindOf(name string) string {
	if spreads[name].revisions {
		return "StatefulSet"
	}
	return "Deployment"
}

func spreadYAML(name, spec string) string {
	return fmt.Sprintf("\n---\napiVersion: apps.kruise.io/v1alpha1\nkind: WorkloadSpread\nmetadata: {name: %[1]s}\nspec: {targetRef: {apiVersion: apps/v1, kind: %[3]s, name: %[1]s}, %[2]s}\n", name, spec, kindOf(name))
}

func workloadYAML(name string) string {
	more := ""
	if kindOf(name) == "StatefulSet" {
		more = "\n  serviceName: revised\n  podManagementPolicy: Parallel\n  updateStrategy: {type: OnDelete}"
	}
	return fmt.Sprintf(`
---
apiVersion: apps/v1
kind: %[3]s
metadata: {name: %[1]s}
spec:
  replicas: %[2]d%[4]s
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec: {schedulerName: berth-scheduler, terminationGracePeriodSeconds: 0, containers: [{name: main, image: "registry.k8s.io/pause:3.10"}]}
`, name, podsEach, kindOf(name), more)
}

// TestSpoiltBindsNeitherLoseNorInventASlot disturbs a third of all binds, with every kind of fault. Meanwhile it deletes pods in the middle of their
// binds or gives them another revision, moves nodes to other pools, edits quotas and kills the scheduler. The quotas must hold at every revision. At the end pods must be able to
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
	did := map[string]int{}
	for round := range *rounds {
		p.Reseed(*seed + uint64(round))
		burst(t, cluster, p, watcher, inFlight, *seed+uint64(round), nodes, did)
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
	t.Logf("%d binds in all; %v", watcher.Binds(), did)
	harness.ExpectAll(t, did, "pod deleted in its bind", "pod relabelled", "pod relabelled on its node", "waiting: sharp", "revised: sharp")
	if *rounds >= 3 {
		harness.ExpectAll(t, did, "pod relabelled in its bind")
	}
}

func burst(t *testing.T, cluster *harness.Cluster, p *harness.Proxy, watcher *checker.Checker, inFlight <-chan string, seed uint64, nodes []*corev1.Node, did map[string]int) {
	t.Helper()
	ctx, random := t.Context(), rand.New(rand.NewPCG(seed, 7))
	ns, err := cluster.CreateNamespace(ctx, "faults")
	if err != nil {
		t.Fatal(err)
	}
	p.Spoil(33, harness.AllFaults...)
	for _, name := range slices.Sorted(maps.Keys(spreads)) {
		if err := cluster.ApplyYAML(ctx, ns, spreadYAML(name, spreads[name].spec)+workloadYAML(name)); err != nil {
			t.Fatal(err)
		}
	}
	move := func(node *corev1.Node, pool string) {
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
	// Until the rollout, pods have no other revision that they could get.
	revision := ""
	relabel := func(name string) bool {
		t.Helper()
		if revision == "" {
			return false
		}
		_, err := cluster.Client.CoreV1().Pods(ns).Patch(ctx, name, types.MergePatchType, revisionPatch(revision), metav1.PatchOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		if err == nil {
			did["pod relabelled"]++
		}
		return err == nil
	}
	relabelSome := func(is func(*corev1.Pod) bool) (n int) {
		t.Helper()
		names := podsOf(t, cluster, ns, "revised", func(pod *corev1.Pod) bool { return revisionOf(pod) != revision && is(pod) })
		random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		for _, name := range names[:min(relabels, len(names))] {
			if relabel(name) {
				n++
			}
		}
		return n
	}
	anyPod, isOnNode := func(*corev1.Pod) bool { return true }, func(pod *corev1.Pod) bool { return pod.Spec.NodeName != "" }
	// The test moves the last node of each pool to the next pool and back.
	moved := nodes[len(nodes)-3:]
	steps := []func(){
		func() { revision = rollOut(t, cluster, ns, "revised") },
		func() {
			for i, node := range moved {
				move(node, string("abc"[(i+1)%3]))
			}
		},
		func() { edit(spreads["fixed"].edit, spreads["fixed"].quotas); relabelSome(anyPod) },
		func() {
			if err := cluster.Sandbox.Signal(schedulerName, 0, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		},
		func() {
			for i, node := range moved {
				move(node, string("abc"[i%3]))
			}
		},
		func() { edit(spreads["fixed"].spec, limits("fixed")); relabelSome(anyPod) },
	}
	for i, step := range steps {
		// Before each step the test waits for three requests that are slow or late. It deletes about half of their pods meanwhile, and gives others another revision.
		for range 3 {
			select {
			case path := <-inFlight:
				name := strings.Split(strings.TrimSuffix(path, "/binding"), "/")
				if pod := name[len(name)-1]; name[4] == ns && strings.HasPrefix(pod, "revised-") && random.IntN(3) > 0 && relabel(pod) {
					did["pod relabelled in its bind"]++
				} else if random.IntN(2) == 0 {
					err := cluster.Client.CoreV1().Pods(name[4]).Delete(ctx, name[len(name)-1], metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
					if err == nil {
						did["pod deleted in its bind"]++
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
	t.Logf("seed %d, after the faults: %v", seed, did)
	expectAtRest(t, cluster, ns, "after the faults")
	// Pods of the older revision wait, because it has no free slot. Those that leave it must make room for them, while all pods that are bound stay where they are.
	did["pod relabelled on its node"] += relabelSome(isOnNode)
	expectAtRest(t, cluster, ns, "after pods left the full revision")
	// The pods of the older revision come back in the newer one, where some slots are taken by pods that were bound in the older one.
	for _, name := range podsOf(t, cluster, ns, "revised", func(pod *corev1.Pod) bool { return revisionOf(pod) != revision }) {
		if err := cluster.Client.CoreV1().Pods(ns).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
			t.Fatal(err)
		}
	}
	expectAtRest(t, cluster, ns, "after the rollout", "revised")
	// New pods use every slot again.
	if err := cluster.Client.CoreV1().Pods(ns).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	expectAtRest(t, cluster, ns, "after all pods were replaced", slices.Collect(maps.Keys(spreads))...)
	// Now pods wait beside an idle scheduler, for long enough to be judged: a whole span of patience begins when no bind may be under way any more.
	exchanges := p.Exchanges()
	judged := exchanges[len(exchanges)-1].Answered.Add(held + patience/4 + patience + late)
	if err := cluster.WaitFor(ctx, "pods to wait", func(context.Context) (string, error) {
		if left := time.Until(judged); left > 0 {
			return fmt.Sprintf("%v are left", left), nil
		}
		return "", nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(spreads)) {
		did[name+": sharp"] += expectLinearizable(t, watcher, p, ns, name, edits[name])
	}
	if err := cluster.DeleteNamespace(ctx, ns); err != nil {
		t.Fatal(err)
	}
}

func revisionOf(pod *corev1.Pod) string { return pod.Labels[appsv1.ControllerRevisionHashLabelKey] }

func revisionPatch(revision string) []byte {
	return fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, appsv1.ControllerRevisionHashLabelKey, revision)
}

// podsOf returns the names of some pods of a workload.
func podsOf(t *testing.T, cluster *harness.Cluster, ns, app string, is func(*corev1.Pod) bool) (names []string) {
	t.Helper()
	pods, err := cluster.Pods(t.Context(), ns)
	if err != nil {
		t.Fatal(err)
	}
	for i := range pods {
		if pods[i].Labels["app"] == app && is(&pods[i]) {
			names = append(names, pods[i].Name)
		}
	}
	return names
}

// rollOut changes the template of a StatefulSet, and returns the new revision. Pods get it when they are made again, or when somebody says so.
func rollOut(t *testing.T, cluster *harness.Cluster, ns, name string) (revision string) {
	t.Helper()
	patch := []byte(`{"spec":{"template":{"metadata":{"annotations":{"version":"2"}}}}}`)
	if _, err := cluster.Client.AppsV1().StatefulSets(ns).Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := cluster.WaitFor(t.Context(), "the new revision", func(ctx context.Context) (string, error) {
		set, err := cluster.Client.AppsV1().StatefulSets(ns).Get(ctx, name, metav1.GetOptions{})
		if err != nil || set.Status.UpdateRevision == set.Status.CurrentRevision {
			return "there is only one", err
		}
		revision = set.Status.UpdateRevision
		return "", nil
	}); err != nil {
		t.Fatal(err)
	}
	return revision
}

// expectAtRest waits until each revision of each workload has as many pods in place as its quotas permit. A pod that took its slot while a quota was edited may
// keep it. So only the sums are exact, but in the exact workloads, which have one revision by then, pods are in the subsets of the plan.
func expectAtRest(t *testing.T, cluster *harness.Cluster, ns, when string, exact ...string) {
	t.Helper()
	type scope struct{ app, revision string }
	if err := cluster.WaitFor(t.Context(), "the pods to be in place "+when, func(ctx context.Context) (string, error) {
		pods, err := cluster.Pods(ctx, ns)
		if err != nil {
			return "", err
		}
		all, bound, kept := map[scope]int{}, map[scope]int{}, map[string]map[string]int{}
		for name := range spreads {
			kept[name] = map[string]int{}
		}
		for i := range pods {
			if pods[i].DeletionTimestamp != nil {
				continue
			}
			in := scope{pods[i].Labels["app"], revisionOf(&pods[i])}
			if all[in]++; pods[i].Spec.NodeName != "" {
				bound[in]++
				kept[in.app][pods[i].Labels[v1beta1.SubsetLabel]]++
			}
		}
		sums := map[string]int{}
		for in, n := range all {
			sums[in.app] += n
			if want := min(n, total(spreads[in.app].want)); bound[in] != want {
				return fmt.Sprintf("%s: %d of %d pods of revision %q are in place, want %d: %v", in.app, bound[in], n, in.revision, want, kept[in.app]), nil
			}
		}
		for _, name := range slices.Sorted(maps.Keys(spreads)) {
			if sums[name] != podsEach {
				return fmt.Sprintf("%s has %d pods", name, sums[name]), nil
			}
			if slices.Contains(exact, name) && !maps.Equal(kept[name], spreads[name].want) {
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
