package cycle

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	fakeclientset "k8s.io/client-go/kubernetes/fake"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	podevictions "sigs.k8s.io/descheduler/pkg/descheduler/evictions"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/moves"
	"github.com/berth-project/berth/test/testkit"
)

// What was decided on a spread is not done if the spread is not what it was.
func TestWhatBecomesOfADecisionOnASpreadThatHasChanged(t *testing.T) {
	broken := errors.New("etcd is away")
	for name, tc := range map[string]struct {
		// change is what somebody does after the cycle has looked.
		change func(client.Client, *v1beta1.WorkloadSpread) error
		writes error
		want   []v1beta1.Reason
		err    error
	}{
		"another descheduler has moved pods": {change: func(c client.Client, s *v1beta1.WorkloadSpread) error {
			s.Status.Moves = []v1beta1.Move{{From: "a", To: "b", Time: metav1.NewTime(noon)}}
			return c.Status().Update(t.Context(), s)
		}, want: []v1beta1.Reason{v1beta1.ReasonMovedByOther}},
		"another has seen that pods are misplaced": {change: func(c client.Client, s *v1beta1.WorkloadSpread) error {
			s.Status.Misplaced = &v1beta1.Misplaced{Pods: 1, Since: metav1.NewTime(noon)}
			return c.Status().Update(t.Context(), s)
		}, want: []v1beta1.Reason{v1beta1.ReasonMovedByOther}},
		"it was paused": {change: func(c client.Client, s *v1beta1.WorkloadSpread) error {
			s.Annotations = map[string]string{v1beta1.PausedAnnotation: "true"}
			return c.Update(t.Context(), s)
		}, want: []v1beta1.Reason{v1beta1.ReasonPaused}},
		"its spec has changed": {change: func(c client.Client, s *v1beta1.WorkloadSpread) error {
			s.Generation++ // the fake API server does not count
			return c.Update(t.Context(), s)
		}, want: []v1beta1.Reason{v1beta1.ReasonSpreadChanged}},
		"it is gone": {change: func(c client.Client, s *v1beta1.WorkloadSpread) error {
			return c.Delete(t.Context(), s)
		}, want: []v1beta1.Reason{v1beta1.ReasonSpreadChanged}},
		"it cannot be written": {change: func(client.Client, *v1beta1.WorkloadSpread) error { return nil }, writes: broken, err: broken},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			if err := v1beta1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			stored := spreadNamed("ns", "web", "apps/v1", "Deployment")
			live := fake.NewClientBuilder().WithScheme(scheme).WithObjects(stored).WithStatusSubresource(stored).WithInterceptorFuncs(interceptor.Funcs{
				SubResourcePatch: func(ctx context.Context, c client.Client, sub string, object client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
					if tc.writes != nil {
						return tc.writes
					}
					return c.SubResource(sub).Patch(ctx, object, patch, opts...)
				}}).Build()
			looked := &v1beta1.WorkloadSpread{}
			if err := live.Get(t.Context(), client.ObjectKeyFromObject(stored), looked); err != nil {
				t.Fatal(err)
			}
			if err := tc.change(live, looked.DeepCopy()); err != nil {
				t.Fatal(err)
			}
			policy := testkit.Policy(t, pools)
			s := &spread{object: looked, facts: *testkit.FactsOf(policy, testkit.Running("a", 1, time.Hour))}
			c := &Cycle{world: &World{live: live, options: Options{CallTimeout: time.Minute}}}
			decision := &moves.Decision{Moves: []moves.Move{{Pod: &s.facts.Pods[0], From: 0, To: 1, Reason: v1beta1.ReasonOverQuota}}}
			if err := c.act(t.Context(), &Strategy{Name: "Some"}, s, decision); !errors.Is(err, tc.err) {
				t.Errorf("got %v, want %v", err, tc.err)
			}
			var got []v1beta1.Reason
			for _, line := range s.lines {
				if line.Pod != "a-0" || line.Node != "node-a" || line.From != "a" || line.Verdict != verdictKept {
					t.Errorf("line %+v", line)
				}
				got = append(got, line.Reason)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("reasons (-want +got):\n%s", diff)
			}
		})
	}
}

// answering is an evictor that ends each eviction with what is known of the pod, and with nil for others.
type answering map[string]error

func (answering) Filter(*corev1.Pod) bool            { return true }
func (answering) PreEvictionFilter(*corev1.Pod) bool { return true }
func (a answering) Evict(_ context.Context, pod *corev1.Pod, _ podevictions.EvictOptions) error {
	return a[pod.Name]
}

// acting is a cycle with one spread of these pods, which are in subset a of two.
func acting(t *testing.T, options Options, pods int) (*Cycle, *spread) {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1beta1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	stored := spreadNamed("ns", "web", "apps/v1", "Deployment")
	options.CallTimeout, options.Clock = time.Minute, clocktesting.NewFakeClock(testkit.Now)
	live := fake.NewClientBuilder().WithScheme(scheme).WithObjects(stored).WithStatusSubresource(stored).Build()
	s := &spread{object: &v1beta1.WorkloadSpread{}, facts: *testkit.FactsOf(testkit.Policy(t, pools), testkit.Running("a", pods, time.Hour)), pods: map[types.UID]*corev1.Pod{}}
	if err := live.Get(t.Context(), client.ObjectKeyFromObject(stored), s.object); err != nil {
		t.Fatal(err)
	}
	for i := range s.facts.Pods {
		pod := podNamed(s.facts.Pods[i].Name, true)
		s.pods[s.facts.Pods[i].UID] = pod
	}
	return &Cycle{ctx: t.Context(), world: &World{live: live, typed: fakeclientset.NewClientset(), options: options}, budgets: newBudgets()}, s
}

