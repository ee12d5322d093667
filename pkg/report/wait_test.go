package report

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/moves"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/test/testkit"
)

// The status of a spread and a decision of the descheduler with default arguments name the same reason and the same
// time.
func TestWhatHoldsPodsOfLaterSubsets(t *testing.T) {
	const old = 24 * time.Hour
	at := func(ago time.Duration) metav1.Time { return metav1.NewTime(testkit.Now.Add(-ago)) }
	until := func(in time.Duration) time.Time { return testkit.Now.Add(in) }
	schedulable := func(ago time.Duration, status metav1.ConditionStatus) func(*v1beta1.WorkloadSpread) {
		return func(s *v1beta1.WorkloadSpread) {
			s.Status.SubsetStatuses[0].Conditions = []metav1.Condition{{Type: v1beta1.ConditionSchedulable, Status: status, LastTransitionTime: at(ago)}}
		}
	}
	moved := func(all ...v1beta1.Move) func(*v1beta1.WorkloadSpread) {
		return func(s *v1beta1.WorkloadSpread) { s.Status.Moves = all }
	}
	for name, tc := range map[string]struct {
		change   func(*v1beta1.WorkloadSpread)
		want     v1beta1.Reason
		until    time.Time
		wantText string
	}{
		"nothing": {change: func(*v1beta1.WorkloadSpread) {}},
		"pods were moved out of the subset, which is skipped for unschedulableLastSeconds and must then be stable": {
			moved(v1beta1.Move{From: "a", To: "b", Round: 1, Time: at(time.Minute)}), v1beta1.ReasonSettling, until(9 * time.Minute),
			"but by default not before 2026-01-01T12:09:00Z: pods were moved out of a at 2026-01-01T11:59:00Z (Settling)"},
		"the skip of a subset takes longer": {func(s *v1beta1.WorkloadSpread) {
			s.Spec.ScheduleStrategy.Adaptive = &v1beta1.AdaptiveStrategy{UnschedulableLastSeconds: new(int32)}
			*s.Spec.ScheduleStrategy.Adaptive.UnschedulableLastSeconds = 3600
			moved(v1beta1.Move{From: "a", To: "b", Round: 1, Time: at(time.Minute)})(s)
		}, v1beta1.ReasonSettling, until(59 * time.Minute), "pods were moved out of a at 2026-01-01T11:59:00Z"},
		"pods were moved just now, and stayed": {
			moved(v1beta1.Move{From: "b", To: "a", Round: 1, Remaining: 9, Time: at(time.Minute)}), v1beta1.ReasonCoolingDown, until(4 * time.Minute),
			"but by default not before 2026-01-01T12:04:00Z: pods of the spread were moved at 2026-01-01T11:59:00Z (CoolingDown)"},
		"pods came back": {
			moved(v1beta1.Move{From: "b", To: "a", Round: 3, Remaining: 1, Time: at(6 * time.Minute)}), v1beta1.ReasonBackingOff, until(14 * time.Minute),
			"but by default not before 2026-01-01T12:14:00Z: pods came back to b after the move at 2026-01-01T11:54:00Z, round 3 (BackingOff)"},
		"of several waits the one that ends last counts": {
			moved(v1beta1.Move{From: "a", To: "b", Round: 1, Time: at(9 * time.Minute)}, v1beta1.Move{From: "b", To: "a", Round: 1, Remaining: 9, Time: at(time.Minute)}),
			v1beta1.ReasonCoolingDown, until(4 * time.Minute), "CoolingDown"},
		"a wait that is over does not count": {change: moved(v1beta1.Move{From: "a", To: "b", Round: 1, Time: at(10 * time.Minute)})},
		"the subset had no node until a moment ago": {schedulable(time.Minute, metav1.ConditionTrue), v1beta1.ReasonSettling, until(9 * time.Minute),
			"no pod waits for a node of a, but only since 2026-01-01T11:59:00Z"},
		"pods wait for the subset": {schedulable(time.Minute, metav1.ConditionFalse), v1beta1.ReasonSettling, time.Time{}, "but not yet: pods wait for a node of a (Settling)"},
		"the spread is paused": {func(s *v1beta1.WorkloadSpread) { s.Annotations = map[string]string{v1beta1.PausedAnnotation: "true"} },
			v1beta1.ReasonPaused, time.Time{}, "but not while the spread has the annotation berth.dev/paused (Paused)"},
	} {
		t.Run(name, func(t *testing.T) {
			spread := &v1beta1.WorkloadSpread{ObjectMeta: metav1.ObjectMeta{Name: "web", Generation: 1, CreationTimestamp: at(old)}}
			spread.Spec.TargetReference = v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}
			if err := yaml.UnmarshalStrict([]byte(`{subsets: [{name: a, maxReplicas: 5}, {name: b}], scheduleStrategy: {type: Adaptive}}`), &spread.Spec); err != nil {
				t.Fatal(err)
			}
			spread.Status = v1beta1.WorkloadSpreadStatus{ObservedGeneration: 1, ObservedReplicas: 4,
				SubsetStatuses: []v1beta1.SubsetStatus{{Name: "a", Replicas: 2}, {Name: "b", Replicas: 2}},
				Conditions:     []metav1.Condition{{Type: v1beta1.ConditionReady, Status: metav1.ConditionTrue}}}
			tc.change(spread)
			r := Of(spread, testkit.Now)
			if got := r.Subsets[0].Wait; (got == nil) != (tc.want == "") || got != nil && (got.Reason != tc.want || (got.Until == nil) != tc.until.IsZero() || got.Until != nil && !got.Until.Equal(tc.until)) {
				t.Errorf("got %+v, want %s until %s", got, tc.want, tc.until)
			}
			if wait := r.Subsets[0].Wait; wait != nil && (!strings.Contains(wait.Text, tc.wantText) || r.Subsets[0].Schedulable && !strings.HasSuffix(r.Next, " when it has room, "+wait.Text)) {
				t.Errorf("text %q, next %q, want %q", wait.Text, r.Next, tc.wantText)
			}
			policy, errs := subset.Compile(spread, field.NewPath("spec"))
			if len(errs) > 0 {
				t.Fatal(errs)
			}
			facts := moves.FactsOf(spread, policy, testkit.Now)
			facts.Replicas, facts.Pods = 4, append(testkit.Running("a", 2, old), testkit.Running("b", 2, old)...)
			d := moves.Return(&facts, moves.DefaultReturnLimits(), testkit.Rooms{0: 9})
			switch {
			case tc.want == "" && len(d.Moves) != 1:
				t.Errorf("the descheduler holds %+v", d.Held)
			case tc.want != "" && (len(d.Held) == 0 || d.Held[0].Reason != tc.want || !d.Held[0].Until.Equal(tc.until)):
				t.Errorf("the descheduler moves %+v and holds %+v, want %s until %s", d.Moves, d.Held, tc.want, tc.until)
			}
		})
	}
}

