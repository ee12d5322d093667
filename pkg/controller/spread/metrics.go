package spread

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

// Metrics of spreads, on the controller's endpoint, from their last status.
var (
	podsDesc = prometheus.NewDesc("berth_workloadspread_pods",
		"Active pods bound in a subset.", []string{"namespace", "workloadspread", "subset"}, nil)
	quotaDesc = prometheus.NewDesc("berth_workloadspread_quota",
		"Pods that a subset may hold in one quota scope; -1 is no limit.", []string{"namespace", "workloadspread", "subset"}, nil)
	targetDesc = prometheus.NewDesc("berth_workloadspread_target",
		"Pods that a subset holds when every pod is where it should be.", []string{"namespace", "workloadspread", "subset"}, nil)
	stateDesc = prometheus.NewDesc("berth_workloadspread_pods_in_state",
		"Pods of a spread that may need attention, by state: pending (no node yet), unplaced (in no subset), adopted (bound by others), surplus (above a quota), unadmitted (placed by the default scheduler after the spread was created), other_scheduler (placed by a scheduler that does not divide them), overfull (failed, because another scheduler had filled the node).",
		[]string{"namespace", "workloadspread", "state"}, nil)
	readyDesc = prometheus.NewDesc("berth_workloadspread_ready",
		"1 if the spread is valid, its workload exists and its rules are applied, and 0 if not.", []string{"namespace", "workloadspread"}, nil)
	spreadsDesc = prometheus.NewDesc("berth_workloadspreads",
		"Number of spreads. Only the first thousand have metrics of their own.", nil, nil)
	correctionsDesc = prometheus.NewDesc("berth_workloadspread_recount_corrections_total",
		"Recounts of a spread's pods that differ from the numbers kept by events. An event that had not arrived can be the cause; many differences mean a bug.", nil, nil)
)

// mostMeasured bounds the spreads with their own metrics, and so the number of time series.
const mostMeasured = 1000

// measures are the numbers of every spread. They are safe for concurrent use.
type measures struct {
	mu       sync.Mutex
	measured map[types.NamespacedName]measure
	// others are the spreads above the bound.
	others      map[types.NamespacedName]bool
	corrections int
}

type measure struct {
	status v1beta1.WorkloadSpreadStatus
	// quota of each subset in the status. Nil if it is not known.
	quota []int32
	// unadmitted counts pods that the default scheduler placed, otherScheduler those of other schedulers, and overfull those that a kubelet refused for lack of room.
	unadmitted, otherScheduler, overfull int32
}

var _ prometheus.Collector = &measures{}

func newMeasures() *measures {
	return &measures{measured: map[types.NamespacedName]measure{}, others: map[types.NamespacedName]bool{}}
}

// take measures a spread. It returns whether kubelets have refused more of its pods than before.
func (m *measures) take(spread types.NamespacedName, status v1beta1.WorkloadSpreadStatus, f *facts) (refusedMore bool) {
	now := measure{status: status}
	if f.policy != nil && f.workload.problem == nil {
		now.quota = f.policy.Plan(f.workload.replicas).Quota
	}
	if f.account != nil {
		now.overfull = f.overfull
		for scheduler, pods := range f.foreign {
			if scheduler == corev1.DefaultSchedulerName {
				now.unadmitted = pods
			} else {
				now.otherScheduler += pods
			}
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	before, known := m.measured[spread]
	if !known && len(m.measured) >= mostMeasured {
		m.others[spread] = true
		return false
	}
	delete(m.others, spread)
	m.measured[spread] = now
	return now.overfull > before.overfull
}

func (m *measures) forget(spread types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.measured, spread)
	delete(m.others, spread)
}

// corrected counts a recount with other results.
func (m *measures) corrected() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.corrections++
}

// Describe implements prometheus.Collector.
func (m *measures) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{podsDesc, quotaDesc, targetDesc, stateDesc, readyDesc, spreadsDesc, correctionsDesc} {
		ch <- desc
	}
}

// Collect implements prometheus.Collector.
func (m *measures) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	for spread, now := range m.measured {
		for i := range now.status.SubsetStatuses {
			in := &now.status.SubsetStatuses[i]
			gauge(podsDesc, float64(in.Replicas), spread.Namespace, spread.Name, in.Name)
			if now.quota != nil {
				gauge(quotaDesc, float64(now.quota[i]), spread.Namespace, spread.Name, in.Name)
				gauge(targetDesc, float64(in.TargetReplicas), spread.Namespace, spread.Name, in.Name)
			}
		}
		for state, pods := range map[string]int32{
			"pending": now.status.PendingPods, "unplaced": now.status.UnplacedPods, "adopted": now.status.AdoptedPods, "surplus": now.status.SurplusPods,
			"unadmitted": now.unadmitted, "other_scheduler": now.otherScheduler, "overfull": now.overfull,
		} {
			gauge(stateDesc, float64(pods), spread.Namespace, spread.Name, state)
		}
		ready := 0.0
		if meta.IsStatusConditionTrue(now.status.Conditions, v1beta1.ConditionReady) {
			ready = 1
		}
		gauge(readyDesc, ready, spread.Namespace, spread.Name)
	}
	gauge(spreadsDesc, float64(len(m.measured)+len(m.others)))
	ch <- prometheus.MustNewConstMetric(correctionsDesc, prometheus.CounterValue, float64(m.corrections))
}
