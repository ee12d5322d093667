package federation

import (
	"math"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/cmd/sandbox/federated"
	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/pkg/members"
	"github.com/berth-project/berth/test/harness"
)

// startSeen starts a federation whose hub reaches itself and its members through timelines, in this order.
func startSeen(t *testing.T) (*world, []*harness.Timeline) {
	t.Helper()
	proxy, timeline, err := harness.StartTimeline(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w := startWorld(t, func(name string, cluster sandbox.Config) sandbox.Config {
		at := slices.IndexFunc(cluster.Components, func(c sandbox.Component) bool { return c.Name == product.United })
		if name == federated.Hub {
			cluster.Components[at] = proxy.Behind(cluster.Components[at])
		}
		return cluster
	})
	all := []*harness.Timeline{timeline}
	for i := range w.secrets {
		proxy, timeline, err := harness.StartTimeline(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, timeline)
		config, err := clientcmd.Load(w.secrets[i].Data[members.KubeconfigKey])
		if err != nil {
			t.Fatal(err)
		}
		here := config.Contexts[config.CurrentContext]
		cluster, user := config.Clusters[here.Cluster], config.AuthInfos[here.AuthInfo]
		if err := proxy.PassTo(cluster.Server, cluster.CertificateAuthorityData, user.Token); err != nil {
			t.Fatal(err)
		}
		cluster.Server, cluster.CertificateAuthorityData = proxy.URL, nil
		text, err := clientcmd.Write(*config)
		if err != nil {
			t.Fatal(err)
		}
		var secret corev1.Secret
		if err := w.hub.Get(t.Context(), client.ObjectKeyFromObject(&w.secrets[i]), &secret); err != nil {
			t.Fatal(err)
		}
		secret.Data = map[string][]byte{members.KubeconfigKey: text}
		if err := w.hub.Update(t.Context(), &secret); err != nil {
			t.Fatal(err)
		}
	}
	return w, all
}

// lateBy is how much later than the hub is killed a late write arrives. The next hub may run by then.
const lateBy = 900 * time.Millisecond

// TestTheHubHoldsTheTotalWhateverItSees scales while the caches of the hub or of a member are late or the hub's own watches have ended, and the hub is killed, also right after each of its first writes, some of
// which arrive only then. All members answer all the time, so at every revision they are asked for no more than the total and maxMoving.
func TestTheHubHoldsTheTotalWhateverItSees(t *testing.T) {
	w, timelines := startSeen(t)
	random := rand.New(rand.NewPCG(*seed, 1))
	const ns = "watch"
	// On a machine with much to do, a member may not answer for a second. It must not count as lost: what is lost is made again.
	w.lost = int(timeout / time.Second)
	w.room(t, ns, [memberCount]int{lots, lots, lots})
	watched, err := watchAll(t.Context(), w, ns)
	if err != nil {
		t.Fatal(err)
	}
	kill := func() { _ = w.Hub().Signal(product.United, 0, syscall.SIGKILL) } // it may not run now
	total, did := int32(tallest/2), map[string]int{}
	w.apply(t, ns, int(total), evenly)
	w.awaitReachable(t, ns)
	w.expectSum(t, ns, total)
	for began := time.Now(); time.Since(began) < *faultsFor/2; { // TestFaultsAtRandom has the other half of such faults
		before := total
		total = 5 + random.Int32N(tallest-4)
		most := max(before, total)
		watched.allow(most + int32(math.Ceil(surge*float64(most))))
		for _, one := range timelines {
			one.NoWatchLists = random.IntN(3) > 0
		}
		one := timelines[random.IntN(len(timelines))]
		change := did["change"]
		did["change"]++
		next, late := 1+change%4, change/4%2 == 1
		written := timelines[random.IntN(len(timelines))]
		written.KillAtWrites(kill, lateBy, func(number int) (bool, bool) { return number == next, late })
		end := one.CatchUp
		if kind := map[int]string{1: "skipped", 4: "compacted"}[change%6]; kind != "" {
			// No watch of a member ends: a member whose watches end is away for a moment, and then nobody promises anything.
			did[kind]++
			timelines[0].Cut(harness.All)
			end = func() {
				if err := timelines[0].Mend(t.Context(), kind == "compacted"); err != nil {
					t.Fatal(err)
				}
			}
		} else {
			did["late"]++
			if err := one.Lag(t.Context(), harness.All); err != nil {
				t.Fatal(err)
			}
		}
		w.apply(t, ns, int(total), evenly)
		if random.IntN(2) == 0 {
			did["kill"]++
			kill()
		}
		time.Sleep(time.Duration(500+random.IntN(2000)) * time.Millisecond) // the fault is the time that passes
		end()
		if len(written.Writes()) >= next {
			did["kill after a write"]++
		}
		written.AtWrites(nil)
		w.awaitReachable(t, ns)
		w.expectSum(t, ns, total)
	}
	served := map[string]int{}
	for _, one := range timelines {
		for fault, n := range one.Served() {
			served[fault] += n
		}
	}
	t.Logf("seed %d: %v; of the proxies: %v", *seed, did, served)
	watched.report(t)
	if served["event held back"]+served["old list"]+served["watch ended"] == 0 || did["kill"]+did["kill after a write"] == 0 {
		t.Error("too little has happened")
	}
	if *faultsFor >= long {
		harness.ExpectAll(t, did, "late", "skipped", "compacted", "kill", "kill after a write")
		harness.ExpectAll(t, served, "event held back", "old list", "watch ended")
	}
	if *faultsFor >= 2*long {
		harness.ExpectAll(t, served, "late write")
	}
}
