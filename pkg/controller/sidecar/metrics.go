package sidecar

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
)

// Metrics of SidecarSets, on the endpoint of the controller that leads. Each set has seven series.
var (
	podsDesc = prometheus.NewDesc("berth_sidecarset_pods",
		"Pods of a SidecarSet by state: matched (they have its sidecars), updated (in the latest version), ready, updated_ready, not_updatable (older, and it cannot be updated in place), not_injected (picked, and without its sidecars).",
		[]string{"sidecarset", "state"}, nil)
	readyDesc = prometheus.NewDesc("berth_sidecarset_ready",
		"1 if the spec is valid and all pods that shall have the latest version have it, and 0 if not.", []string{"sidecarset"}, nil)
	setsDesc = prometheus.NewDesc("berth_sidecarsets",
		"Number of SidecarSets. Only the first thousand have metrics of their own.", nil, nil)
)

// Outcomes of a write.
const (
	written = "written"
	stale   = "stale"
	refused = "refused"
	failed  = "failed"
)

// podWrites counts the writes of pods.
var podWrites = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "berth_sidecarset_writes_total",
	Help: "Pods that Berth has updated, or tried to, for all SidecarSets, by outcome: written, stale (changed since it was read), refused (by the API server or a budget), failed (nobody knows whether it happened).",
}, []string{"outcome"})

// mostMeasured bounds the sets with their own metrics, and so the number of time series.
const mostMeasured = 1000

func newMeasures() *frame.Measures[*v1beta1.SidecarSetStatus] {
	for _, outcome := range []string{written, stale, refused, failed} {
		podWrites.WithLabelValues(outcome) // so that they are exposed before the first write
	}
	return frame.NewMeasures(frame.Series[*v1beta1.SidecarSetStatus]{
		Count: setsDesc, Own: []*prometheus.Desc{podsDesc, readyDesc}, Most: mostMeasured, Others: []prometheus.Collector{podWrites},
		Send: func(status *v1beta1.SidecarSetStatus, gauge func(*prometheus.Desc, float64, ...string)) {
			for state, n := range map[string]int32{
				"matched": status.MatchedPods, "updated": status.UpdatedPods, "ready": status.ReadyPods, "updated_ready": status.UpdatedReadyPods,
				"not_updatable": status.NotUpdatablePods, "not_injected": status.NotInjectedPods,
			} {
				gauge(podsDesc, float64(n), state)
			}
			gauge(readyDesc, frame.OneIf(meta.IsStatusConditionTrue(status.Conditions, v1beta1.ReadyCondition)))
		},
	})
}
