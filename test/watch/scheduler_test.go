package watch

import (
	"fmt"
	"testing"
	"time"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/test/checker"
	"github.com/berth-project/berth/test/harness"
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
			w.quotas.Grace = grace
			w.play([]string{"pods", "workloadspreads", "replicasets", "deployments", "nodes"},
				w.spreadPods,
				func() { w.remove("counts", "names", "names") },
				func() {
					w.apply(spread("Deployment", "counts", "quotaScope: Workload", in("a", "2"), in("b", "3"), in("c", "")))
					if round%2 == 0 {
						w.judge()
					}
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
			w.report(round == *rounds-1)
		})
	}
}

// judge ends the fault, and lets the scheduler use all slots of the subset whose quota was lowered again. A checker that knows only the lower quota judges its binds. During the faults, binds may go by the
// higher one.
func (w *world) judge() {
	w.Helper()
	w.over()
	w.ready()
	// The scheduler sees spreads in the order in which they are written. So when it has seen this one, it has seen the lower quota.
	w.apply(spread("Deployment", "probe", "", in("b", "")) + workload("Deployment", "probe", 1, "berth-scheduler"))
	w.expectLayout("of a later spread", map[string]string{"probe": "b=1"})
	strict, err := checker.Start(w.Context(), the.Dynamic)
	if err != nil {
		w.Fatal(err)
	}
	began := time.Now()
	w.deletePods()
	w.expectLayout("of the lower quota", map[string]string{"counts": "a=2 b=3 c=2"})
	for _, life := range strict.Lives(w.ns, "counts") {
		if life.Subset == "a" && life.Created.Seen.After(began) {
			w.did["bind judged by the lower quota"]++
		}
	}
	harness.ExpectAll(w, w.did, "bind judged by the lower quota")
	for _, violation := range strict.Violations() {
		w.Error(violation)
	}
}

// TestTheSchedulerGoesOnAfterEachWrite kills it right after writes, some of which arrive only then.
func TestTheSchedulerGoesOnAfterEachWrite(t *testing.T) {
	crashes(t, product.Scheduler, 6, func(*world) {}, func(w *world) {
		w.spreadPods()
		w.expectLayout("", inPlace)
	})
}
