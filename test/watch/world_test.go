package watch

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/manifests"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/test/checker"
	"github.com/berth-project/berth/test/harness"
)

var (
	seed   = flag.Uint64("seed", 1, "seed of the first round")
	rounds = flag.Int("rounds", 1, "how many rounds each test plays, each with a seed of its own")
	every  = flag.Int("every-write", 0, "kill a component at each n-th of its writes in turn, from the seed on; 0 means at some writes of one round")
)

const (
	// bindTimeout is as short as the scheduler allows, because a new leader waits for twice as long.
	bindTimeout = time.Second
	// grace is how long the scheduler may not have seen an edit while its caches are late. No fault of a test lasts longer. The scheduler also waits that long for a spread that admission has seen: after its
	// observationTimeout it binds the pods without the spread.
	grace = 20 * time.Second
	// lateBy is how much later than its process is killed a late write arrives. No bind takes longer.
	lateBy = bindTimeout * 9 / 10
	// manyRounds are those of a run in which each kind of fault must happen. Each round begins with another kind.
	manyRounds = 6
	// longest is how long a step waits for a component that sees the past.
	longest = 2 * time.Second
	// mostKills bounds the kills of a round.
	mostKills = 4
)

// the is the cluster that all tests share, and past has the timeline of each component. done counts what the rounds of a test have done, by the test.
var (
	the  *harness.Cluster
	past = map[string]*harness.Timeline{}
	done = map[string]map[string]int{}
)

func TestMain(m *testing.M) {
	flag.Parse()
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	dir, err := os.MkdirTemp("", "berth-watch-")
	if err != nil {
		return 1, err
	}
	defer func() {
		if code == 0 {
			err = errors.Join(err, os.RemoveAll(dir))
		} else {
			fmt.Fprintln(os.Stderr, "the components' logs are in", filepath.Join(dir, "logs"))
		}
	}()
	behind := map[string]*harness.Proxy{}
	for _, name := range []string{product.Scheduler, product.Controller} {
		if behind[name], past[name], err = harness.StartTimeline(ctx); err != nil {
			return 1, err
		}
	}
	config, err := schedulerConfig()
	if err != nil {
		return 1, err
	}
	if the, err = harness.StartBehind(ctx, sandbox.Config{Name: "watch", Dir: dir}, product.Options{SidecarSets: true, SchedulerConfig: config}, behind); err != nil {
		return 1, err
	}
	defer the.Sandbox.Stop()
	var nodes []*corev1.Node
	for _, pool := range []string{"a", "b", "c"} {
		nodes = append(nodes, sandbox.NewNode("watch-"+pool, "zone-"+pool, map[string]string{"pool": pool}, nil, nil))
	}
	if err := the.Sandbox.CreateNodes(ctx, nodes); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

func schedulerConfig() ([]byte, error) {
	var config map[string]any
	if err := yaml.Unmarshal(manifests.SchedulerConfig, &config); err != nil {
		return nil, err
	}
	profiles, _, _ := unstructured.NestedSlice(config, "profiles")
	plugins, _, _ := unstructured.NestedSlice(profiles[0].(map[string]any), "pluginConfig")
	for name, timeout := range map[string]time.Duration{"bindTimeout": bindTimeout, "observationTimeout": grace} {
		if err := unstructured.SetNestedField(plugins[0].(map[string]any), timeout.String(), "args", name); err != nil {
			return nil, err
		}
	}
	profiles[0].(map[string]any)["pluginConfig"] = plugins
	config["profiles"] = profiles
	return yaml.Marshal(config)
}

// world is a namespace of a round, and the component that sees the past.
type world struct {
	*testing.T
	ns, component string
	*harness.Timeline
	random *rand.Rand
	quotas *checker.Checker
	// did counts what was done, and met the faults that the proxy had served before.
	did, met map[string]int
	// next is the kind of the next fault, negative for any, and end ends the present one, if it is not nil.
	next int
	end  func()
}

// newWorld begins a round.
func newWorld(t *testing.T, component string, seed uint64) *world {
	t.Helper()
	ns, err := the.CreateNamespace(t.Context(), "watch")
	if err != nil {
		t.Fatal(err)
	}
	quotas, err := checker.Start(t.Context(), the.Dynamic)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, ns: ns, component: component, Timeline: past[component], random: rand.New(rand.NewPCG(seed, 0)), quotas: quotas, did: map[string]int{}, next: int(seed % 3)}
	w.met = w.Served()
	t.Cleanup(func() {
		w.calm()
		for _, violation := range quotas.Violations() {
			t.Error(violation)
		}
		if err := the.DeleteNamespace(context.Background(), ns); err != nil {
			t.Error(err)
		}
	})
	return w
}

