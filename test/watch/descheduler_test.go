package watch

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/test/checker"
	"github.com/berth-project/berth/test/harness"
)

const (
	deschedulerUser = "system:serviceaccount:berth-system:berth-descheduler"
	// policy lets the descheduler act at once, with one pod at a time.
	policy = `
apiVersion: descheduler/v1alpha2
kind: DeschedulerPolicy
profiles:
- name: berth
  pluginConfig:
  - {name: DefaultEvictor, args: {}}
  - {name: SubsetEvictor, args: {}}
  - {name: EnforceSubsetMaxReplicas, args: {settleTime: 0s, maxUnavailable: 1}}
  plugins:
    filter: {enabled: [SubsetEvictor]}
    preEvictionFilter: {enabled: [SubsetEvictor]}
    deschedule: {enabled: [EnforceSubsetMaxReplicas]}
`
	// movable pods are in subset a, and all but one have to leave it.
	movable = 4
	// flight is a little more than how long a pod counts as missing whose eviction was announced and never happened.
	flight = 3 * time.Minute
	// mostWrites is how many writes of a process are in turn those at which it is killed. Few processes write more.
	mostWrites = 5
	// mostRuns bounds how often the descheduler runs. Each run moves at most one pod.
	mostRuns = 40
)

// descheduler runs as a process behind a proxy.
type descheduler struct {
	*world
	policy, kubeconfig string
	cmd                *exec.Cmd
	// said is what the last process printed.
	said string
}

func newDescheduler(t *testing.T, seed uint64) *descheduler {
	t.Helper()
	d := &descheduler{world: newWorld(t, product.Scheduler, seed)}
	proxy, timeline, err := harness.StartTimeline(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	d.Timeline = timeline
	server := the.Sandbox.RESTConfig()
	if err := proxy.PassTo(server.Host, server.CAData, server.BearerToken); err != nil {
		t.Fatal(err)
	}
	file := clientcmdapi.NewConfig()
	file.Clusters["proxy"] = &clientcmdapi.Cluster{Server: proxy.URL}
	file.AuthInfos["user"] = &clientcmdapi.AuthInfo{Impersonate: deschedulerUser, ImpersonateGroups: []string{"system:serviceaccounts", "system:serviceaccounts:berth-system", "system:authenticated"}}
	file.Contexts["proxy"] = &clientcmdapi.Context{Cluster: "proxy", AuthInfo: "user"}
	file.CurrentContext = "proxy"
	d.policy, d.kubeconfig = filepath.Join(t.TempDir(), "policy.yaml"), filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*file, d.kubeconfig); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.policy, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	return d
}

// run runs it once. It is true if it was killed.
func (d *descheduler) run() (killed bool) {
	d.Helper()
	var output bytes.Buffer
	ctx, cancel := context.WithTimeout(d.Context(), harness.Timeout)
	defer cancel()
	d.cmd = exec.CommandContext(ctx, filepath.Join(harness.Root(), "bin", "berth-descheduler"), "--kubeconfig="+d.kubeconfig, "--policy-config-file="+d.policy, "--secure-port=0", "--cert-dir="+filepath.Dir(d.policy))
	d.cmd.Stdout, d.cmd.Stderr = &output, &output
	if err := d.cmd.Start(); err != nil {
		d.Fatal(err)
	}
	err := d.cmd.Wait()
	d.said = output.String()
	if err != nil {
		if d.cmd.ProcessState.ExitCode() >= 0 {
			d.Logf("the descheduler: %v\n%s", err, d.said) // caches that are too old may be a reason to give up
		}
		return d.cmd.ProcessState.ExitCode() < 0
	}
	return false
}

