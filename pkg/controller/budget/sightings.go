package budget

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/berth-project/berth/pkg/crd/policy/v1alpha1"
)

// sightings remember when this process has first seen each ledger entry, by its own monotonic clock. The times in the entries are not looked
// at: they are from other machines. A process that has just started sees every entry for the first time, so that a restart lets entries live
// longer and never shorter.
type sightings struct {
	clock clock.PassiveClock

	mu    sync.Mutex
	first map[types.UID]map[sighting]time.Time // by budget
}

// sighting is an entry as it was written: a renewed one is another.
type sighting struct {
	pod        types.UID
	operation  v1alpha1.Operation
	generation int64
	renewals   int32
	unix       int64
}

func sightingOf(e *v1alpha1.LedgerEntry) sighting {
	return sighting{e.UID, e.Operation, e.Generation, e.Renewals, e.Time.Unix()}
}

func newSightings(clock clock.PassiveClock) *sightings {
	return &sightings{clock: clock, first: map[types.UID]map[sighting]time.Time{}}
}

// ages is how long each entry of the budget's ledger has been known. Entries that are not in the ledger are forgotten.
func (s *sightings) ages(pub *v1alpha1.PodUnavailableBudget) []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, before := s.clock.Now(), s.first[pub.UID]
	after := make(map[sighting]time.Time, len(pub.Status.Ledger))
	ages := make([]time.Duration, len(pub.Status.Ledger))
	for i := range pub.Status.Ledger {
		key := sightingOf(&pub.Status.Ledger[i])
		first, found := before[key]
		if !found {
			first = now
		}
		after[key] = first
		ages[i] = now.Sub(first)
	}
	s.first[pub.UID] = after
	return ages
}

func (s *sightings) forget(budget types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.first, budget)
}