// calm ends all faults.
func (w *world) calm() {
	w.Helper()
	w.AtWrites(nil)
	w.CatchUp()
	if err := w.Mend(context.Background(), false); err != nil {
		w.Error(err)
	}
	w.ready()
}

// ready waits until all components run.
func (w *world) ready() {
	w.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), harness.Timeout)
	defer cancel()
	if err := the.Sandbox.WaitReady(ctx); err != nil {
		w.Fatal(err)
	}
}

// kill ends the component, if it runs. The next scheduler need not wait until the lease of this one has expired.
func (w *world) kill() {
	if the.Sandbox.Signal(w.component, 0, syscall.SIGKILL) != nil {
		return // it does not run now
	}
	if w.component == product.Scheduler {
		_, _ = the.Client.CoordinationV1().Leases("berth-system").Patch(context.Background(), "berth-scheduler", types.MergePatchType, []byte(`{"spec":{"leaseDurationSeconds":1}}`), metav1.PatchOptions{}) // otherwise it takes longer
	}
}

// crashes plays a scenario after what is before it, and kills the component after some of its writes. With -every-write it plays it again and again, each time with one kill: in turn, the API server has
// carried out the write before the kill, or gets it only after. In one round, up to gap writes more than one lie between kills.
func crashes(t *testing.T, component string, gap int, before, scenario func(*world)) {
	t.Helper()
	if *every == 0 {
		for round := range *rounds {
			t.Run(fmt.Sprintf("seed %d", *seed+uint64(round)), func(t *testing.T) {
				w := newWorld(t, component, *seed+uint64(round))
				before(w)
				next := 1 + w.random.IntN(4)
				w.KillAtWrites(w.kill, lateBy, func(number int) (is, late bool) {
					if number != next || w.did["kill"] == mostKills {
						return false, false
					}
					w.did["kill"]++
					next += 2 + w.random.IntN(gap)
					return true, w.random.IntN(3) == 0
				})
				scenario(w)
				w.Logf("%d kills, %d writes", w.did["kill"], len(w.Writes()))
				harness.ExpectAll(w, w.did, "kill")
			})
		}
		return
	}
	kills := 0
	for n, all := 1+int(*seed-1)%*every, 1; n <= all || n <= *every; n += *every {
		late := (n / *every + int(*seed))%2 == 0
		t.Run(fmt.Sprintf("write %d late %t", n, late), func(t *testing.T) {
			w := newWorld(t, component, *seed)
			before(w)
			w.KillAtWrites(w.kill, lateBy, func(number int) (is, isLate bool) { return number == n, late })
			scenario(w)
			writes := w.Writes()
			if n <= len(writes) {
				kills++
				t.Logf("killed at %s, number %d of %d", writes[n-1], n, len(writes))
			}
			all = len(writes)
		})
		if t.Failed() {
			return
		}
	}
	if kills == 0 {
		t.Error("there was no write to be killed at")
	}
}

// The kinds of faults.
const (
	skipped = iota
	compacted
	late
)

// fault begins a fault at the watches of some kinds.
func (w *world) fault(kinds ...string) {
	w.Helper()
	some := []string{harness.All}
	if w.random.IntN(3) > 0 {
		w.random.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
		some = slices.Clone(kinds[:1+w.random.IntN(len(kinds)-1)])
	}
	kind := w.next
	if w.next = -1; kind < 0 {
		kind = []int{skipped, compacted, late, late, late, late, late, late}[w.random.IntN(8)]
	}
	if kind == late {
		w.did["late"]++
		if err := w.Lag(w.Context(), some...); err != nil {
			w.Fatal(err)
		}
		w.end = w.CatchUp
		return
	}
	w.did[[]string{"skipped", "compacted"}[kind]]++
	w.Cut(some...)
	w.end = func() {
		if err := w.Mend(w.Context(), kind == compacted); err != nil {
			w.Fatal(err)
		}
	}
}

