package workloadspread

import (
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/ledger"
)

// followed are the workloads that a book has read.
type followed map[string]bool

func (f followed) want(schema.GroupKind)            {}
func (f followed) follow(s *v1beta1.WorkloadSpread) { f[s.Spec.TargetReference.Name] = true }
func (f followed) forget(w ledger.Workload)         { delete(f, w.Name) }
func (f followed) expect(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	for name := range f {
		got = append(got, name)
	}
	if slices.Sort(got); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the replicas of %v are read, want %v", got, want)
	}
}

// If a watch was interrupted, one event may stand for the deletion of a spread and for a new spread of the same name.
func TestTheReplicasAreReadForASpreadThatIsCreatedAgain(t *testing.T) {
	read := followed{}
	b := &book{clock: clock.RealClock{}, owners: read, ledger: ledger.New(time.Second), inFlight: map[types.UID]bool{}}
	show := func(uid types.UID, target string) {
		spread := &v1beta1.WorkloadSpread{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: uid, Generation: 1}}
		spread.Spec.TargetReference = v1beta1.TargetReference{APIVersion: "example.com/v1", Kind: "Set", Name: target}
		b.apply(ledger.SpreadSeen{Spread: spread})
	}
	show("first", "web")
	read.expect(t, "web")
	show("second", "web")
	read.expect(t, "web")
	show("third", "other")
	read.expect(t, "other")
}

// TestADeletedPodWithAFinalizerTakesNoSlot: it is deleted after the queue has handed it out, and its finalizer keeps it in the cache.
func TestADeletedPodWithAFinalizerTakesNoSlot(t *testing.T) {
	w := newWorld(t, 3)
	w.spread(1, `{subsets: [{name: a, maxReplicas: 1}], scheduleStrategy: {whenFull: Wait}}`)
	deleted := w.pod("deleted")
	deleted.Finalizers = []string{"batch.kubernetes.io/job-tracking"}
	w.see(terminating(deleted))
	if got := w.asks(deleted); got == "a" {
		t.Error("it gets a slot")
	}
	if got := w.asks(w.pod("next")); got != "a" {
		t.Errorf("the next pod gets %q", got)
	}
}
