package descheduler

import (
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

var (
	cycleSeconds = metrics.NewHistogram(&metrics.HistogramOpts{
		Subsystem: "berth_descheduler", Name: "cycle_duration_seconds", StabilityLevel: metrics.ALPHA,
		Help: "Seconds that a cycle took, from its first request to its last.", Buckets: metrics.ExponentialBuckets(0.05, 2, 12),
	})
	lastSuccess = metrics.NewGauge(&metrics.GaugeOpts{
		Subsystem: "berth_descheduler", Name: "last_success_timestamp_seconds", StabilityLevel: metrics.ALPHA,
		Help: "Unix time in seconds at which a cycle last ended without an error. 0 until then.",
	})
)

func init() { legacyregistry.MustRegister(cycleSeconds, lastSuccess) }
