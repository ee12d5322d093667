package spread

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
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

func TestOnlyKnownPricesAreMeasured(t *testing.T) {
	m, name := newMeasures(), types.NamespacedName{Namespace: "ns", Name: "web"}
	status := v1beta1.WorkloadSpreadStatus{SubsetStatuses: []v1beta1.SubsetStatus{{Name: "a"}, {Name: "b"}}}
	m.Take(name, measureOf(status, &facts{podPrices: []float64{0.25, math.NaN()}}))
	want := `
# HELP berth_workloadspread_pod_price Estimate of what a pod costs an hour in a subset, by label berth.dev/hourly-price of nodes, with --cost-metrics. Times berth_workloadspread_pods it is what the subset costs.
# TYPE berth_workloadspread_pod_price gauge
berth_workloadspread_pod_price{namespace="ns",subset="a",workloadspread="web"} 0.25
`
	if err := testutil.CollectAndCompare(m, strings.NewReader(want), "berth_workloadspread_pod_price"); err != nil {
		t.Error(err)
	}
	m.Take(name, measureOf(status, &facts{}))
	if n := testutil.CollectAndCount(m, "berth_workloadspread_pod_price"); n != 0 {
		t.Errorf("%d series although nobody asks for costs", n)
	}
}

func TestTheCacheKeepsRequestsIfSomebodyAsks(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "a", Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}}}}}}
	for _, asked := range []bool{false, true} {
		for object, of := range frame.CacheOptions(asked).ByObject {
			if _, isPod := object.(*corev1.Pod); !isPod {
				continue
			}
			kept, err := of.Transform(pod.DeepCopy())
			if err != nil {
				t.Fatal(err)
			}
			in := openAccount(basis{policy: &subset.Policy{}})
			in.take(kept.(*corev1.Pod), nil)
			if got := in.requests.Cpu().String(); got != map[bool]string{false: "0", true: "2"}[asked] || len(kept.(*corev1.Pod).Spec.Containers) > 0 {
				t.Errorf("asked for: %t, and the account knows %s", asked, got)
			}
		}
	}
}
