package federation

import (
	"math"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/cmd/sandbox/federated"
	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/pkg/members"
	"github.com/berth-project/berth/pkg/sandbox"
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
		at := slices.IndexFunc(cluster.Components, func(c sandbox.Component) bool { return c.Name == product.Controller })
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

// TestTheHubHoldsTheTotalWhateverItSees scales while the caches of the hub or of a member are late, and the hub is killed, also right after writes. All members answer all the
// time, so at every revision they are asked for no more than the total and maxMoving.
func TestTheHubHoldsTheTotalWhateverItSees(t *testing.T) {
	w, timelines := startSeen(t)
	random := rand.New(rand.NewPCG(*seed, 1))
	const ns = "watch"
	w.room(t, ns, [memberCount]int{lots, lots, lots})
	watched := &tally{asked: make([]int32, memberCount), most: -1}
	for i, member := range w.Members() {
		clients, err := kubernetes.NewForConfig(member.RESTConfig())
		if err != nil {
			t.Fatal(err)
		}
		if err := watched.watch(t.Context(), i, clients, ns); err != nil {
			t.Fatal(err)
		}
	}
	kill := func() { _ = w.Hub().Signal(product.Controller, 0, syscall.SIGKILL) } // it may not run now
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
		next := 1 + random.IntN(4)
		written := timelines[random.IntN(len(timelines))]
		written.AtWrites(func(number int, _ string, commit func()) (lost bool) {
			commit()
			if number != next {
				return false
			}
			kill()
			return true
		})
		// No watch ends: a member whose watches end is away for a moment, and then nobody promises anything.
		if err := one.Lag(t.Context(), harness.All); err != nil {
			t.Fatal(err)
		}
		w.apply(t, ns, int(total), evenly)
		if random.IntN(2) == 0 {
			did["kill"]++
			kill()
		}
		time.Sleep(time.Duration(500+random.IntN(2000)) * time.Millisecond) // the fault is the time that passes
		one.CatchUp()
		if len(written.Writes()) >= next {
			did["kill after a write"]++
		}
		written.AtWrites(nil)
		w.awaitReachable(t, ns)
		w.expectSum(t, ns, total)
	}
	watched.mu.Lock()
	defer watched.mu.Unlock()
	for _, violation := range watched.violations {
		t.Error(violation)
	}
	served := map[string]int{}
	for _, one := range timelines {
		for fault, n := range one.Served() {
			served[fault] += n
		}
	}
	t.Logf("seed %d: %v; of the proxies: %v", *seed, did, served)
}
