package guard

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// heard records events, each as the object it regards, the related object, its reason and its note.
type heard struct{ lines []string }

func (h *heard) Eventf(regarding, related runtime.Object, _, reason, action, note string, args ...any) {
	name := func(o runtime.Object) string {
		if reference, is := o.(*corev1.ObjectReference); is {
			return reference.Kind + " " + reference.Name
		}
		return "nothing"
	}
	h.lines = append(h.lines, fmt.Sprintf("%s, %s: %s %s: %s", name(regarding), name(related), reason, action, fmt.Sprintf(note, args...)))
}

// telling runs the test with a teller, in a bubble whose clock advances when everything waits.
func telling(t *testing.T, test func(t *testing.T, teller *teller, h *heard)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := &heard{}
		test(t, newTeller(h, clock.RealClock{}), h)
	})
}

func refusedPod(namespace, name string) (*Request, verdict) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name)}}
	return &Request{Pod: pod, Operation: v1beta1.OperationEvict}, verdict{Verdict: budget.Verdict{Reason: v1beta1.ReasonBudgetExhausted, Message: "no room"},
		by: &corev1.ObjectReference{Kind: "PodUnavailableBudget", Namespace: namespace, Name: "web", UID: types.UID(namespace + "-budget")}}
}

func TestARefusalIsToldOnThePodAndOnTheBudget(t *testing.T) {
	telling(t, func(t *testing.T, teller *teller, h *heard) {
		t.Helper()
		c := cluster(t, 3, interceptor.Funcs{})
		g := New(c, c, c, Options{})
		g.teller = teller
		ask := func(i int, dryRun bool) {
			t.Helper()
			if _, err := g.Decide(t.Context(), Request{Pod: pod(i), Operation: v1beta1.OperationEvict, DryRun: dryRun}); err != nil {
				t.Fatal(err)
			}
		}
		ask(0, false)
		ask(1, true)
		if len(h.lines) > 0 {
			t.Fatalf("got %q for an approval and a dry run", h.lines)
		}
		ask(1, false)
		const note = "BudgetExhausted EVICT: pod web-1 cannot be evicted now: PodUnavailableBudget web needs 2 available pods of 3 and has 2"
		if len(h.lines) != 2 || !strings.HasPrefix(h.lines[0], "Pod web-1, PodUnavailableBudget web: "+note) ||
			!strings.HasPrefix(h.lines[1], "PodUnavailableBudget web, Pod web-1: "+note) {
			t.Errorf("got %q, want one event on each of the two", h.lines)
		}
	})
}

func TestRefusalsThatRepeatAreToldOnceAMinute(t *testing.T) {
	telling(t, func(t *testing.T, teller *teller, h *heard) {
		t.Helper()
		for range 24 { // a drain tries again every 5 s
			teller.refused(refusedPod("ns", "a"))
			time.Sleep(5 * time.Second)
		}
		if len(h.lines) != 4 {
			t.Errorf("got %d events within two minutes, want 4: %q", len(h.lines), h.lines)
		}
	})
}

func TestANamespaceWithManyRefusalsKeepsNoOtherFromBeingHeard(t *testing.T) {
	telling(t, func(t *testing.T, teller *teller, h *heard) {
		t.Helper()
		for i := range 5000 {
			teller.refused(refusedPod("loud", fmt.Sprint(i)))
		}
		loud := len(h.lines)
		teller.refused(refusedPod("quiet", "a"))
		if loud != mostOfNamespace || len(h.lines) != loud+2 || !slices.ContainsFunc(h.lines, func(l string) bool { return strings.HasPrefix(l, "Pod a,") }) {
			t.Errorf("got %d events of the loud namespace and %d of the quiet one", loud, len(h.lines)-loud)
		}
	})
}
