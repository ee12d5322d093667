package guard

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// freshness remembers which ledger entries this process wrote lately, by its own monotonic clock. The controller lets an entry expire some time after
// it first saw the entry. The guard renews an entry whenever it may be old. So the entry outlives every request that relies on it, whatever the clocks
// say.
type freshness struct {
	clock clock.PassiveClock

	mu      sync.Mutex
	written map[key]writing
	swept   time.Time
}

type key struct{ budget, pod types.UID }

type writing struct {
	entry v1beta1.LedgerEntry
	at    time.Time
}

func newFreshness(clock clock.PassiveClock) *freshness {
	return &freshness{clock: clock, written: map[key]writing{}, swept: clock.Now()}
}

// wrote notes the entries that are new in after, or differ from those in before.
func (f *freshness) wrote(budget types.UID, before, after []v1beta1.LedgerEntry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.clock.Now()
	for i := range after {
		if i >= len(before) || before[i] != after[i] {
			f.written[key{budget, after[i].UID}] = writing{after[i], now}
		}
	}
	if now.Sub(f.swept) < freshFor {
		return
	}
	f.swept = now
	for k, w := range f.written {
		if now.Sub(w.at) >= freshFor {
			delete(f.written, k)
		}
	}
}

// has is true if the ledger has the pod's entry as this process wrote it lately, or as another process renewed it later.
func (f *freshness) has(budget types.UID, ledger []v1beta1.LedgerEntry, pod types.UID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	w, found := f.written[key{budget, pod}]
	if !found || f.clock.Since(w.at) >= freshFor {
		return false
	}
	for i := range ledger {
		e := &ledger[i]
		if e.UID == pod {
			// The API server returns times with less precision than they were written with, so times do not count here. An entry that another process
			// has renewed since is younger still.
			return e.Operation == w.entry.Operation && e.Generation == w.entry.Generation && e.Renewals >= w.entry.Renewals
		}
	}
	return false
}