func TestAPodThatHasJustArrivedStays(t *testing.T) {
	spread := &v1beta1.WorkloadSpread{ObjectMeta: metav1.ObjectMeta{Name: "web", CreationTimestamp: metav1.NewTime(testkit.Now.Add(-time.Hour))}}
	policy := testkit.Policy(t, "subsets: [{name: a, maxReplicas: 5}, {name: b}]")
	spread.Status.Moves = testkit.MovedAgo("a", "b", time.Minute)
	got := Waits(spread, policy, 0, testkit.Now.Add(-time.Minute), testkit.Now)
	if got == nil || got.Reason != v1beta1.ReasonTooYoung || !got.Until.Equal(testkit.Now.Add(14*time.Minute)) || !strings.Contains(got.Text, "only since 2026-01-01T11:59:00Z") {
		t.Errorf("got %+v", got)
	}
	if got := Waits(spread, policy, 0, testkit.Now.Add(-time.Hour), testkit.Now); got == nil || got.Reason != v1beta1.ReasonSettling {
		t.Errorf("for an older pod: got %+v", got)
	}
}

// A spread that divides some pods of a workload plans for the pods that it has. The replicas of the whole workload
// would fill every subset.
func TestASpreadOfAPartPlansForItsPods(t *testing.T) {
	spread := &v1beta1.WorkloadSpread{ObjectMeta: metav1.ObjectMeta{Name: "web", CreationTimestamp: metav1.NewTime(testkit.Now.Add(-time.Hour))}}
	spread.Spec.TargetReference = v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "web"}
	spread.Spec.Subsets = []v1beta1.Subset{{Name: "a", MaxReplicas: ptr.To(intstr.FromInt(3))}, {Name: "b"}}
	spread.Status = v1beta1.WorkloadSpreadStatus{ObservedReplicas: 100, SubsetStatuses: []v1beta1.SubsetStatus{{Name: "a", Replicas: 1}, {Name: "b", Replicas: 4}},
		Conditions: []metav1.Condition{{Type: v1beta1.ConditionReady, Status: metav1.ConditionTrue}}}
	workers := &metav1.LabelSelector{MatchLabels: map[string]string{"role": "worker"}}
	for name, tc := range map[string]struct {
		filter *v1beta1.TargetFilter
		want   string
		b      int32
	}{
		"all pods":           {nil, "nothing", 97},
		"a part":             {&v1beta1.TargetFilter{Selector: workers}, "2 pods of later subsets could be in a", 2},
		"a part with a path": {&v1beta1.TargetFilter{Selector: workers, ReplicasPathList: []string{"spec.replicas"}}, "nothing", 97},
		"all, by a selector": {&v1beta1.TargetFilter{Selector: &metav1.LabelSelector{}}, "nothing", 97},
		"all, without one":   {&v1beta1.TargetFilter{}, "nothing", 97},
	} {
		spread.Spec.TargetFilter = tc.filter
		if r := Of(spread, testkit.Now); !strings.HasPrefix(r.Next, tc.want) || r.Subsets[1].Target != tc.b || r.Replicas != 100 {
			t.Errorf("%s: next %q, target of b %d", name, r.Next, r.Subsets[1].Target)
		}
	}
}
