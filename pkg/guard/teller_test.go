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
		teller := newTeller(h, clock.RealClock{})
		go func() { _ = teller.Start(t.Context()) }() // it returns nil when the context ends
		test(t, teller, h)
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
			synctest.Wait()
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
			if i%100 == 0 {
				synctest.Wait()
			}
		}
		synctest.Wait()
		loud := len(h.lines)
		teller.refused(refusedPod("quiet", "a"))
		synctest.Wait()
		if loud != mostOfNamespace || len(h.lines) != loud+2 || !slices.ContainsFunc(h.lines, func(l string) bool { return strings.HasPrefix(l, "Pod a,") }) {
			t.Errorf("got %d events of the loud namespace and %d of the quiet one", loud, len(h.lines)-loud)
		}
		if n := teller.last.Len(); n > mostRemembered {
			t.Errorf("%d objects are remembered", n)
		}
	})
}

func TestARefusalIsNotHeldUpByThoseThatWaitToBeTold(t *testing.T) {
	teller := newTeller(&heard{}, clock.RealClock{}) // nobody starts it
	for i := range 2 * mostWaiting {
		teller.refused(refusedPod("ns", fmt.Sprint(i)))
	}
	if n := len(teller.waiting); n != mostWaiting {
		t.Errorf("%d wait, want %d", n, mostWaiting)
	}
}

func TestARefusalSaysHowLongItIsLikelyToLast(t *testing.T) {
	c := cluster(t, 3, interceptor.Funcs{})
	for i := range 3 {
		p := pod(i)
		p.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))
		p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(p.CreationTimestamp.Add(40 * time.Second))
		if err := c.Delete(t.Context(), pod(i)); err != nil {
			t.Fatal(err)
		}
		if err := c.Create(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	g := New(c, c, c, Options{})
	decide(t, g, 0)
	v, err := g.Decide(t.Context(), Request{Pod: pod(1), Operation: v1beta1.OperationDelete})
	if err != nil || !strings.HasSuffix(v.Message, "try again when more are available (in about 40s: its pods take 40s to become ready)") {
		t.Errorf("got %q, %v", v.Message, err)
	}
}
