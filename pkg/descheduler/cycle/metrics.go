package cycle

import (
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

var (
	decisions = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: "berth_descheduler", Name: "decisions_total", StabilityLevel: metrics.ALPHA,
		Help: "Decisions on pods that belong elsewhere, by strategy, verdict (Move, Keep) and reason.",
	}, []string{"strategy", "verdict", "reason"})
	evictions = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: "berth_descheduler", Name: "evictions_total", StabilityLevel: metrics.ALPHA,
		Help: "Evictions of Berth's strategies, by strategy and result.",
	}, []string{"strategy", "result"})
	clockOffset = metrics.NewGauge(&metrics.GaugeOpts{
		Subsystem: "berth_descheduler", Name: "clock_offset_seconds", StabilityLevel: metrics.ALPHA,
		Help: "Seconds that the API server's clock is ahead of this machine's. Strategies decide by the API server's clock. 0 if they do not differ noticeably.",
	})
)

func init() { legacyregistry.MustRegister(decisions, evictions, clockOffset) }