// TestTheDeschedulerMovesOnePodAtATimeWhateverItSees lowers a quota, and runs the descheduler until enough pods have moved. Each process sees the world as it was before the previous one, can list and watch nothing at first, or is killed at one
// of its writes: at each in turn, which arrives before or after that. At every revision at most one pod is missing, and none moves twice.
func TestTheDeschedulerMovesOnePodAtATimeWhateverItSees(t *testing.T) {
	did := map[string]int{}
	for round := range *rounds {
		t.Run(fmt.Sprintf("seed %d", *seed+uint64(round)), func(t *testing.T) {
			d := newDescheduler(t, *seed+uint64(round))
			d.apply(spread("Deployment", "moves", "quotaScope: Workload", in("a", fmt.Sprint(movable)), in("b", "")) + workload("Deployment", "moves", movable, "berth-scheduler"))
			d.expectLayout("", map[string]string{"moves": fmt.Sprintf("a=%d", movable)})
			d.await("ready pods", func(ctx context.Context) (string, error) { return d.allReady(ctx, "moves", movable) })
			ready, err := checker.WatchReady(context.WithoutCancel(t.Context()), the.Dynamic, d.ns, "app=moves", movable-1)
			if err != nil {
				t.Fatal(err)
			}
			d.apply(spread("Deployment", "moves", "quotaScope: Workload", in("a", "1"), in("b", "")))
			d.NoWatchLists = true
			done := func() bool {
				pods, err := the.Pods(t.Context(), d.ns)
				if err != nil {
					t.Fatal(err)
				}
				in := 0
				for i := range pods {
					if pods[i].Spec.NodeName == "watch-a" {
						in++
					}
				}
				return in == 1 && len(pods) == movable
			}
			underWay := false
			for runs := 0; !done(); runs++ {
				if runs == mostRuns {
					t.Fatalf("after %d runs the pods have not moved: %v\n%s\n%v\n%v", runs, d.did, d.said, d.Reads(), d.Served())
				}
				// From here on the next processes may see the world as it is now.
				ends := func() {}
				if d.random.IntN(2) == 0 {
					d.CatchUp()
					switch n := d.random.IntN(8); {
					case n < 5:
						d.did["late"]++
						if err := d.Lag(t.Context(), harness.All); err != nil {
							t.Fatal(err)
						}
					case n < 7:
						d.did["cut"]++
						ends = d.cutAWhile()
					}
				}
				at, late := 1+(runs+int(*seed)+round)%mostWrites, d.random.IntN(3) == 0
				d.KillAtWrites(func() {
					d.did["kill"]++
					_ = d.cmd.Process.Kill() // it may have ended
				}, lateBy, func(number int) (bool, bool) { return number == at, late })
				// A pod whose eviction was announced counts as missing for a while. After a late write, the next process runs within this time.
				underWay = d.run() || underWay
				if underWay && !late {
					d.Jump(flight)
					underWay = false
				}
				ends()
				d.did["run"]++
			}
			violations, fewest := ready.End()
			for _, violation := range violations {
				t.Error(violation)
			}
			maps.Copy(d.did, d.Served())
			for what, n := range d.did {
				did[what] += n
			}
			d.Timeline = past[product.Scheduler]
			d.expectLayout("after the moves", map[string]string{"moves": fmt.Sprintf("a=1 b=%d", movable-1)})
			if created := d.quotas.Created(d.ns, "moves"); created != 2*movable-1 {
				t.Errorf("%d pods were created, want %d: each pod moves once", created, 2*movable-1)
			}
			t.Logf("never less than %d of %d pods were ready; %v", fewest, movable, d.did)
		})
	}
	harness.ExpectAll(t, did, "kill", "late", "old list")
	if *rounds >= manyRounds {
		harness.ExpectAll(t, did, "late write", "event held back", "cut", "list refused")
	}
}

// cutAWhile lets a process that starts now list and watch nothing at first. It has no watch yet that could skip events. The caller must call what it returns.
func (d *descheduler) cutAWhile() (ends func()) {
	d.Cut(harness.All)
	mended := make(chan error, 1)
	time.AfterFunc(longest/2, func() { mended <- d.Mend(context.WithoutCancel(d.Context()), false) })
	return func() {
		if err := <-mended; err != nil {
			d.Fatal(err)
		}
	}
}

func (w *world) allReady(ctx context.Context, name string, replicas int32) (string, error) {
	d, err := the.Client.AppsV1().Deployments(w.ns).Get(ctx, name, metav1.GetOptions{})
	if err != nil || d.Status.ReadyReplicas != replicas {
		return fmt.Sprintf("%d are ready", d.Status.ReadyReplicas), err
	}
	return "", nil
}
