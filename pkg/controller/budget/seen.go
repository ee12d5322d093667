package budget

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// keyOf identifies an entry in one version: it is the entry, with a time that can be compared. A renewed entry has another key.
func keyOf(e *v1beta1.LedgerEntry) v1beta1.LedgerEntry {
	key := *e
	key.Time = metav1.Unix(e.Time.Unix(), 0)
	return key
}

// seenKey has the UID of the budget, because an earlier one may have had its name.
type seenKey struct {
	budget types.UID
	entry  v1beta1.LedgerEntry
}

// age is how long this process has known an entry of the budget's ledger, by its own monotonic clock. It ignores the time in the entry, which comes from the clock
// of another machine. After a restart the process sees every entry for the first time, and after three times the expiry once more. Both can only keep entries longer.
func (r *reconciler) age(pub *v1beta1.PodUnavailableBudget, entry *v1beta1.LedgerEntry) time.Duration {
	key := seenKey{pub.UID, keyOf(entry)}
	first, found := r.seen.Get(key)
	if !found {
		r.seen.Set(key, r.clock.Now(), 3*r.expiry)
		return 0
	}
	return r.clock.Since(first.(time.Time))
}
