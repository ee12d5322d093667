package webhook

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// outcome of a review, as the metric names it.
type outcome string

const (
	// constrained: a spread divides the pod.
	constrained outcome = "constrained"
	// picked: a subset was picked for the pod, and its patch applied.
	picked outcome = "picked"
	// injected: the pod got sidecars.
	injected outcome = "injected"
	// left as it is: no spread divides the pod.
	left outcome = "left"
	// ownerUnknown: the pod's owner was not known in time, and the pod was admitted as it is.
	ownerUnknown outcome = "owner_unknown"
	// failed: an error or a panic. The API server admits the pod as it is.
	failed outcome = "failed"
)

// Metrics of the webhook for pods, on the controller's endpoint.
var (
	podsReviewed = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "berth_webhook_pods_total",
		Help: "Pods that the API server asked about, by outcome: constrained (pod of a spread), picked (a subset was picked and its patch applied), injected (the pod got the containers of SidecarSets), left (pod of no spread), owner_unknown (admitted unchanged, because its owner was not known in time), failed (admitted unchanged, because of an error). If the namespace requires admission, the last two are refused.",
	}, []string{"outcome"})
	reviewSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "berth_webhook_pod_seconds",
		Help:    "Seconds that the answer about a pod took, including the wait for an owner.",
		Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .05, .1, .5, 1, 2},
	})
)

func init() {
	metrics.Registry.MustRegister(podsReviewed, reviewSeconds)
	for _, o := range []outcome{constrained, picked, injected, left, ownerUnknown, failed} {
		podsReviewed.WithLabelValues(string(o)) // so that they are exposed before the first pod
	}
}