// over ends the fault, if there is one.
func (w *world) over() {
	if w.end != nil {
		w.end()
		w.end = nil
	}
}

// play carries out steps, each during a fault that begins some steps before or with it. Half of the time it kills the component during the fault.
func (w *world) play(kinds []string, steps ...func()) {
	w.Helper()
	w.NoWatchLists = w.random.IntN(4) > 0
	for _, step := range steps {
		if w.end == nil {
			w.fault(kinds...)
		}
		step()
		if w.random.IntN(2) == 0 {
			w.did["kill"]++
			w.kill()
		}
		time.Sleep(time.Duration(w.random.IntN(1000)) * time.Millisecond) // the fault is the time that passes
		if w.random.IntN(2) == 0 {
			w.over()
		}
	}
	w.over()
}

// apply applies objects. If a webhook does not answer for long, because a process that was killed can list nothing, the fault is over.
func (w *world) apply(text string) {
	w.Helper()
	began := time.Now()
	if err := the.WaitFor(w.Context(), "an object to be applied", func(ctx context.Context) (string, error) {
		err := the.ApplyYAML(ctx, w.ns, text)
		if isAway(err) {
			if time.Since(began) > longest {
				w.over()
			}
			return err.Error(), nil
		}
		return "", err
	}); err != nil {
		w.Fatal(err)
	}
}

func (w *world) scale(name string, replicas int) {
	w.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)
	if _, err := the.Client.AppsV1().Deployments(w.ns).Patch(w.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		w.Fatal(err)
	}
}

// isAway is true if a webhook did not answer, or if somebody else wrote at the same time.
func isAway(err error) bool {
	return apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsConflict(err)
}

// remove deletes a pod of each of these, at random.
func (w *world) remove(apps ...string) {
	w.Helper()
	for _, app := range apps {
		list, err := the.Client.CoreV1().Pods(w.ns).List(w.Context(), metav1.ListOptions{LabelSelector: "app=" + app})
		if err != nil {
			w.Fatal(err)
		}
		if len(list.Items) == 0 {
			continue
		}
		pod := list.Items[w.random.IntN(len(list.Items))]
		if err := the.Client.CoreV1().Pods(w.ns).Delete(w.Context(), pod.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			w.Fatal(err)
		}
	}
}

// tryEvict asks for the eviction of all pods of an app. A budget may refuse, and webhooks may be away.
func (w *world) tryEvict(app string) {
	w.Helper()
	list, err := the.Client.CoreV1().Pods(w.ns).List(w.Context(), metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		w.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(w.Context(), longest)
	defer cancel()
	var asking sync.WaitGroup
	var mu sync.Mutex
	for i := range list.Items {
		asking.Go(func() {
			err := the.Client.CoreV1().Pods(w.ns).EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: list.Items[i].Name}})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				w.did["evicted"]++
			case apierrors.IsTooManyRequests(err), apierrors.IsForbidden(err):
				w.did["eviction refused"]++
			case apierrors.IsNotFound(err), isAway(err), ctx.Err() != nil:
				w.did["eviction without an answer"]++
			default:
				w.Error(err)
			}
		})
	}
	asking.Wait()
}

