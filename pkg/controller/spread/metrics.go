package spread

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/berth-project/berth/pkg/controller/frame"
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
	priceDesc = prometheus.NewDesc("berth_workloadspread_pod_price",
		"Estimate of what a pod costs an hour in a subset, by label berth.dev/hourly-price of nodes, with --cost-metrics. Times berth_workloadspread_pods it is what the subset costs.",
		[]string{"namespace", "workloadspread", "subset"}, nil)
	stateDesc = prometheus.NewDesc("berth_workloadspread_pods_in_state",
		"Pods of a spread that may need attention, by state: pending (no node yet), unplaced (in no subset), adopted (bound by others), surplus (above a quota), unadmitted (placed by the default scheduler after the spread was created), other_scheduler (placed by a scheduler that does not divide them), overfull (failed, because another scheduler had filled the node).",
		[]string{"namespace", "workloadspread", "state"}, nil)
	readyDesc = prometheus.NewDesc("berth_workloadspread_ready",
		"1 if the spread is valid, its workload exists and its rules are applied, and 0 if not.", []string{"namespace", "workloadspread"}, nil)
	spreadsDesc = prometheus.NewDesc("berth_workloadspreads",
		"Number of spreads. Only the first thousand have metrics of their own.", nil, nil)
)

// mostMeasured bounds the spreads with their own metrics, and so the number of time series.
const mostMeasured = 1000

// measure is what the metrics say of a spread.
type measure struct {
	status v1beta1.WorkloadSpreadStatus
	// quota of each subset in the status. Nil if it is not known.
	quota []int32
	// podPrices are those of subset.PodPrices. Nil if nobody asks for them.
	podPrices []float64
	// unadmitted counts pods that the default scheduler placed, otherScheduler those of other schedulers, and overfull those that a kubelet refused for lack of room.
	unadmitted, otherScheduler, overfull int32
}

func measureOf(status v1beta1.WorkloadSpreadStatus, f *facts) measure {
	now := measure{status: status, podPrices: f.podPrices}
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
	return now
}

func newMeasures() *frame.Measures[measure] {
	return frame.NewMeasures(frame.Series[measure]{
		Count: spreadsDesc, Own: []*prometheus.Desc{podsDesc, quotaDesc, targetDesc, priceDesc, stateDesc, readyDesc}, Most: mostMeasured,
		Send: func(now measure, gauge func(*prometheus.Desc, float64, ...string)) {
			for i := range now.status.SubsetStatuses {
				in := &now.status.SubsetStatuses[i]
				gauge(podsDesc, float64(in.Replicas), in.Name)
				if i < len(now.podPrices) && !math.IsNaN(now.podPrices[i]) {
					gauge(priceDesc, now.podPrices[i], in.Name)
				}
				if now.quota != nil {
					gauge(quotaDesc, float64(now.quota[i]), in.Name)
					gauge(targetDesc, float64(in.TargetReplicas), in.Name)
				}
			}
			for state, pods := range map[string]int32{
				"pending": now.status.PendingPods, "unplaced": now.status.UnplacedPods, "adopted": now.status.AdoptedPods, "surplus": now.status.SurplusPods,
				"unadmitted": now.unadmitted, "other_scheduler": now.otherScheduler, "overfull": now.overfull,
			} {
				gauge(stateDesc, float64(pods), state)
			}
			gauge(readyDesc, frame.OneIf(meta.IsStatusConditionTrue(now.status.Conditions, v1beta1.ConditionReady)))
		},
	})
}

func newCorrections() prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{
		Name: "berth_workloadspread_recount_corrections_total",
		Help: "Recounts of a spread's pods that differ from the numbers kept by events. An event that had not arrived can be the cause; many differences mean a bug.",
	})
}
