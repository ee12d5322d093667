package workloadspread

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/berth-project/berth/pkg/ledger"
)

const subsystem = "scheduler_workloadspread"

// Metrics of the plugin, on the scheduler's own endpoint. No label contains pods, spreads or subsets, so the number of series is fixed.
var (
	subsetAttempts = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: subsystem, Name: "subset_attempts_total", StabilityLevel: metrics.ALPHA,
		Help: "Steps of the scheduling of pods of a spread, by result: chosen (the pod got a subset), unplaced (every subset is full, and the pod may go anywhere), held (its owner, workload or spread is not known), full (every subset is full, and the pod waits), exhausted (no subset with quota has a node), reserved (the pod got a node), passed (a subset was skipped because none of its nodes fits), spilled (the pod goes on to the next subset after a cycle), preempting (the pod preempts in its subset).",
	}, []string{"result"})
	memoHits = metrics.NewCounter(&metrics.CounterOpts{
		Subsystem: subsystem, Name: "memo_hits_total", StabilityLevel: metrics.ALPHA,
		Help: "Subsets that a pod skipped because an equal pod had found no node in them.",
	})
	uncertainBinds = metrics.NewCounter(&metrics.CounterOpts{
		Subsystem: subsystem, Name: "uncertain_binds_total", StabilityLevel: metrics.ALPHA,
		Help: "Binds that ended without a clear answer. Their slots stay taken until the scheduler has read the pod.",
	})
	wokenPods = metrics.NewCounter(&metrics.CounterOpts{
		Subsystem: subsystem, Name: "woken_pods_total", StabilityLevel: metrics.ALPHA,
		Help: "Waiting pods that the scheduler tried again because a slot came free, their workload or spread changed, or a time ran out.",
	})
	missedWakeUps = metrics.NewCounter(&metrics.CounterOpts{
		Subsystem: subsystem, Name: "missed_wake_ups_total", StabilityLevel: metrics.ALPHA,
		Help: "Waiting pods that an audit woke because no event had. The scheduler runs it every half minute. Above 0 means a bug in the scheduler.",
	})
	takeOverSeconds = metrics.NewGauge(&metrics.GaugeOpts{
		Subsystem: subsystem, Name: "take_over_seconds", StabilityLevel: metrics.ALPHA,
		Help: "Seconds that the first cycle of this process waited before it gave out slots. 0 before that.",
	})
	slotsDesc = metrics.NewDesc(subsystem+"_slots", "Pods of spreads by the state of their slot: waiting, claimed, reserved, binding, bound; and uncertain, the slots of binds without an answer.",
		[]string{"state"}, nil, metrics.ALPHA, "")
	overQuotaDesc = metrics.NewDesc(subsystem+"_over_quota_pods", "Slots above the quota of their subset, after a quota was lowered or pods were adopted.",
		nil, nil, metrics.ALPHA, "")
)

var registerMetrics sync.Once

// exposeMetrics registers the metrics. They show the first ledger of the process, which is the only one outside of tests.
func exposeMetrics(b *book) {
	registerMetrics.Do(func() {
		legacyregistry.MustRegister(subsetAttempts, memoHits, uncertainBinds, wokenPods, takeOverSeconds, missedWakeUps)
		legacyregistry.CustomMustRegister(&ledgerCollector{book: b})
	})
}

// ledgerCollector reads the ledger's counts at each scrape.
type ledgerCollector struct {
	metrics.BaseStableCollector
	book *book
}

var _ metrics.StableCollector = &ledgerCollector{}

// DescribeWithStability implements metrics.StableCollector.
func (c *ledgerCollector) DescribeWithStability(ch chan<- *metrics.Desc) {
	ch <- slotsDesc
	ch <- overQuotaDesc
}

// CollectWithStability implements metrics.StableCollector.
func (c *ledgerCollector) CollectWithStability(ch chan<- metrics.Metric) {
	counts := query(c.book, (*ledger.Ledger).Counts)
	for stage, n := range counts.ByStage() {
		ch <- metrics.NewLazyConstMetric(slotsDesc, metrics.GaugeValue, float64(n), stage)
	}
	ch <- metrics.NewLazyConstMetric(slotsDesc, metrics.GaugeValue, float64(counts.Uncertain), "uncertain")
	ch <- metrics.NewLazyConstMetric(overQuotaDesc, metrics.GaugeValue, float64(counts.OverQuota))
}
