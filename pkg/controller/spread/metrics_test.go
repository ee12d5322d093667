package spread

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

func TestMetricsSayWhatTheStatusSays(t *testing.T) {
	spread := makeSpread(t, threeThenAny)
	f := newFixture(t, spread, deployment(5), replicaSet("r1"), pod("p1", "r1", "a"), pod("p2", "r1", "b"), pod("p3", "r1", ""))
	f.settle(t)
	want := `
		# HELP berth_workloadspread_pods Active pods bound in a subset.
		# TYPE berth_workloadspread_pods gauge
		berth_workloadspread_pods{namespace="default",subset="a",workloadspread="web"} 1
		berth_workloadspread_pods{namespace="default",subset="b",workloadspread="web"} 1
		# HELP berth_workloadspread_quota Pods that a subset may hold in one quota scope; -1 is no limit.
		# TYPE berth_workloadspread_quota gauge
		berth_workloadspread_quota{namespace="default",subset="a",workloadspread="web"} 3
		berth_workloadspread_quota{namespace="default",subset="b",workloadspread="web"} -1
		# HELP berth_workloadspread_ready 1 if the spread is valid, its workload exists and its rules are applied, and 0 if not.
		# TYPE berth_workloadspread_ready gauge
		berth_workloadspread_ready{namespace="default",workloadspread="web"} 1
	`
	if err := testutil.CollectAndCompare(f.measures, strings.NewReader(want), "berth_workloadspread_pods", "berth_workloadspread_quota", "berth_workloadspread_ready"); err != nil {
		t.Error(err)
	}
	if err := f.client.Delete(t.Context(), spread, client.PropagationPolicy("Background")); err != nil {
		t.Fatal(err)
	}
	if _, err := f.reconcileWeb(t); err != nil {
		t.Fatal(err)
	}
	if n := testutil.CollectAndCount(f.measures, "berth_workloadspread_pods"); n != 0 {
		t.Errorf("%d series of a spread that is gone", n)
	}
}

func TestTheNumberOfTimeSeriesIsBounded(t *testing.T) {
	m := newMeasures()
	for i := range mostMeasured + 100 {
		m.Take(types.NamespacedName{Namespace: "ns", Name: fmt.Sprint(i)}, measure{status: v1beta1.WorkloadSpreadStatus{SubsetStatuses: []v1beta1.SubsetStatus{{Name: "a"}}}})
	}
	if n := testutil.CollectAndCount(m, "berth_workloadspread_pods"); n != mostMeasured {
		t.Errorf("%d series, want %d", n, mostMeasured)
	}
	want := "# HELP berth_workloadspreads Number of spreads. Only the first thousand have metrics of their own.\n# TYPE berth_workloadspreads gauge\nberth_workloadspreads 1100\n"
	if err := testutil.CollectAndCompare(m, strings.NewReader(want), "berth_workloadspreads"); err != nil {
		t.Error(err)
	}
}
