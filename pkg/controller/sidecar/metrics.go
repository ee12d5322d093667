package sidecar

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
)

// Metrics of SidecarSets, on the endpoint of the controller that leads. Each set has seven series.
var (
	podsOfSet = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "berth_sidecarset_pods",
		Help: "Pods of a SidecarSet by state: matched (they have its sidecars), updated (in the latest version), ready, updated_ready, not_updatable (older, and it cannot be updated in place), not_injected (picked, and without its sidecars).",
	}, []string{"sidecarset", "state"})
	readySet = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "berth_sidecarset_ready", Help: "1 if the spec is valid and all pods that shall have the latest version have it, and 0 if not.",
	}, []string{"sidecarset"})
	podWrites = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "berth_sidecarset_writes_total",
		Help: "Pods that Berth has updated, or tried to, for all SidecarSets, by outcome: written, stale (changed since it was read), refused (by the API server or a budget), failed (nobody knows whether it happened).",
	}, []string{"outcome"})
)

// Outcomes of a write.
const (
	written = "written"
	stale   = "stale"
	refused = "refused"
	failed  = "failed"
)

func init() {
	metrics.Registry.MustRegister(podsOfSet, readySet, podWrites)
	for _, outcome := range []string{written, stale, refused, failed} {
		podWrites.WithLabelValues(outcome) // so that they are exposed before the first write
	}
}

// measure takes the numbers of a status.
func measure(set string, status *v1beta1.SidecarSetStatus) {
	for state, n := range map[string]int32{
		"matched": status.MatchedPods, "updated": status.UpdatedPods, "ready": status.ReadyPods, "updated_ready": status.UpdatedReadyPods,
		"not_updatable": status.NotUpdatablePods, "not_injected": status.NotInjectedPods,
	} {
		podsOfSet.WithLabelValues(set, state).Set(float64(n))
	}
	ready := 0.
	if meta.IsStatusConditionTrue(status.Conditions, v1beta1.ReadyCondition) {
		ready = 1
	}
	readySet.WithLabelValues(set).Set(ready)
}

func unmeasure(set string) {
	podsOfSet.DeletePartialMatch(prometheus.Labels{"sidecarset": set})
	readySet.DeleteLabelValues(set)
}
