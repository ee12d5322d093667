package guard

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// Metrics of the guard, on the controller's own endpoint. None has a label for pods or budgets, so the number of series is fixed.
var (
	decisions = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "berth_budget_decisions_total",
		Help: "Answers to operations on protected pods, by operation, decision (allowed, refused, failed) and reason.",
	}, []string{"operation", "decision", "reason"})
	decisionSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "berth_budget_decision_seconds",
		Help:    "Seconds that a decision on an operation took.",
		Buckets: []float64{.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10},
	})
)

func init() {
	metrics.Registry.MustRegister(decisions, decisionSeconds)
	// rate() sees the first failure only if the series had a 0 before it.
	for _, operation := range []v1beta1.Operation{v1beta1.OperationDelete, v1beta1.OperationEvict, v1beta1.OperationUpdate, v1beta1.OperationResize, v1beta1.OperationUnready} {
		decisions.WithLabelValues(string(operation), decisionFailed, "")
		decisions.WithLabelValues(string(operation), decisionRefused, string(v1beta1.ReasonServerUnavailable))
	}
}

const (
	decisionRefused = "refused"
	// decisionFailed is for errors that need a person.
	decisionFailed = "failed"
)
