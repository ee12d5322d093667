package tenant

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/test/checker"
	"github.com/berth-project/berth/test/harness"
)

var (
	length = flag.Duration("attack", 30*time.Second, "how long to measure in all: a third of it is the attack")
	seed   = flag.Uint64("seed", 1, "seed of the attack")
	rate   = flag.Int("rate", 30, "requests of the hostile tenant in a second")
	// attacking leaves out attacks, to find out which of them hurts. Latencies are judged all the same.
	attacking  = flag.String("only", "", "a regular expression: which attacks of the hostile tenant to make")
	flooded    = flag.Int("clients", 8, "how many requests of the hostile tenant may be under way")
	namespaces = flag.Int("namespaces", 1, "how many namespaces the hostile tenant has")
)

const (
	// judged is the shortest run whose latencies are judged: shorter ones have too few operations for a p99.
	judged = 2 * time.Minute
	// large is the shortest run in which the hostile tenant has as many objects as it may have: creating them takes minutes.
	large = 4 * time.Minute
	// growth is by how much the 99th percentile may grow, beside an equal flood without Berth.
	growth = 1.5
	// attempts is how many requests of each kind a judged run must have made.
	attempts = 5
)

// load is what the hostile tenant does while the other tenant is measured.
type load string

const (
	quiet  load = "quiet"
	flood  load = "equal flood"
	attack load = "attack"
)

// TestAHostileTenantSlowsNobodyElse: beside the attack, the 99th percentiles of creations, deletions and evictions are at most half higher than beside an equal
// flood that has nothing to do with Berth; see the package. All quotas and budgets of the other tenant hold, every object settles, and no process of Berth
// ends or uses more memory than its manifest allows.
func TestAHostileTenantSlowsNobodyElse(t *testing.T) {
	harness.Long(t)
	t.Logf("seed %d", *seed)
	cluster, err := harness.Start(t.Context(), sandbox.Config{Name: "tenant", Dir: t.TempDir(), Nodes: 10}, product.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Sandbox.Stop)
	n := newNeighbour(t, cluster)
	quotas, err := checker.StartIn(t.Context(), cluster.Dynamic, n.namespace)
	if err != nil {
		t.Fatal(err)
	}
	quotas.Grace = 5 * time.Second // the machine is busy
	ready, err := checker.WatchReady(t.Context(), cluster.Dynamic, n.namespace, "app=web", floor)
	if err != nil {
		t.Fatal(err)
	}
	memory := watchMemory(t, cluster)
	before := processes(cluster)

	sixth := *length / 6
	measured := map[load]latencies{quiet: {}, flood: {}, attack: {}}
	sent := map[load]map[string]int{}
	for _, phase := range []struct {
		load   load
		length time.Duration
	}{{quiet, sixth}, {flood, sixth}, {attack, 2 * sixth}, {flood, sixth}, {quiet, sixth}} {
		var hostile *enemy
		stop := func() {}
		if phase.load != quiet {
			hostile = newEnemy(t, cluster, phase.load == attack)
			hostile.settle(t)
			stop = hostile.start(t.Context())
		}
		idle, err := cluster.CPU()
		if err != nil {
			t.Fatal(err)
		}
		n.work(t, phase.length, measured[phase.load])
		stop()
		busy, err := cluster.CPU()
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: processor time in %s: %v", phase.load, phase.length, busy.Since(idle))
		if hostile == nil {
			continue
		}
		t.Logf("%s: %s; %s", phase.load, hostile.answers, hostile.costs())
		if sent[phase.load] == nil {
			sent[phase.load] = map[string]int{}
		}
		for name, count := range hostile.did {
			sent[phase.load][name] += count
		}
		hostile.leave(t)
		n.rest(t)
	}

	for _, violation := range quotas.Violations() {
		t.Error(violation)
	}
	violations, fewest := ready.End()
	for _, violation := range violations {
		t.Error(violation)
	}
	t.Logf("at least %d pods of the other tenant were ready, and %d must be; %d binds", fewest, floor, quotas.Binds())
	if after := processes(cluster); !maps.Equal(before, after) {
		t.Errorf("processes of Berth have started again: %v before, %v after", before, after)
	}
	memory()
	judge(t, measured, sent)
}

