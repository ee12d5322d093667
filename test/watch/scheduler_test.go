package watch

import (
	"fmt"
	"testing"

	"github.com/berth-project/berth/cmd/sandbox/product"
)

// spreadPods creates workloads that count in different ways. Names of the StatefulSet's pods come back.
func (w *world) spreadPods() {
	w.Helper()
	w.apply(spread("Deployment", "counts", "quotaScope: Workload", in("a", "3"), in("b", "2"), in("c", "")) + workload("Deployment", "counts", 7, "berth-scheduler"))
	w.apply(spread("Deployment", "waits", "whenFull: Wait", in("a", "2"), in("b", "1")) + workload("Deployment", "waits", 4, "berth-scheduler"))
	w.apply(spread("StatefulSet", "names", "type: Adaptive", in("a", "1"), in("b", "1"), in("c", "")) + workload("StatefulSet", "names", 3, "berth-scheduler"))
}

var (
	inPlace  = map[string]string{"counts": "a=3 b=2 c=2", "waits": "=1 a=2 b=1", "names": "a=1 b=1 c=1"}
	anywhere = map[string]string{"counts": "all=7", "waits": "=1 a=2 b=1", "names": "all=3"}
)

// TestTheSchedulerHoldsQuotasWhateverItSees: pods come, go and come back under the same name and quotas change while the scheduler sees the past, skips events, must list again, and is killed.
func TestTheSchedulerHoldsQuotasWhateverItSees(t *testing.T) {
	for round := range *rounds {
		t.Run(fmt.Sprintf("seed %d", *seed+uint64(round)), func(t *testing.T) {
			w := newWorld(t, product.Scheduler, *seed+uint64(round))
			w.play([]string{"pods", "workloadspreads", "replicasets", "deployments", "nodes"},
				w.spreadPods,
				func() { w.remove("counts", "names", "names") },
				func() {
					w.apply(spread("Deployment", "counts", "quotaScope: Workload", in("a", "2"), in("b", "3"), in("c", "")))
				},
				func() { w.remove("waits", "counts") },
				func() { w.scale("counts", 9); w.remove("names") },
				func() {
					w.apply(spread("Deployment", "counts", "quotaScope: Workload", in("a", "3"), in("b", "2"), in("c", "")))
				},
				func() { w.scale("counts", 7); w.remove("waits", "names") },
			)
			w.calm()
			w.expectLayout("after the faults", anywhere)
			w.deletePods()
			w.expectLayout("after all pods were replaced", inPlace)
			w.report()
		})
	}
}

// TestTheSchedulerGoesOnAfterEachWrite kills it right after writes, some of which arrive only then.
func TestTheSchedulerGoesOnAfterEachWrite(t *testing.T) {
	crashes(t, product.Scheduler, 6, func(*world) {}, func(w *world) {
		w.spreadPods()
		w.expectLayout("", inPlace)
	})
}
