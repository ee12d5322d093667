package budget

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// seenEntries remember when this process first saw each ledger entry, by its own monotonic clock. They ignore the times in the entries, which come from
// the clocks of other machines. After a restart the process sees every entry for the first time. So a restart can only keep entries longer.
type seenEntries struct {
	clock clock.PassiveClock

	mu    sync.Mutex
	first map[types.NamespacedName]seenLedger
}

// seenLedger belongs to one budget by UID, and not to an earlier one with the same name.
type seenLedger struct {
	budget types.UID
	first  map[entryKey]time.Time
}

// entryKey identifies an entry in one version. A renewed entry has another key.
type entryKey struct {
	pod        types.UID
	operation  v1beta1.Operation
	generation int64
	renewals   int32
	revision   string
	unix       int64
}

func entryKeyOf(e *v1beta1.LedgerEntry) entryKey {
	return entryKey{e.UID, e.Operation, e.Generation, e.Renewals, e.Revision, e.Time.Unix()}
}

func newSeenEntries(clock clock.PassiveClock) *seenEntries {
	return &seenEntries{clock: clock, first: map[types.NamespacedName]seenLedger{}}
}

// ages is how long this process has known each entry of the budget's ledger, in their order. It forgets entries that are not in the ledger any more.
func (s *seenEntries) ages(pub *v1beta1.PodUnavailableBudget) []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := client.ObjectKeyFromObject(pub)
	now, before := s.clock.Now(), s.first[name]
	if before.budget != pub.UID {
		before = seenLedger{}
	}
	after := make(map[entryKey]time.Time, len(pub.Status.Ledger))
	ages := make([]time.Duration, len(pub.Status.Ledger))
	for i := range pub.Status.Ledger {
		key := entryKeyOf(&pub.Status.Ledger[i])
		first, found := before.first[key]
		if !found {
			first = now
		}
		after[key] = first
		ages[i] = now.Sub(first)
	}
	s.first[name] = seenLedger{pub.UID, after}
	return ages
}

func (s *seenEntries) forget(name types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.first, name)
}