func judge(t *testing.T, measured map[load]latencies, sent map[load]map[string]int) {
	t.Helper()
	var lines strings.Builder
	for _, operation := range []string{creation, deletion, eviction} {
		fmt.Fprintf(&lines, "\n%s", operation)
		p99 := map[load]time.Duration{}
		for _, load := range []load{quiet, flood, attack} {
			all := measured[load][operation]
			if len(all) == 0 {
				t.Fatalf("%s: the test has measured no %s", load, operation)
			}
			slices.Sort(all)
			p99[load] = all[len(all)*99/100]
			fmt.Fprintf(&lines, " | %s: %d, p50 %.1f ms, p99 %.1f ms", load, len(all), ms(all[len(all)/2]), ms(p99[load]))
		}
		ratio := float64(p99[attack]) / float64(p99[flood])
		fmt.Fprintf(&lines, " | p99 of the attack: %.2f of the equal flood, %.2f of quiet", ratio, float64(p99[attack])/float64(p99[quiet]))
		if *length >= judged && ratio > growth {
			t.Errorf("p99 of a %s grows from %s beside an equal flood to %s beside the attack: %.2f times, want at most %.1f", operation, p99[flood], p99[attack], ratio, growth)
		}
	}
	t.Log(lines.String())
	total := func(load load) (sum int) {
		for _, n := range sent[load] {
			sum += n
		}
		return sum
	}
	t.Logf("requests of the hostile tenant: %d in the attack, %d in the equal flood", total(attack), total(flood))
	if *length < judged {
		return
	}
	// A tenth, because each phase ends at some moment.
	if total(flood)*10 < total(attack)*9 {
		t.Errorf("the equal flood had %d requests and the attack %d, so it is no equal one", total(flood), total(attack))
	}
	for _, one := range attacks {
		if n := sent[attack][one.name]; n < attempts && *attacking == "" {
			t.Errorf("the test shows little about %q, which the tenant tried %d times", one.name, n)
		}
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// as returns a client configuration of a user who has the role edit in a namespace and no other right.
func as(t *testing.T, cluster *harness.Cluster, user, namespace string) *rest.Config {
	t.Helper()
	if _, err := cluster.Client.RbacV1().RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	config := rest.CopyConfig(cluster.Sandbox.RESTConfig())
	config.WarningHandler = rest.NoWarnings{}
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
	return config
}

// isBerth is true for Berth's processes that run in a cluster.
func isBerth(component string) bool {
	return component == product.Scheduler || component == product.Controller
}

// processes returns the process of each replica of Berth.
func processes(cluster *harness.Cluster) map[string]int {
	all := map[string]int{}
	for _, status := range cluster.Sandbox.Status() {
		if isBerth(status.Name) {
			all[fmt.Sprintf("%s-%d", status.Name, status.Replica)] = status.PID
		}
	}
	return all
}

// watchMemory looks at the memory of Berth's processes each second. end fails the test if one ever used more than the limit in its manifest.
func watchMemory(t *testing.T, cluster *harness.Cluster) (end func()) {
	t.Helper()
	most, limits := map[string]float64{}, map[string]float64{}
	for _, component := range []string{product.Scheduler, product.Controller} {
		limits[component] = memoryLimit(t, component)
	}
	ctx, stop := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	watching.Go(func() {
		second := time.NewTicker(time.Second)
		defer second.Stop()
		for {
			for _, status := range cluster.Sandbox.Status() {
				if !isBerth(status.Name) {
					continue
				}
				if used, err := harness.ResidentMemory(status.PID); err == nil { // a process that has just ended has none, and the test notices that
					most[status.Name] = max(most[status.Name], used)
				}
			}
			select {
			case <-ctx.Done():
				return
			case <-second.C:
			}
		}
	})
	t.Cleanup(func() { stop(); watching.Wait() })
	return func() {
		stop()
		watching.Wait()
		for component, limit := range limits {
			t.Logf("memory of %s: %.0f MiB at most, the limit is %.0f MiB", component, most[component]/(1<<20), limit/(1<<20))
			if most[component] == 0 || most[component] >= limit {
				t.Errorf("%s used %.0f bytes of memory, and the limit of its manifest is %.0f", component, most[component], limit)
			}
		}
	}
}

// memoryLimit is that of the container in the manifest of a component.
func memoryLimit(t *testing.T, component string) float64 {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(harness.Root(), "manifests", component, "deployment.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for document := range strings.SplitSeq(string(content), "\n---\n") {
		var deployment appsv1.Deployment
		if err := yaml.Unmarshal([]byte(document), &deployment); err != nil {
			t.Fatal(err)
		}
		for _, container := range deployment.Spec.Template.Spec.Containers {
			if limit := container.Resources.Limits.Memory(); !limit.IsZero() {
				return limit.AsApproximateFloat64()
			}
		}
	}
	t.Fatalf("the manifest of %s has no memory limit", component)
	return 0
}
