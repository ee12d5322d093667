package federation

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	"github.com/berth-project/berth/pkg/members"
)

func TestMetricsSayWhatTheStatusSays(t *testing.T) {
	w := newWorld(t, evenly, 100, 100, 2)
	w.until(3 * time.Minute)
	w.expect("5 5 2")
	want := `
		# HELP berth_federatedreplicaset_available_replicas Available pods in a cluster, as they were seen last.
		# TYPE berth_federatedreplicaset_available_replicas gauge
		berth_federatedreplicaset_available_replicas{cluster="a",federatedreplicaset="web",namespace="shop"} 5
		berth_federatedreplicaset_available_replicas{cluster="b",federatedreplicaset="web",namespace="shop"} 5
		berth_federatedreplicaset_available_replicas{cluster="c",federatedreplicaset="web",namespace="shop"} 2
		# HELP berth_federatedreplicaset_capacity Replicas that a cluster has room for; -1 if nothing is known to limit it.
		# TYPE berth_federatedreplicaset_capacity gauge
		berth_federatedreplicaset_capacity{cluster="a",federatedreplicaset="web",namespace="shop"} -1
		berth_federatedreplicaset_capacity{cluster="b",federatedreplicaset="web",namespace="shop"} -1
		berth_federatedreplicaset_capacity{cluster="c",federatedreplicaset="web",namespace="shop"} 2
		# HELP berth_federatedreplicaset_ready 1 if the spec is valid, all clusters answer, and every cluster is asked for what it should have, and 0 if not.
		# TYPE berth_federatedreplicaset_ready gauge
		berth_federatedreplicaset_ready{federatedreplicaset="web",namespace="shop"} 1
	`
	names := []string{"berth_federatedreplicaset_available_replicas", "berth_federatedreplicaset_capacity", "berth_federatedreplicaset_ready"}
	if err := testutil.CollectAndCompare(w.measures, strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
	c := w.cluster("c")
	c.away, c.since = true, w.passed.Now()
	w.until(6 * time.Minute)
	w.do(w.reconcile())
	expectSeries(t, w.measures, map[string]float64{
		`berth_federatedreplicaset_clusters{federatedreplicaset="web",namespace="shop",state="Lost"}`:  1,
		`berth_federatedreplicaset_clusters{federatedreplicaset="web",namespace="shop",state="Full"}`:  0,
		`berth_federatedreplicaset_clusters{federatedreplicaset="web",namespace="shop",state="Ready"}`: 2,
		`berth_federatedreplicaset_may_exceed_by{federatedreplicaset="web",namespace="shop"}`:          2,
		`berth_federatedreplicaset_placed{federatedreplicaset="web",namespace="shop"}`:                 1,
		`berth_federatedreplicaset_ready{federatedreplicaset="web",namespace="shop"}`:                  0,
	})
	w.do(w.hub.Delete(t.Context(), w.frs()))
	w.do(w.reconcile())
	for series := range exposed(t, w.measures) {
		if strings.Contains(series, `"web"`) {
			t.Errorf("a series of a FederatedReplicaSet that is gone: %s", series)
		}
	}
}

// TestAnInvalidSpecIsNotReadyAndLacksNoRoom: alerts tell one from the other.
func TestAnInvalidSpecIsNotReadyAndLacksNoRoom(t *testing.T) {
	w := newWorld(t, evenly, 100)
	w.change(func(frs *v1alpha1.FederatedReplicaSet) { frs.Spec.Selector = nil })
	w.do(w.reconcile())
	expectSeries(t, w.measures, map[string]float64{
		`berth_federatedreplicaset_placed{federatedreplicaset="web",namespace="shop"}`: 1,
		`berth_federatedreplicaset_ready{federatedreplicaset="web",namespace="shop"}`:  0,
	})
}

func TestMetricsCountWrites(t *testing.T) {
	w := newWorld(t, evenly, 100, 100)
	w.refuse = func(server, verb string) error {
		if server == "b" {
			return apierrors.NewForbidden(appsv1.Resource("replicasets"), "web", errors.New("policy"))
		}
		return nil
	}
	w.do(w.reconcile())
	expectSeries(t, w.measures, map[string]float64{
		`berth_federatedreplicaset_writes_total{operation="create",outcome="written"}`: 1,
		`berth_federatedreplicaset_writes_total{operation="create",outcome="refused"}`: 1,
	})
}

func TestAMemberHasOneState(t *testing.T) {
	m := newMeasures(func() []members.Status {
		return []members.Status{{Name: "east", State: members.Ready}, {Name: "west", State: members.Unauthorized}}
	})
	expectSeries(t, m, map[string]float64{
		`berth_federation_member_state{member="east",state="Ready"}`:        1,
		`berth_federation_member_state{member="east",state="Unauthorized"}`: 0,
		`berth_federation_member_state{member="west",state="Ready"}`:        0,
		`berth_federation_member_state{member="west",state="Unauthorized"}`: 1,
	})
}

func TestTheNumberOfTimeSeriesIsBounded(t *testing.T) {
	const clusters = 100
	m := newMeasures(func() []members.Status { return nil })
	status := &v1alpha1.FederatedReplicaSetStatus{Clusters: make([]v1alpha1.ClusterStatus, clusters)}
	for i := range clusters {
		status.Clusters[i].Name = fmt.Sprint(i)
	}
	for round := range 2 { // what is known already counts once
		for i := range mostMeasured/clusters + 10 {
			m.Take(types.NamespacedName{Namespace: "ns", Name: fmt.Sprint(i)}, status)
		}
		if n := testutil.CollectAndCount(m, "berth_federatedreplicaset_replicas"); n != mostMeasured {
			t.Errorf("round %d: %d series, want %d", round, n, mostMeasured)
		}
	}
	expectSeries(t, m, map[string]float64{"berth_federatedreplicasets{}": mostMeasured/clusters + 10})
	m.Forget(types.NamespacedName{Namespace: "ns", Name: "0"})
	m.Take(types.NamespacedName{Namespace: "ns", Name: "55"}, status)
	if n := testutil.CollectAndCount(m, "berth_federatedreplicaset_replicas"); n != mostMeasured {
		t.Errorf("%d series after one was deleted and another took its place, want %d", n, mostMeasured)
	}
}

func expectSeries(t *testing.T, m *measures, want map[string]float64) {
	t.Helper()
	all := exposed(t, m)
	for series, n := range want {
		if got, is := all[series]; !is || got != n {
			t.Errorf("%s is %v, want %v (exists: %v)", series, got, n, is)
		}
	}
}

// exposed are the series and their values.
func exposed(t *testing.T, m *measures) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(m); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, family := range families {
		for _, one := range family.GetMetric() {
			var labels []string
			for _, label := range one.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", label.GetName(), label.GetValue()))
			}
			all[fmt.Sprintf("%s{%s}", family.GetName(), strings.Join(labels, ","))] = one.GetGauge().GetValue() + one.GetCounter().GetValue()
		}
	}
	return all
}
