package budget

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// TestAgesOfEntriesGoByTheMonotonicClock: an entry must not expire early because the wall clock jumps ahead.
func TestAgesOfEntriesGoByTheMonotonicClock(t *testing.T) {
	seen := newSeenEntries(clock.RealClock{})
	pub := &v1beta1.PodUnavailableBudget{Status: v1beta1.PodUnavailableBudgetStatus{Ledger: []v1beta1.LedgerEntry{{UID: types.UID("a")}}}}
	seen.ages(pub)
	for _, ledger := range seen.first {
		for _, first := range ledger.first {
			if !strings.Contains(first.String(), " m=") {
				t.Errorf("an entry is first seen at %s, without a reading of the monotonic clock", first)
			}
		}
	}
}
