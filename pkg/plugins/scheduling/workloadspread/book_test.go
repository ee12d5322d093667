package workloadspread

import (
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/utils/clock"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/ledger"
)

// followed are the workloads that a book has read.
type followed map[string]bool

func (f followed) want(schema.GroupKind)            {}
func (f followed) follow(s *v1beta1.WorkloadSpread) { f[s.Spec.TargetReference.Name] = true }
func (f followed) read(ledger.Question)             {}
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

// TestAPodWhoseSpreadComesDuringItsCycleIsTriedAgain: it waits in Permit or PreBind, maybe for minutes, and had no spread before.
func TestAPodWhoseSpreadComesDuringItsCycleIsTriedAgain(t *testing.T) {
	w := newWorld(t, 3)
	first, second := w.pod("first"), w.pod("second")
	state := framework.NewCycleState()
	if _, status := w.PreFilter(t.Context(), state, first, nil); !status.IsSkip() {
		t.Fatalf("a pod without a spread: %v", status)
	}
	if status := w.Reserve(t.Context(), state, first, "node-a"); !status.IsSuccess() {
		t.Fatalf("a pod without a spread: %v", status)
	}
	w.spread(1, `{subsets: [{name: a, maxReplicas: 1}], scheduleStrategy: {whenFull: Wait}}`)
	w.see(onNode(second, "node-a", w.schedule(second).Name()))
	for name, status := range map[string]*fwk.Status{
		"Reserve": w.Reserve(t.Context(), state, first, "node-a"),
		"Bind":    w.Bind(t.Context(), state, first, "node-a"),
	} {
		if status.Code() != fwk.Error {
			t.Errorf("%s of a pod beyond the quota: %v", name, status)
		}
	}
	if got := w.asks(first); got == "a" {
		t.Errorf("the next cycle gives it %q", got)
	}
}
