package budget

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// TestAgesOfEntriesGoByTheMonotonicClock: an entry must not expire early because the wall clock jumps ahead.
func TestAgesOfEntriesGoByTheMonotonicClock(t *testing.T) {
	r := &reconciler{seen: cache.NewExpiring(), clock: clock.RealClock{}, expiry: time.Hour}
	pub, entry := &v1beta1.PodUnavailableBudget{}, v1beta1.LedgerEntry{UID: types.UID("a")}
	r.age(pub, &entry)
	first, found := r.seen.Get(seenKey{pub.UID, keyOf(&entry)})
	if seen, is := first.(time.Time); !found || !is || !strings.Contains(seen.String(), " m=") {
		t.Errorf("an entry is first seen at %v, without a reading of the monotonic clock", first)
	}
}

func TestAnEntryOfAnotherBudgetOfThatNameIsSeenAnew(t *testing.T) {
	b := newBench(t, interceptor.Funcs{})
	entry := v1beta1.LedgerEntry{UID: types.UID("a")}
	b.age(&v1beta1.PodUnavailableBudget{ObjectMeta: metav1.ObjectMeta{UID: "old"}}, &entry)
	b.clock.SetTime(b.clock.Now().Add(time.Minute))
	if age := b.age(&v1beta1.PodUnavailableBudget{ObjectMeta: metav1.ObjectMeta{UID: "new"}}, &entry); age != 0 {
		t.Errorf("it has the age %s of an entry of the budget before", age)
	}
	if age := b.age(&v1beta1.PodUnavailableBudget{ObjectMeta: metav1.ObjectMeta{UID: "old"}}, &entry); age != time.Minute {
		t.Errorf("after a minute its age is %s", age)
	}
}
