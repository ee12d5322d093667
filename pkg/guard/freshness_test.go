package guard

import (
	"strings"
	"testing"

	"k8s.io/utils/clock"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// TestFreshnessGoesByTheMonotonicClock: an entry must not be fresh for longer because the wall clock jumps back.
func TestFreshnessGoesByTheMonotonicClock(t *testing.T) {
	fresh := newFreshness(clock.RealClock{})
	ledger := []v1beta1.LedgerEntry{{UID: "pod"}}
	fresh.wrote("budget", nil, ledger)
	if !fresh.has("budget", ledger, "pod") {
		t.Error("an entry that was just written is not fresh")
	}
	for _, w := range fresh.written {
		if !strings.Contains(w.at.String(), " m=") {
			t.Errorf("an entry is written at %s, without a reading of the monotonic clock", w.at)
		}
	}
}