// expectLayout waits until the pods of each app are bound as wanted, for instance a=3 b=1, and all statuses of the namespace are true. A pod that waits is in subset "".
func (w *world) expectLayout(when string, want map[string]string) {
	w.Helper()
	if err := the.WaitFor(w.Context(), "the pods to be in place "+when, func(ctx context.Context) (string, error) {
		pods, err := the.Pods(ctx, w.ns)
		if err != nil {
			return "", err
		}
		counts := map[string]map[string]int{}
		for i := range pods {
			app, at := pods[i].Labels["app"], ""
			if pods[i].DeletionTimestamp != nil {
				return pods[i].Name + " is about to go", nil
			}
			if pods[i].Spec.NodeName != "" {
				at = pods[i].Labels[v1beta1.SubsetLabel]
			}
			if counts[app] == nil {
				counts[app] = map[string]int{}
			}
			counts[app][at]++
		}
		for _, app := range slices.Sorted(maps.Keys(want)) {
			var got []string
			for _, at := range slices.Sorted(maps.Keys(counts[app])) {
				got = append(got, fmt.Sprintf("%s=%d", at, counts[app][at]))
			}
			if sum, is := strings.CutPrefix(want[app], "all="); is {
				total := 0
				for _, n := range counts[app] {
					total += n
				}
				if counts[app][""] > 0 || fmt.Sprint(total) != sum {
					return fmt.Sprintf("%s: %v", app, got), nil
				}
			} else if strings.Join(got, " ") != want[app] {
				return fmt.Sprintf("%s: %v, want %s", app, got, want[app]), nil
			}
		}
		differences, err := checker.Recount(ctx, the.Dynamic, w.ns)
		return strings.Join(differences, "\n"), err
	}); err != nil {
		w.Fatal(err)
	}
}

const podSpec = `terminationGracePeriodSeconds: 0, containers: [{name: main, image: "registry.example.com/main:0"}]`

func workload(kind, name string, replicas int, scheduler string) string {
	more := ""
	if kind == "StatefulSet" {
		more = "serviceName: " + name + ", podManagementPolicy: Parallel, "
	}
	if scheduler != "" {
		scheduler = "schedulerName: " + scheduler + ", "
	}
	return fmt.Sprintf(`
---
{apiVersion: apps/v1, kind: %[1]s, metadata: {name: %[2]s}, spec: {replicas: %[3]d, %[4]sselector: {matchLabels: {app: %[2]s}}, template: {metadata: {labels: {app: %[2]s}}, spec: {%[5]s%[6]s}}}}
`, kind, name, replicas, more, scheduler, podSpec)
}

func in(pool, limit string) string {
	if limit != "" {
		limit = ", maxReplicas: " + limit
	}
	return fmt.Sprintf("{name: %[1]s%[2]s, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [%[1]s]}]}}", pool, limit)
}

func spread(kind, name, strategy string, subsets ...string) string {
	return fmt.Sprintf("\n---\n{apiVersion: apps.kruise.io/v1alpha1, kind: WorkloadSpread, metadata: {name: %[2]s}, spec: {targetRef: {apiVersion: apps/v1, kind: %[1]s, name: %[2]s}, scheduleStrategy: {%[3]s}, subsets: [%[4]s]}}\n",
		kind, name, strategy, strings.Join(subsets, ", "))
}

// deletePods deletes all pods of the namespace at once, so that the next ones use every slot again.
func (w *world) deletePods() {
	w.Helper()
	if err := the.Client.CoreV1().Pods(w.ns).DeleteCollection(w.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		w.Fatal(err)
	}
}

// report adds what the round has done to what its test has done, and fails the test after its last round if that shows nothing. more is what must have happened as well in many rounds.
func (w *world) report(last bool, more ...string) {
	w.Helper()
	for fault, n := range w.Served() {
		w.did[fault] += n - w.met[fault]
	}
	w.Log(w.did)
	if w.did["event held back"]+w.did["old list"]+w.did["watch ended"]+w.did["watch refused"]+w.did["list refused"] == 0 {
		w.Error("the component has met no fault")
	}
	test, _, _ := strings.Cut(w.Name(), "/")
	if done[test] == nil {
		done[test] = map[string]int{}
	}
	for what, n := range w.did {
		done[test][what] += n
	}
	if !last {
		return
	}
	harness.ExpectAll(w, done[test], "kill")
	if *rounds >= manyRounds {
		harness.ExpectAll(w, done[test], append(more, "late", "skipped", "compacted", "event held back", "old list", "watch ended", "watch of a revision that is gone")...)
	}
}
