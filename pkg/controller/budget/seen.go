package budget

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

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

// seenKey has the UID of the budget, because an earlier one may have had its name.
type seenKey struct {
	budget types.UID
	entry  entryKey
}

// age is how long this process has known an entry of the budget's ledger, by its own monotonic clock. It ignores the time in the entry, which comes from the clock
// of another machine. After a restart the process sees every entry for the first time, and after three times the expiry once more. Both can only keep entries longer.
func (r *reconciler) age(pub *v1beta1.PodUnavailableBudget, entry *v1beta1.LedgerEntry) time.Duration {
	key := seenKey{pub.UID, entryKeyOf(entry)}
	first, found := r.seen.Get(key)
	if !found {
		r.seen.Set(key, r.clock.Now(), 3*r.expiry)
		return 0
	}
	return r.clock.Since(first.(time.Time))
}