// moveOf is a decision to move the pods with these positions from subset a to b.
func moveOf(s *spread, pods ...int) *moves.Decision {
	d := &moves.Decision{}
	for _, i := range pods {
		d.Moves = append(d.Moves, moves.Move{Pod: &s.facts.Pods[i], From: 0, To: 1, Reason: v1beta1.ReasonOverQuota})
	}
	return d
}

func resultsOf(s *spread) (all []string) {
	for _, line := range s.lines {
		all = append(all, line.Pod+" "+string(line.Result))
	}
	return all
}

func TestADryRunDoesNotSayThatItEvicts(t *testing.T) {
	for _, dryRun := range []bool{true, false} {
		c, s := acting(t, Options{DryRun: dryRun}, 2)
		refused := &evictionError{Result: resultRefused, Err: errors.New("a budget")}
		if err := c.act(t.Context(), &Strategy{Name: "Some", Evictor: answering{"a-1": refused}}, s, moveOf(s, 0, 1)); err != nil {
			t.Fatal(err)
		}
		want := []string{"a-0 Evicted", "a-1 Refused"}
		if dryRun {
			want[0] = "a-0 WouldEvict"
		}
		if diff := cmp.Diff(want, resultsOf(s)); diff != "" {
			t.Errorf("dry run %t (-want +got):\n%s", dryRun, diff)
		}
	}
}

func TestARefusedEvictionIsTakenBack(t *testing.T) {
	c, s := acting(t, Options{}, 3)
	c.budgets = disruptionBudget(5, nil)
	refused := &evictionError{Result: resultRefused, Err: errors.New("a budget")}
	if err := c.act(t.Context(), &Strategy{Name: "Some", Evictor: answering{"a-1": refused}}, s, moveOf(s, 0, 1)); err != nil {
		t.Fatal(err)
	}
	if moves := s.object.Status.Moves; len(moves) != 1 || len(moves[0].InFlight) != 1 || moves[0].InFlight[0].Name != "a-0" {
		t.Errorf("the record is %+v, want pod a-0 alone in flight", moves)
	}
	if got := c.budgets.spare(podNamed("a-2", true)); got != v1beta1.ReasonBudgetExhausted {
		t.Errorf("the budget that has refused says %q of another pod", got)
	}
}

// A pod whose eviction got no answer may be gone, and counts as gone for two minutes. That must survive what the next
// strategy of the cycle writes.
func TestAnUnansweredEvictionStaysInTheRecord(t *testing.T) {
	c, s := acting(t, Options{}, 3)
	unanswered := &evictionError{Result: resultUnanswered, Err: errors.New("no answer")}
	strategy := &Strategy{Name: "Some", Evictor: answering{"a-0": unanswered}}
	for _, pod := range []int{0, 1} {
		if err := c.act(t.Context(), strategy, s, moveOf(s, pod)); err != nil {
			t.Fatal(err)
		}
	}
	var flying []string
	for _, m := range s.object.Status.Moves {
		for _, in := range m.InFlight {
			flying = append(flying, in.Name)
		}
	}
	if diff := cmp.Diff([]string{"a-0", "a-1"}, flying); diff != "" {
		t.Errorf("in flight (-want +got):\n%s", diff)
	}
}

// All spreads together move so many running pods in a cycle. Pods without a node do not count.
func TestTheBrakeOverAllSpreads(t *testing.T) {
	for _, runs := range []bool{true, false} {
		c, _ := acting(t, Options{DryRun: true}, 1)
		c.report = &Report{}
		for range leastBrake + 50 {
			_, s := acting(t, Options{}, 1)
			if !runs {
				s.facts.Pods[0].NodeName = ""
			}
			c.spreads = append(c.spreads, s)
		}
		decide := func(f *moves.Facts, _ moves.Cluster) moves.Decision {
			return moves.Decision{Moves: []moves.Move{{Pod: &f.Pods[0], From: 0, To: 1, Reason: v1beta1.ReasonOverQuota}}}
		}
		if err := c.Run(t.Context(), Strategy{Name: "Some", Evictor: answering{}, Decide: decide}); err != nil {
			t.Fatal(err)
		}
		verdicts := map[verdict]int{}
		for _, line := range c.report.Lines {
			verdicts[line.Verdict]++
		}
		if want := map[bool]int{true: leastBrake, false: leastBrake + 50}[runs]; verdicts[verdictMoved] != want || verdicts[verdictMoved]+verdicts[verdictKept] != len(c.spreads) {
			t.Errorf("running %v: %v", runs, verdicts)
		}
	}
}

// Each spread decides before any other at some time. So a spread whose evictions are always forbidden does not take the
// room of another one forever.
func TestSpreadsTakeTurns(t *testing.T) {
	c := &Cycle{Now: testkit.Now}
	for _, uid := range []types.UID{"a", "b"} {
		c.spreads = append(c.spreads, &spread{object: &v1beta1.WorkloadSpread{ObjectMeta: metav1.ObjectMeta{UID: uid}}})
	}
	first := map[int]int{}
	for range 144 {
		if again := c.order(); !slices.Equal(again, c.order()) {
			t.Error("the order changes at one moment")
		}
		first[c.order()[0]]++
		c.Now = c.Now.Add(shuffleEvery)
	}
	if first[0] < 36 || first[1] < 36 {
		t.Errorf("in a day the two were first %v times", first)
	}
}
