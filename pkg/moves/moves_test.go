package moves

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
)

var start = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// policy has subsets a, b, c, … with these quotas, -1 for no limit, on nodes with the label pool=a and so on.
func policy(tb testing.TB, strategy v1beta1.ScheduleStrategy, quotas ...int) *subset.Policy {
	tb.Helper()
	spec := &v1beta1.WorkloadSpreadSpec{
		TargetReference:  v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"},
		ScheduleStrategy: strategy,
	}
	for i, quota := range quotas {
		s := v1beta1.Subset{Name: letter(i), RequiredNodeSelector: &corev1.NodeSelectorTerm{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "pool", Operator: corev1.NodeSelectorOpIn, Values: []string{letter(i)}}}}}
		if quota >= 0 {
			s.MaxReplicas = ptr.To(intstr.FromInt(quota))
		}
		spec.Subsets = append(spec.Subsets, s)
	}
	p, errs := subset.Compile(&v1beta1.WorkloadSpread{Spec: *spec}, field.NewPath("spec"))
	if len(errs) > 0 {
		tb.Fatal(errs)
	}
	return p
}

func letter(i int) string { return string("abcdefgh"[i]) }

var (
	adaptive = v1beta1.ScheduleStrategy{Type: v1beta1.AdaptiveScheduleStrategy}
	early    = v1beta1.ScheduleStrategy{Type: v1beta1.AdaptiveScheduleStrategy, Binding: v1beta1.EarlyBinding,
		Adaptive: &v1beta1.AdaptiveStrategy{RescheduleCriticalSeconds: ptr.To[int32](30)}}
)

func node(pool string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-" + pool, Labels: map[string]string{"pool": pool}}}
}

// bound is a ready pod in a subset, created so long before the start.
func bound(name, in string, age time.Duration) Pod {
	return Pod{
		Pod: subset.Pod{Name: name, UID: types.UID(name), Record: &subset.Record{Spread: "web", Subset: in}, NodeName: "node-" + in, Node: node(in),
			Active: true, Ready: true, Created: start.Add(-age)},
		BoundSince: start.Add(-age),
	}
}

// waiting is a pending pod that admission picked a subset for.
func waiting(name, in string, unschedulable time.Duration) Pod {
	return Pod{
		Pod: subset.Pod{Name: name, UID: types.UID(name), Admitted: &subset.Admitted{Spread: "web", Subset: in}, Active: true,
			Created: start.Add(-unschedulable)},
		UnschedulableSince: start.Add(-unschedulable),
	}
}

// rooms is a cluster with so many places in each subset.
type rooms struct {
	places  map[int]int
	unknown bool
	kept    map[types.UID]v1beta1.Reason
	// spare is how many pods may go; nil for any number.
	spare *int
	asked int
}

func (r *rooms) Room(_ *Pod, in int) Room {
	r.asked++
	if r.places[in] > 0 {
		r.places[in]--
		return HasRoom
	}
	if r.unknown {
		return RoomUnknown
	}
	return NoRoom
}

func (r *rooms) Spares(pod *Pod) v1beta1.Reason {
	if r.spare != nil && *r.spare <= 0 {
		return v1beta1.ReasonBudgetExhausted
	}
	return r.kept[pod.UID]
}

func (r *rooms) Take(*Pod) {
	if r.spare != nil {
		*r.spare--
	}
}

func names(d Decision) (all []string) {
	for _, m := range d.Moves {
		all = append(all, fmt.Sprintf("%s %d>%d %s", m.Pod.Name, m.From, m.To, m.Reason))
	}
	return all
}

func reasons(d Decision) map[string]v1beta1.Reason {
	all := map[string]v1beta1.Reason{}
	for _, h := range d.Held {
		name := "all"
		if h.Pod != nil {
			name = h.Pod.Name
		}
		all[name] = h.Reason
	}
	return all
}

var (
	leaveLimits  = LeaveLimits{Tolerance: 5 * time.Second, AtMost: intstr.FromString("100%"), Pace: Pace{time.Minute, 30 * time.Minute}}
	trimLimits   = TrimLimits{Settle: time.Minute, MaxUnavailable: intstr.FromString("10%"), Pace: Pace{time.Minute, 30 * time.Minute}}
	returnLimits = ReturnLimits{Stable: 10 * time.Minute, Residence: 15 * time.Minute, Cooldown: time.Minute, AtMost: intstr.FromInt32(1),
		Pace: Pace{5 * time.Minute, 4 * time.Hour}}
)

var gated = v1beta1.ScheduleStrategy{Type: v1beta1.AdaptiveScheduleStrategy, Binding: v1beta1.GatedBinding,
	Adaptive: &v1beta1.AdaptiveStrategy{RescheduleCriticalSeconds: ptr.To[int32](30)}}

var skipping = v1beta1.ScheduleStrategy{Type: v1beta1.AdaptiveScheduleStrategy, Adaptive: &v1beta1.AdaptiveStrategy{UnschedulableLastSeconds: ptr.To[int32](3600)}}

func opened(name, in string, since time.Duration) Pod {
	pod := waiting(name, in, since)
	pod.Admitted.Opened = true
	return pod
}

func ofJob(pod Pod) Pod {
	pod.OfJob = true
	return pod
}

func TestLeave(t *testing.T) {
	at := func(seconds int) time.Duration { return time.Duration(seconds) * time.Second }
	tests := map[string]struct {
		strategy *v1beta1.ScheduleStrategy
		pods     []Pod
		moves    []v1beta1.Move
		subsets  []v1beta1.SubsetStatus
		paused   bool
		moved    Direction
		cluster  rooms
		limits   LeaveLimits
		want     []string
		wantHeld map[string]v1beta1.Reason
	}{
		"a pod leaves when its time and the tolerance are over": {
			pods:    []Pod{waiting("p", "a", at(36))},
			cluster: rooms{places: map[int]int{1: 1}},
			want:    []string{"p 0>1 UnschedulableTooLong"},
		},
		"a pod stays until the tolerance is over": {
			pods:    []Pod{waiting("p", "a", at(35)), waiting("q", "a", at(30))},
			cluster: rooms{places: map[int]int{1: 1}},
		},
		"a pod without room elsewhere stays": {
			pods:     []Pod{waiting("p", "a", at(36))},
			wantHeld: map[string]v1beta1.Reason{"p": v1beta1.ReasonNoRoom},
		},
		"a pod of which nobody can tell whether there is room leaves: it is of no use where it is": {
			pods:    []Pod{waiting("p", "a", at(36))},
			cluster: rooms{unknown: true},
			want:    []string{"p 0>1 UnschedulableTooLong"},
		},
		"of two pods and one free place the one that has waited longest leaves": {
			pods:     []Pod{waiting("p", "a", at(40)), waiting("q", "a", at(50))},
			cluster:  rooms{places: map[int]int{1: 1}},
			want:     []string{"q 0>1 UnschedulableTooLong"},
			wantHeld: map[string]v1beta1.Reason{"p": v1beta1.ReasonNoRoom},
		},
		"a late-bound pod stays: the scheduler goes on by itself": {
			strategy: &v1beta1.ScheduleStrategy{Type: v1beta1.AdaptiveScheduleStrategy,
				Adaptive: &v1beta1.AdaptiveStrategy{RescheduleCriticalSeconds: ptr.To[int32](30)}},
			pods:    []Pod{waiting("p", "a", at(100))},
			cluster: rooms{places: map[int]int{1: 1}},
		},
		"a pod of strategy Fixed stays": {
			strategy: &v1beta1.ScheduleStrategy{Binding: v1beta1.EarlyBinding},
			pods:     []Pod{waiting("p", "a", at(100))},
			cluster:  rooms{places: map[int]int{1: 1}},
		},
		"without rescheduleCriticalSeconds nobody leaves": {
			strategy: &v1beta1.ScheduleStrategy{Type: v1beta1.AdaptiveScheduleStrategy, Binding: v1beta1.EarlyBinding},
			pods:     []Pod{waiting("p", "a", at(100))},
			cluster:  rooms{places: map[int]int{1: 1}},
		},
		"a pod that was not found unschedulable stays": {
			pods: []Pod{{Pod: subset.Pod{Name: "p", UID: "p", Active: true, Created: start.Add(-time.Hour),
				Admitted: &subset.Admitted{Spread: "web", Subset: "a"}}}},
			cluster: rooms{places: map[int]int{1: 1}},
		},
		"a paused spread keeps its pods": {
			pods: []Pod{waiting("p", "a", at(36))}, paused: true,
			cluster:  rooms{places: map[int]int{1: 1}},
			wantHeld: map[string]v1beta1.Reason{"p": v1beta1.ReasonPaused},
		},
		"nobody leaves in a cycle in which others returned": {
			pods: []Pod{waiting("p", "a", at(36))}, moved: Home,
			cluster:  rooms{places: map[int]int{1: 1}},
			wantHeld: map[string]v1beta1.Reason{"p": v1beta1.ReasonOppositeMove},
		},
		"a pod goes on past a subset that others left of late": {
			pods:    []Pod{waiting("p", "a", at(36))},
			moves:   []v1beta1.Move{{From: "b", To: "c", Time: metav1.NewTime(start.Add(-time.Minute))}},
			cluster: rooms{places: map[int]int{1: 1, 2: 1}},
			want:    []string{"p 0>2 UnschedulableTooLong"},
		},
		"a pod goes on past a subset that admission passes over because others wait in it": {
			pods:    []Pod{waiting("p", "a", at(36))},
			subsets: waitedIn("b", time.Minute),
			cluster: rooms{places: map[int]int{1: 1, 2: 1}},
			want:    []string{"p 0>2 UnschedulableTooLong"},
		},
		"pods that came back wait longer": {
			pods:     []Pod{waiting("p", "a", at(36))},
			moves:    []v1beta1.Move{{From: "a", To: "b", Round: 2, Time: metav1.NewTime(start.Add(-time.Minute))}},
			cluster:  rooms{places: map[int]int{1: 1}},
			wantHeld: map[string]v1beta1.Reason{"p": v1beta1.ReasonBackingOff},
		},
		"pods that did not come back do not": {
			pods:    []Pod{waiting("p", "a", at(36)), waiting("q", "a", at(36))},
			moves:   []v1beta1.Move{{From: "a", To: "b", Round: 2, Remaining: 2, Time: metav1.NewTime(start.Add(-20 * time.Second))}},
			cluster: rooms{places: map[int]int{1: 9}},
			want:    []string{"p 0>1 UnschedulableTooLong", "q 0>1 UnschedulableTooLong"},
		},
		"no more pods leave a subset in a cycle than allowed": {
			pods:     []Pod{waiting("p", "a", at(40)), waiting("q", "a", at(41)), waiting("r", "a", at(42))},
			cluster:  rooms{places: map[int]int{1: 9}},
			limits:   LeaveLimits{AtMost: intstr.FromString("50%")},
			want:     []string{"r 0>1 UnschedulableTooLong", "q 0>1 UnschedulableTooLong"},
			wantHeld: map[string]v1beta1.Reason{"p": v1beta1.ReasonLimitReached},
		},
		"a pod whose gate was opened leaves although no node is there: an autoscaler may make one": {
			strategy: &gated, pods: []Pod{opened("p", "a", at(36))},
			want: []string{"p 0>1 UnschedulableTooLong"},
		},
		"from the last subset it goes to an earlier one that has quota": {
			strategy: &gated, pods: []Pod{opened("p", "c", at(36))},
			want: []string{"p 2>0 UnschedulableTooLong"},
		},
		"it stays until its time is over": {
			strategy: &gated, pods: []Pod{opened("p", "a", at(35))},
		},
		"it stays if others left the other subsets of late": {
			strategy: &gated, pods: []Pod{opened("p", "b", at(36))},
			moves:    []v1beta1.Move{{From: "a", To: "b", Time: metav1.NewTime(start.Add(-time.Minute))}, {From: "c", Time: metav1.NewTime(start.Add(-time.Minute))}},
			wantHeld: map[string]v1beta1.Reason{"p": v1beta1.ReasonNoRoom},
		},
		"a pod of a Job stays": {
			strategy: &gated, pods: []Pod{ofJob(opened("p", "a", at(100)))},
		},
		"a pod that must not be evicted stays": {
			pods:     []Pod{waiting("p", "a", at(36))},
			cluster:  rooms{places: map[int]int{1: 1}, kept: map[types.UID]v1beta1.Reason{"p": v1beta1.ReasonNotEvictable}},
			wantHeld: map[string]v1beta1.Reason{"p": v1beta1.ReasonNotEvictable},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if tc.strategy == nil {
				tc.strategy = &early
			}
			if tc.limits == (LeaveLimits{}) {
				tc.limits = leaveLimits
			}
			f := &Facts{Name: "web", Policy: policy(t, *tc.strategy, 5, 5, -1), Replicas: 5, Pods: tc.pods, Moves: tc.moves, Subsets: tc.subsets, Paused: tc.paused, Moved: tc.moved, Now: start}
			check(t, Leave(f, tc.limits, &tc.cluster), tc.want, tc.wantHeld)
		})
	}
}

func check(t *testing.T, d Decision, want []string, wantHeld map[string]v1beta1.Reason) {
	t.Helper()
	if wantHeld == nil {
		wantHeld = map[string]v1beta1.Reason{}
	}
	if diff := cmp.Diff(want, names(d)); diff != "" {
		t.Errorf("moves (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(wantHeld, reasons(d)); diff != "" {
		t.Errorf("held (-want +got):\n%s", diff)
	}
}

// many are ready pods a0, a1, … in a subset, the first the oldest.
func many(in string, n int, age time.Duration) (pods []Pod) {
	for i := range n {
		pods = append(pods, bound(fmt.Sprintf("%s%d", in, i), in, age+time.Duration(n-i)*time.Second))
	}
	return pods
}

func TestTrim(t *testing.T) {
	settled := &v1beta1.Misplaced{Pods: 99, Since: metav1.NewTime(start.Add(-time.Hour))}
	relabelled := func(pod Pod, pool string) Pod {
		pod.Node = node(pool)
		return pod
	}
	tests := map[string]struct {
		strategy  v1beta1.ScheduleStrategy
		quotas    []int
		pods      []Pod
		replicas  int32
		moves     []v1beta1.Move
		misplaced *v1beta1.Misplaced
		cluster   rooms
		limits    func(*TrimLimits)
		want      []string
		wantHeld  map[string]v1beta1.Reason
	}{
		"the youngest pod above the quota goes, one for each that may be unavailable": {
			quotas: []int{3, -1}, pods: many("a", 5, time.Hour), misplaced: settled,
			cluster:  rooms{places: map[int]int{1: 9}},
			want:     []string{"a4 0>1 OverQuota"},
			wantHeld: map[string]v1beta1.Reason{"a3": v1beta1.ReasonLimitReached},
		},
		"nobody goes before it has settled": {
			quotas: []int{3, -1}, pods: many("a", 5, time.Hour),
			cluster:  rooms{places: map[int]int{1: 9}},
			wantHeld: map[string]v1beta1.Reason{"all": v1beta1.ReasonSettling},
		},
		"nobody goes while another is not ready": {
			quotas: []int{3, -1}, pods: many("a", 4, time.Hour), replicas: 5, misplaced: settled,
			cluster:  rooms{places: map[int]int{1: 9}},
			wantHeld: map[string]v1beta1.Reason{"a3": v1beta1.ReasonLimitReached},
		},
		"a pod that a budget needs stays": {
			quotas: []int{3, -1}, pods: many("a", 5, time.Hour), misplaced: settled,
			cluster:  rooms{places: map[int]int{1: 9}, spare: ptr.To(0)},
			wantHeld: map[string]v1beta1.Reason{"a3": v1beta1.ReasonBudgetExhausted, "a4": v1beta1.ReasonBudgetExhausted},
		},
		"nobody goes without room": {
			quotas: []int{3, -1}, pods: many("a", 5, time.Hour), misplaced: settled,
			wantHeld: map[string]v1beta1.Reason{"a3": v1beta1.ReasonNoRoom, "a4": v1beta1.ReasonNoRoom},
		},
		"nobody goes where all subsets are full and pods would wait": {
			strategy: v1beta1.ScheduleStrategy{WhenFull: v1beta1.WhenFullWait}, quotas: []int{3, 0}, pods: many("a", 5, time.Hour), misplaced: settled,
			cluster:  rooms{places: map[int]int{subset.None: 9, 1: 9}},
			wantHeld: map[string]v1beta1.Reason{"a3": v1beta1.ReasonNoRoom, "a4": v1beta1.ReasonNoRoom},
		},
		"they go all the same if the quota counts for more than the pods": {
			strategy: v1beta1.ScheduleStrategy{WhenFull: v1beta1.WhenFullWait}, quotas: []int{3, 0}, pods: many("a", 4, time.Hour), misplaced: settled,
			limits: func(l *TrimLimits) { l.WithoutRoom = true },
			want:   []string{"a3 0>-1 OverQuota"},
		},
		"a pod that no subset has a place for goes to any node if the spread lets it": {
			quotas: []int{3, 0}, pods: many("a", 4, time.Hour), misplaced: settled,
			cluster: rooms{places: map[int]int{subset.None: 1}},
			want:    []string{"a3 0>-1 OverQuota"},
		},
		"a pod outside of its subset goes before one above the quota, and may stay in its subset": {
			quotas: []int{3, -1}, pods: append(many("a", 3, time.Hour), relabelled(bound("x", "a", 2*time.Hour), "b")), misplaced: settled,
			cluster: rooms{places: map[int]int{1: 1}},
			want:    []string{"x 0>1 NodeOutsideSubset"},
		},
		"a pod outside of its subset comes back to another node of it": {
			quotas: []int{3, -1}, pods: append(many("a", 2, time.Hour), relabelled(bound("x", "a", 2*time.Hour), "b")), misplaced: settled,
			cluster: rooms{places: map[int]int{0: 1}},
			want:    []string{"x 0>0 NodeOutsideSubset"},
		},
		"nobody goes during a rollout": {
			quotas: []int{1, -1}, pods: func() []Pod {
				pods := many("a", 3, time.Hour)
				pods[0].Revision = "old"
				return pods
			}(), misplaced: settled,
			cluster:  rooms{places: map[int]int{1: 9}},
			wantHeld: map[string]v1beta1.Reason{"all": v1beta1.ReasonRollingOut},
		},
		"nobody goes while the workload gives pods up itself": {
			quotas: []int{3, -1}, pods: many("a", 5, time.Hour), replicas: 3, misplaced: settled,
			cluster:  rooms{places: map[int]int{1: 9}},
			wantHeld: map[string]v1beta1.Reason{"all": v1beta1.ReasonNotAtRest},
		},
		"a pod in flight counts as gone, and as unavailable": {
			quotas: []int{3, -1}, pods: many("a", 5, time.Hour), misplaced: settled,
			moves:    []v1beta1.Move{{From: "a", To: "b", Round: 1, Remaining: 1, Time: metav1.NewTime(start), InFlight: []v1beta1.PodInFlight{{UID: "a4", Time: metav1.NewTime(start)}}}},
			cluster:  rooms{places: map[int]int{1: 9}},
			wantHeld: map[string]v1beta1.Reason{"a3": v1beta1.ReasonLimitReached},
		},
		"a pod that should have gone long ago is one like any other": {
			quotas: []int{3, -1}, pods: many("a", 5, time.Hour), misplaced: settled,
			moves: []v1beta1.Move{{From: "a", To: "b", Round: 1, Remaining: 1, Time: metav1.NewTime(start.Add(-flightTime)),
				InFlight: []v1beta1.PodInFlight{{UID: "a4", Time: metav1.NewTime(start.Add(-flightTime))}}}},
			cluster:  rooms{places: map[int]int{1: 9}},
			want:     []string{"a4 0>1 OverQuota"},
			wantHeld: map[string]v1beta1.Reason{"a3": v1beta1.ReasonLimitReached},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			limits := trimLimits
			if tc.limits != nil {
				tc.limits(&limits)
			}
			if tc.replicas == 0 {
				tc.replicas = int32(len(tc.pods))
			}
			f := &Facts{Name: "web", Policy: policy(t, tc.strategy, tc.quotas...), Replicas: tc.replicas, Pods: tc.pods, Moves: tc.moves, Misplaced: tc.misplaced, Now: start}
			check(t, Trim(f, limits, &tc.cluster), tc.want, tc.wantHeld)
		})
	}
}

func TestTrimRemembersSinceWhen(t *testing.T) {
	p := policy(t, v1beta1.ScheduleStrategy{}, 3, -1)
	at := func(pods int, memory *v1beta1.Misplaced, now time.Time) *v1beta1.Misplaced {
		return Trim(&Facts{Name: "web", Policy: p, Replicas: int32(pods), Pods: many("a", pods, time.Hour), Misplaced: memory, Now: now}, trimLimits, &rooms{}).Misplaced
	}
	first := at(5, nil, start)
	if diff := cmp.Diff(&v1beta1.Misplaced{Pods: 2, Since: metav1.NewTime(start)}, first); diff != "" {
		t.Errorf("when they are first seen (-want +got):\n%s", diff)
	}
	if got := at(5, first, start.Add(time.Minute)); !got.Since.Equal(&first.Since) {
		t.Errorf("the time began anew with as many: %v", got)
	}
	if got := at(4, first, start.Add(time.Minute)); !got.Since.Equal(&first.Since) || got.Pods != 1 {
		t.Errorf("the time began anew with fewer: %v", got)
	}
	if got := at(6, first, start.Add(time.Minute)); got.Since.Equal(&first.Since) {
		t.Errorf("the time goes on with more, of which some are new: %v", got)
	}
	if got := at(3, first, start.Add(time.Minute)); got != nil {
		t.Errorf("it is remembered when it is over: %v", got)
	}
}

func TestReturn(t *testing.T) {
	hour := time.Hour
	tests := map[string]struct {
		strategy *v1beta1.ScheduleStrategy
		quotas   []int
		pods     []Pod
		replicas int32
		moves    []v1beta1.Move
		since    []time.Time
		moved    Direction
		cluster  rooms
		atMost   int32
		want     []string
		wantHeld map[string]v1beta1.Reason
	}{
		"the oldest pod of the last subset comes home": {
			quotas: []int{2, 2, -1}, pods: slices.Concat(many("b", 1, hour), many("c", 2, hour)),
			cluster:  rooms{places: map[int]int{0: 9}},
			want:     []string{"c0 2>0 EarlierSubsetHasRoom"},
			wantHeld: map[string]v1beta1.Reason{"b0": v1beta1.ReasonLimitReached, "c1": v1beta1.ReasonLimitReached},
		},
		"a pod of no subset comes first": {
			quotas: []int{2, 2}, pods: append(many("b", 1, hour), func() Pod {
				pod := bound("x", "b", hour)
				pod.Record.Subset, pod.Node = "", node("elsewhere")
				return pod
			}()),
			cluster:  rooms{places: map[int]int{0: 9}},
			want:     []string{"x -1>0 EarlierSubsetHasRoom"},
			wantHeld: map[string]v1beta1.Reason{"b0": v1beta1.ReasonLimitReached},
		},
		"pods that others put into no subset come home, one at a time": {
			quotas: []int{5, 5}, pods: append(many("a", 5, hour), func() (unplaced []Pod) {
				for _, pod := range many("x", 4, hour) {
					pod.Record, pod.Node = nil, node("elsewhere")
					unplaced = append(unplaced, pod)
				}
				return unplaced
			}()...),
			cluster: rooms{places: map[int]int{1: 9}},
			want:    []string{"x0 -1>1 EarlierSubsetHasRoom"},
			wantHeld: map[string]v1beta1.Reason{
				"x1": v1beta1.ReasonLimitReached, "x2": v1beta1.ReasonLimitReached, "x3": v1beta1.ReasonLimitReached},
		},
		"twenty pods and one free place: one comes home": {
			quotas: []int{-1, -1}, pods: many("b", 20, hour), atMost: 20,
			cluster: rooms{places: map[int]int{0: 1}},
			want:    []string{"b0 1>0 EarlierSubsetHasRoom"},
			wantHeld: func() map[string]v1beta1.Reason {
				held := map[string]v1beta1.Reason{}
				for i := 1; i < 20; i++ {
					held[fmt.Sprintf("b%d", i)] = v1beta1.ReasonNoRoom
				}
				return held
			}(),
		},
		"nobody comes home to a full subset": {
			quotas: []int{1, -1}, pods: append(many("a", 1, hour), many("b", 3, hour)...),
			cluster: rooms{places: map[int]int{0: 9}},
		},
		"no more come home than there are slots": {
			quotas: []int{2, -1}, pods: append(many("a", 1, hour), many("b", 2, hour)...), atMost: 9,
			cluster:  rooms{places: map[int]int{0: 9}},
			want:     []string{"b0 1>0 EarlierSubsetHasRoom"},
			wantHeld: map[string]v1beta1.Reason{"b1": v1beta1.ReasonNoRoom},
		},
		"nobody comes home where it cannot be told": {
			quotas: []int{2, -1}, pods: many("b", 1, hour),
			cluster:  rooms{unknown: true},
			wantHeld: map[string]v1beta1.Reason{"b0": v1beta1.ReasonRoomUnknown},
		},
		"with Adaptive a pod comes to the first subset that has a node": {
			quotas: []int{2, 2, -1}, pods: many("c", 1, hour),
			cluster: rooms{places: map[int]int{1: 1}},
			want:    []string{"c0 2>1 EarlierSubsetHasRoom"},
		},
		"with Fixed it would wait for the first subset, so it stays": {
			strategy: &v1beta1.ScheduleStrategy{}, quotas: []int{2, 2, -1}, pods: many("c", 1, hour),
			cluster:  rooms{places: map[int]int{1: 1}},
			wantHeld: map[string]v1beta1.Reason{"c0": v1beta1.ReasonNoRoom},
		},
		"a young pod stays": {
			quotas: []int{2, -1}, pods: many("b", 1, time.Minute),
			cluster:  rooms{places: map[int]int{0: 1}},
			wantHeld: map[string]v1beta1.Reason{"b0": v1beta1.ReasonTooYoung},
		},
		"nobody returns to a subset in which pods waited a moment ago": {
			quotas: []int{2, -1}, pods: many("b", 1, hour), since: []time.Time{start.Add(-time.Minute)},
			cluster:  rooms{places: map[int]int{0: 1}},
			wantHeld: map[string]v1beta1.Reason{"b0": v1beta1.ReasonSettling},
		},
		"nobody returns to a subset in which pods wait": {
			quotas: []int{2, -1}, pods: many("b", 1, hour), since: []time.Time{{}},
			cluster:  rooms{places: map[int]int{0: 1}},
			wantHeld: map[string]v1beta1.Reason{"b0": v1beta1.ReasonSettling},
		},
		"nobody returns to a subset that others left a moment ago": {
			quotas: []int{2, -1}, pods: many("b", 1, hour),
			moves:    []v1beta1.Move{{From: "a", To: "b", Round: 1, Time: metav1.NewTime(start.Add(-9 * time.Minute))}},
			cluster:  rooms{places: map[int]int{0: 1}},
			wantHeld: map[string]v1beta1.Reason{"b0": v1beta1.ReasonSettling},
		},
		"nobody returns to a subset that is skipped for an hour": {
			strategy: &skipping, quotas: []int{2, -1}, pods: many("b", 1, hour),
			moves:    []v1beta1.Move{{From: "a", To: "b", Round: 1, Time: metav1.NewTime(start.Add(-20 * time.Minute)), Reason: string(v1beta1.ReasonUnschedulableTooLong)}},
			cluster:  rooms{places: map[int]int{0: 1}},
			wantHeld: map[string]v1beta1.Reason{"b0": v1beta1.ReasonSettling},
		},
		"pods return at once if others left because the quota was lowered": {
			strategy: &skipping, quotas: []int{2, -1}, pods: many("b", 1, hour),
			moves:   []v1beta1.Move{{From: "a", To: "b", Round: 1, Time: metav1.NewTime(start.Add(-20 * time.Minute)), Reason: string(v1beta1.ReasonOverQuota)}},
			cluster: rooms{places: map[int]int{0: 1}},
			want:    []string{"b0 1>0 EarlierSubsetHasRoom"},
		},
		"nobody returns in a cycle in which others left": {
			quotas: []int{2, -1}, pods: many("b", 1, hour), moved: Away,
			cluster:  rooms{places: map[int]int{0: 1}},
			wantHeld: map[string]v1beta1.Reason{"all": v1beta1.ReasonOppositeMove},
		},
		"nobody returns while a pod is missing": {
			quotas: []int{2, -1}, pods: many("b", 2, hour), replicas: 3,
			cluster:  rooms{places: map[int]int{0: 1}},
			wantHeld: map[string]v1beta1.Reason{"all": v1beta1.ReasonNotAtRest},
		},
		"nobody returns while a pod waits": {
			quotas: []int{2, -1}, pods: append(many("b", 1, hour), waiting("w", "", time.Hour)),
			cluster:  rooms{places: map[int]int{0: 1}},
			wantHeld: map[string]v1beta1.Reason{"all": v1beta1.ReasonNotAtRest},
		},
		"nobody returns right after others": {
			quotas: []int{2, -1}, pods: many("b", 2, hour),
			moves:    []v1beta1.Move{{From: "b", To: "a", Round: 1, Remaining: 2, Time: metav1.NewTime(start.Add(-30 * time.Second))}},
			cluster:  rooms{places: map[int]int{0: 1}},
			wantHeld: map[string]v1beta1.Reason{"all": v1beta1.ReasonCoolingDown},
		},
		"the next returns when the last has stayed": {
			quotas: []int{2, -1}, pods: append(many("a", 1, time.Minute), many("b", 1, hour)...),
			moves:   []v1beta1.Move{{From: "b", To: "a", Round: 1, Remaining: 1, Time: metav1.NewTime(start.Add(-2 * time.Minute))}},
			cluster: rooms{places: map[int]int{0: 1}},
			want:    []string{"b0 1>0 EarlierSubsetHasRoom"},
		},
		"one that came back waits": {
			quotas: []int{2, -1}, pods: many("b", 2, hour),
			moves:    []v1beta1.Move{{From: "b", To: "a", Round: 3, Remaining: 1, Time: metav1.NewTime(start.Add(-19 * time.Minute))}},
			cluster:  rooms{places: map[int]int{0: 1}},
			wantHeld: map[string]v1beta1.Reason{"b0": v1beta1.ReasonBackingOff, "b1": v1beta1.ReasonBackingOff},
		},
		"and returns when its time is over": {
			quotas: []int{2, -1}, pods: many("b", 2, hour),
			moves:    []v1beta1.Move{{From: "b", To: "a", Round: 3, Remaining: 1, Time: metav1.NewTime(start.Add(-20 * time.Minute))}},
			cluster:  rooms{places: map[int]int{0: 1}},
			want:     []string{"b0 1>0 EarlierSubsetHasRoom"},
			wantHeld: map[string]v1beta1.Reason{"b1": v1beta1.ReasonLimitReached},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			limits := returnLimits
			if tc.atMost != 0 {
				limits.AtMost = intstr.FromInt32(tc.atMost)
			}
			if tc.strategy == nil {
				tc.strategy = &adaptive
			}
			if tc.replicas == 0 {
				tc.replicas = int32(len(tc.pods))
			}
			f := &Facts{Name: "web", Policy: policy(t, *tc.strategy, tc.quotas...), Replicas: tc.replicas, Pods: tc.pods, Moves: tc.moves,
				SchedulableSince: tc.since, Moved: tc.moved, Now: start}
			check(t, Return(f, limits, &tc.cluster), tc.want, tc.wantHeld)
		})
	}
}

func TestAMoveSaysWhatRoomWasFound(t *testing.T) {
	withoutRoom := trimLimits
	withoutRoom.WithoutRoom = true
	surplus := &Facts{Name: "web", Policy: policy(t, adaptive, 3, -1), Replicas: 4, Pods: many("a", 4, time.Hour), Misplaced: &v1beta1.Misplaced{Pods: 9}, Now: start}
	full := &Facts{Name: "web", Policy: policy(t, v1beta1.ScheduleStrategy{WhenFull: v1beta1.WhenFullWait}, 3, 0), Replicas: 4, Pods: many("a", 4, time.Hour),
		Misplaced: &v1beta1.Misplaced{Pods: 9}, Now: start}
	stuck := &Facts{Name: "web", Policy: policy(t, early, 5, -1), Replicas: 1, Pods: []Pod{waiting("p", "a", time.Minute)}, Now: start}
	for name, tc := range map[string]struct {
		decision Decision
		want     Room
	}{
		"room":              {Trim(surplus, withoutRoom, &rooms{places: map[int]int{1: 1}}), HasRoom},
		"none":              {Trim(surplus, withoutRoom, &rooms{}), NoRoom},
		"nodes, no quota":   {Trim(full, withoutRoom, &rooms{places: map[int]int{subset.None: 1}}), NoRoom},
		"nobody could tell": {Leave(stuck, leaveLimits, &rooms{unknown: true}), RoomUnknown},
	} {
		if d := tc.decision; len(d.Moves) != 1 || d.Moves[0].Room != tc.want {
			t.Errorf("%s: got %+v", name, d.Moves)
		}
	}
}

func TestRecordAndRetract(t *testing.T) {
	p := policy(t, adaptive, 2, 2, -1)
	before := []v1beta1.Move{
		{From: "b", To: "a", Round: 2, Remaining: 1, Time: metav1.NewTime(start.Add(-time.Hour))},
		{From: "gone", To: "a", Round: 2, Time: metav1.NewTime(start.Add(-time.Hour))},
		{From: "c", To: "b", Round: 2, Time: metav1.NewTime(start.Add(-3 * forgetAfter))},
	}
	f := &Facts{Name: "web", Policy: p, Replicas: 4, Pods: append(many("b", 2, time.Hour), many("c", 2, time.Hour)...), Moves: before, Now: start}
	limits := returnLimits
	limits.AtMost = intstr.FromInt32(3)
	d := Return(f, limits, &rooms{places: map[int]int{0: 2, 1: 2}})
	got := f.Record(&d)
	want := []v1beta1.Move{
		{From: "b", To: "a", Round: 2, Remaining: 1, Time: metav1.NewTime(start.Add(-time.Hour))},
		{From: "c", To: "a", Reason: string(v1beta1.ReasonEarlierSubsetHasRoom), Round: 1, Remaining: 0, Time: metav1.NewTime(start), InFlight: []v1beta1.PodInFlight{
			{UID: "c0", Name: "c0", Time: metav1.NewTime(start)}, {UID: "c1", Name: "c1", Time: metav1.NewTime(start)}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("the record (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]v1beta1.Move{want[0], {From: "c", To: "a", Reason: string(v1beta1.ReasonEarlierSubsetHasRoom), Round: 1, Remaining: 1, Time: metav1.NewTime(start), InFlight: want[1].InFlight[1:]}},
		f.Retract(got, d.Moves[:1])); diff != "" {
		t.Errorf("with one that was refused (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want[:1], f.Retract(got, d.Moves)); diff != "" {
		t.Errorf("with all refused (-want +got):\n%s", diff)
	}
}

// Of two pods that were to leave a subset on different ways, one is refused by a budget. It did not come back: it never
// left.
func TestARefusedPodDoesNotCountAsComeBackOnAnotherWay(t *testing.T) {
	f := &Facts{Name: "web", Policy: policy(t, adaptive, 1, 1, -1), Replicas: 2, Pods: many("c", 2, time.Hour), Now: start}
	limits := returnLimits
	limits.AtMost = intstr.FromInt32(2)
	d := Return(f, limits, &rooms{places: map[int]int{0: 1, 1: 1}})
	check(t, d, []string{"c0 2>0 EarlierSubsetHasRoom", "c1 2>1 EarlierSubsetHasRoom"}, nil)
	f.Moves = f.Retract(f.Record(&d), d.Moves[1:])
	f.Pods, f.Now = append(many("c", 2, time.Hour)[1:], bound("a0", "a", 0)), start.Add(2*time.Minute)
	if len(f.Moves) != 1 || f.Moves[0].To != "a" || returned(&f.Moves[0], f.present()[:1]) {
		t.Errorf("the way that one went is remembered as %+v", f.Moves)
	}
}

func TestRoundsDoubleTheWait(t *testing.T) {
	pace := Pace{Base: time.Minute, Longest: 10 * time.Minute}
	for round, want := range map[int32]time.Duration{0: time.Minute, 1: time.Minute, 2: 2 * time.Minute, 4: 8 * time.Minute, 5: 10 * time.Minute, 1 << 30: 10 * time.Minute} {
		if got := pace.wait(round); got != want {
			t.Errorf("round %d waits %s, want %s", round, got, want)
		}
	}
}

// Every pod that comes home is made anew in the later subset at once. The descheduler looks every two minutes and a
// second, so that each wait is over for a while when it does.
func TestPodsThatAlwaysComeBackWaitTheLongestFromThenOn(t *testing.T) {
	const look = 2*time.Minute + time.Second
	limits := ReturnLimits{AtMost: intstr.FromInt32(1), Pace: Pace{Base: 5 * time.Minute, Longest: time.Hour}}
	f := &Facts{Name: "web", Policy: policy(t, adaptive, 5, -1), Replicas: 5, Pods: many("b", 5, time.Hour)}
	var waits []time.Duration
	for cycle := range 720 {
		f.Now = start.Add(time.Duration(cycle) * look)
		d := Return(f, limits, &rooms{places: map[int]int{0: 9}})
		if len(d.Moves) > 0 && cycle > 0 {
			waits = append(waits, f.Now.Sub(f.Moves[0].Time.Time).Truncate(5*time.Minute))
		}
		f.Moves = f.Record(&d)
		for _, m := range d.Moves {
			*m.Pod = bound(fmt.Sprint("again-", cycle), "b", start.Sub(f.Now))
		}
	}
	want := []time.Duration{5 * time.Minute, 10 * time.Minute, 20 * time.Minute, 40 * time.Minute}
	for len(want) < len(waits) {
		want = append(want, time.Hour)
	}
	if diff := cmp.Diff(want, waits); diff != "" || len(waits) < 20 {
		t.Errorf("time between moves (-want +got):\n%s", diff)
	}
}

func TestRoundsBeginAnewAfterAQuietTime(t *testing.T) {
	pace := Pace{Base: time.Minute, Longest: time.Hour}
	for ago, want := range map[time.Duration]int32{time.Hour + time.Second: 8, 2 * time.Hour: 8, 2*time.Hour + time.Second: 1} {
		f := &Facts{Name: "web", Policy: policy(t, adaptive, 5, -1), Replicas: 2, Pods: many("b", 2, 5*time.Hour), Now: start,
			Moves: []v1beta1.Move{{From: "b", To: "a", Round: 7, Remaining: 1, Time: metav1.NewTime(start.Add(-ago))}}}
		d := Return(f, ReturnLimits{AtMost: intstr.FromInt32(1), Pace: pace}, &rooms{places: map[int]int{0: 1}})
		if got := f.Record(&d); len(d.Moves) != 1 || got[0].Round != want {
			t.Errorf("%s after the last: %v, and then %+v; want round %d", ago, names(d), got, want)
		}
	}
}

func TestAdmissionClosesWhatPodsLeft(t *testing.T) {
	p := policy(t, early, 5, 5, -1)
	ago := func(d time.Duration) metav1.Time { return metav1.NewTime(start.Add(-d)) }
	got := ClosedBy([]v1beta1.Move{
		{From: "a", To: "b", Reason: string(v1beta1.ReasonUnschedulableTooLong), Time: ago(299 * time.Second)},
		{From: "b", To: "c", Reason: string(v1beta1.ReasonUnschedulableTooLong), Time: ago(300 * time.Second)},
		{From: "c", To: "a", Reason: string(v1beta1.ReasonUnschedulableTooLong), Time: ago(time.Second)},
		{From: "", To: "a", Time: ago(time.Second)},
		{From: "removed", To: "a", Time: ago(time.Second)},
	}, nil, p, start)
	if want := subset.Mask(0).With(0); got != want {
		t.Errorf("closed %b, want %b", got, want)
	}
	for reason, want := range map[v1beta1.Reason]bool{v1beta1.ReasonUnschedulableTooLong: true, v1beta1.ReasonOverQuota: false,
		v1beta1.ReasonNodeOutsideSubset: false, "": true} {
		if closed := ClosedBy([]v1beta1.Move{{From: "b", To: "c", Reason: string(reason), Time: ago(time.Second)}}, nil, p, start); closed.Has(1) != want {
			t.Errorf("after moves with reason %q: closed %b", reason, closed)
		}
	}
}

// waitedIn is what the status says of a subset in which pods have waited for so long.
func waitedIn(name string, ago time.Duration) []v1beta1.SubsetStatus {
	return []v1beta1.SubsetStatus{{Name: name, Conditions: []metav1.Condition{
		{Type: v1beta1.ConditionSchedulable, Status: metav1.ConditionFalse, LastTransitionTime: metav1.NewTime(start.Add(-ago))}}}}
}

func TestAdmissionClosesWherePodsWait(t *testing.T) {
	for ago, want := range map[time.Duration]bool{30 * time.Second: false, 31 * time.Second: true, 329 * time.Second: true, 330 * time.Second: false} {
		for _, strategy := range []v1beta1.ScheduleStrategy{early, {Binding: v1beta1.EarlyBinding}} {
			p := policy(t, strategy, 5, 5, -1)
			want := want && p.Strategy == v1beta1.AdaptiveScheduleStrategy
			if closed := ClosedBy(nil, waitedIn("b", ago), p, start); closed.Has(1) != want || closed.Has(0) {
				t.Errorf("strategy %s, for %s: closed %b", p.Strategy, ago, closed)
			}
		}
	}
	open := waitedIn("b", time.Minute)
	open[0].Conditions[0].Status = metav1.ConditionTrue
	if closed := ClosedBy(nil, append(open, waitedIn("removed", time.Minute)...), policy(t, early, 5, 5, -1), start); closed != 0 {
		t.Errorf("closed %b", closed)
	}
}

// Of a subset that is above its quota nobody knows that it has no nodes, so that others may go there.
func TestASubsetIsNotClosedBecauseItWasAboveItsQuota(t *testing.T) {
	p := policy(t, early, 2, 5, -1)
	f := &Facts{Name: "web", Policy: p, Replicas: 3, Pods: many("a", 3, time.Hour), Misplaced: &v1beta1.Misplaced{Pods: 9}, Now: start}
	trim := trimLimits
	trim.MaxUnavailable = intstr.FromInt(3)
	d := Trim(f, trim, &rooms{places: map[int]int{1: 1}})
	check(t, d, []string{"a2 0>1 OverQuota"}, nil)
	if closed := ClosedBy(f.Record(&d), nil, p, start); closed != 0 {
		t.Errorf("closed %b", closed)
	}
	f.Pods = []Pod{waiting("w", "b", time.Minute)}
	f.Moves = f.Record(&d)
	d = Leave(f, leaveLimits, &rooms{places: map[int]int{0: 1}})
	check(t, d, []string{"w 1>0 UnschedulableTooLong"}, nil)
	if closed := ClosedBy(f.Record(&d), nil, p, start); closed != 0 { // they went to an earlier one
		t.Errorf("closed %b", closed)
	}
}

// A pod whose node was relabelled goes past a subset that others left for want of a node. Admission goes past it for
// the next ones, too.
func TestASubsetStaysClosedIfOthersGoTheSameWay(t *testing.T) {
	p := policy(t, early, 5, -1)
	x := bound("x", "a", time.Hour)
	x.Node = node("z")
	f := &Facts{Name: "web", Policy: p, Replicas: 1, Pods: []Pod{x}, Misplaced: &v1beta1.Misplaced{Pods: 9}, Now: start,
		Moves: []v1beta1.Move{{From: "a", To: "b", Reason: string(v1beta1.ReasonUnschedulableTooLong), Round: 1, Remaining: 1, Time: metav1.NewTime(start.Add(-time.Minute))}}}
	d := Trim(f, trimLimits, &rooms{places: map[int]int{1: 1}})
	check(t, d, []string{"x 0>1 NodeOutsideSubset"}, nil)
	if closed := ClosedBy(f.Record(&d), nil, p, start); !closed.Has(0) {
		t.Errorf("closed %b", closed)
	}
}

func TestAReplacementThatDoesNotExistYetHasItsSlot(t *testing.T) {
	f := &Facts{Name: "web", Policy: policy(t, early, 3, 1, 1), Replicas: 3, Pods: []Pod{waiting("p", "a", time.Minute), waiting("q", "a", time.Minute)}, Now: start,
		Moves: []v1beta1.Move{{From: "a", To: "b", Round: 1, Remaining: 2, Reason: string(v1beta1.ReasonUnschedulableTooLong), Time: metav1.NewTime(start.Add(-time.Second)),
			InFlight: []v1beta1.PodInFlight{{UID: "gone", Name: "gone", Time: metav1.NewTime(start.Add(-time.Second))}}}}}
	leave := func() Decision { return Leave(f, leaveLimits, &rooms{places: map[int]int{1: 1, 2: 1}}) }
	d := leave()
	check(t, d, []string{"p 0>2 UnschedulableTooLong"}, map[string]v1beta1.Reason{"q": v1beta1.ReasonNoRoom})
	if recorded := f.Record(&d); len(recorded[0].InFlight) != 1 {
		t.Errorf("the next cycle does not know of the pod that is gone: %+v", recorded)
	}
	f.Pods = append(f.Pods, waiting("new", "b", time.Second))
	d = leave()
	if recorded := f.Record(&d); len(recorded[0].InFlight) != 0 {
		t.Errorf("the pod that is gone has been replaced, and is recorded as %+v", recorded[0].InFlight)
	}
	f.Pods, f.Now = f.Pods[:2], start.Add(flightTime)
	check(t, leave(), []string{"p 0>1 UnschedulableTooLong", "q 0>2 UnschedulableTooLong"}, nil) // nobody creates it
}

// sentTo is where admission sends the pods made in place of those that are moved.
func sentTo(f *Facts, d *Decision) (to []int) {
	plan, closed := f.Policy.Plan(f.Replicas), ClosedBy(f.Record(d), f.Subsets, f.Policy, f.Now)
	f.Pods, f.Replicas = slices.Clone(f.Pods), f.Replicas-int32(len(d.Moves)) // admission sees one pod after the other
	for i := range f.Pods {
		if slices.ContainsFunc(d.Moves, func(m Move) bool { return m.Pod.UID == f.Pods[i].UID }) {
			f.Pods[i].Active = false
		}
	}
	places := f.placesOf(f.present())
	for range d.Moves {
		in := f.Policy.PickEarly(&plan, places.tally.Kept(""), subset.Candidate{Closed: closed}).Subset
		places.tally.Add("", in)
		to = append(to, in)
	}
	slices.Sort(to)
	return to
}

func TestEarlyBoundPodsAreMovedToWhereAdmissionSendsThem(t *testing.T) {
	settled := &v1beta1.Misplaced{Pods: 99, Since: metav1.NewTime(start.Add(-time.Hour))}
	relabelled := bound("x", "a", time.Hour)
	relabelled.Node = node("z")
	trim := func(f *Facts, c Cluster) Decision { return Trim(f, trimLimits, c) }
	withoutRoom := func(f *Facts, c Cluster) Decision {
		limits := trimLimits
		limits.WithoutRoom = true
		return Trim(f, limits, c)
	}
	full := early
	full.WhenFull = v1beta1.WhenFullWait
	tests := map[string]struct {
		decide   func(*Facts, Cluster) Decision
		strategy v1beta1.ScheduleStrategy
		quotas   []int
		pods     []Pod
		subsets  []v1beta1.SubsetStatus
		room     int
		want     []string
		wantHeld map[string]v1beta1.Reason
	}{
		"a running pod of a relabelled node stays if only a later subset has room": {
			decide: trim, strategy: early, quotas: []int{5, -1}, pods: append(many("a", 4, time.Hour), relabelled), room: 1,
			wantHeld: map[string]v1beta1.Reason{"x": v1beta1.ReasonNoRoom},
		},
		"it goes there if admission passes over the subset before": {
			decide: trim, strategy: early, quotas: []int{5, -1}, pods: append(many("a", 4, time.Hour), relabelled), room: 1, subsets: waitedIn("a", time.Minute),
			want: []string{"x 0>1 NodeOutsideSubset"},
		},
		"it goes to a closed subset if no other has quota": {
			decide: trim, strategy: early, quotas: []int{5}, pods: append(many("a", 4, time.Hour), relabelled), room: 0, subsets: waitedIn("a", time.Minute),
			want: []string{"x 0>0 NodeOutsideSubset"},
		},
		"a running pod above the quota stays if only a later subset has room": {
			decide: trim, strategy: early, quotas: []int{2, 2, -1}, pods: many("a", 3, time.Hour), room: 2,
			wantHeld: map[string]v1beta1.Reason{"a2": v1beta1.ReasonNoRoom},
		},
		"it goes to the subset after its own all the same if the quota counts for more than the pods": {
			decide: withoutRoom, strategy: early, quotas: []int{2, 2, -1}, pods: many("a", 3, time.Hour), room: 2,
			want: []string{"a2 0>1 OverQuota"},
		},
		"or to the first one, where it waits, if all are full": {
			decide: withoutRoom, strategy: full, quotas: []int{2, 0}, pods: many("a", 3, time.Hour), room: 1,
			want: []string{"a2 0>0 OverQuota"},
		},
		"a running pod comes home to the first subset with quota only": {
			decide:   func(f *Facts, c Cluster) Decision { return Return(f, returnLimits, c) },
			strategy: early, quotas: []int{2, 2, -1}, pods: many("c", 1, time.Hour), room: 1,
			wantHeld: map[string]v1beta1.Reason{"c0": v1beta1.ReasonNoRoom},
		},
		"a pod that waits leaves for the next subset with quota, though only one after that has room": {
			decide:   func(f *Facts, c Cluster) Decision { return Leave(f, leaveLimits, c) },
			strategy: early, quotas: []int{2, 2, -1}, pods: []Pod{waiting("p", "a", time.Minute)}, room: 2,
			want: []string{"p 0>1 UnschedulableTooLong"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			f := &Facts{Name: "web", Policy: policy(t, tc.strategy, tc.quotas...), Replicas: int32(len(tc.pods)), Pods: tc.pods, Subsets: tc.subsets, Misplaced: settled, Now: start}
			d := tc.decide(f, &rooms{places: map[int]int{tc.room: 1}})
			check(t, d, tc.want, tc.wantHeld)
			for i, to := range sentTo(f, &d) {
				if d.Moves[i].To != to {
					t.Errorf("moves %v, and admission picks %d", names(d), to)
				}
			}
		})
	}
}

// random facts, in which pods, quotas, memory and room are anything.
func random(tb testing.TB, r *rand.Rand) *Facts {
	tb.Helper()
	strategy := []v1beta1.ScheduleStrategy{adaptive, early, {}, {WhenFull: v1beta1.WhenFullWait}, {QuotaScope: v1beta1.WorkloadQuotaScope}}[r.IntN(5)]
	subsets := 1 + r.IntN(4)
	quotas := make([]int, subsets)
	for i := range quotas {
		quotas[i] = r.IntN(6) - 1
	}
	f := &Facts{Name: "web", Policy: policy(tb, strategy, quotas...), Now: start, Paused: r.IntN(8) == 0, Moved: Direction(r.IntN(4) * r.IntN(2))}
	for i := range r.IntN(14) {
		name, in, age := fmt.Sprintf("p%d", i), letter(r.IntN(subsets)), time.Duration(r.IntN(7200))*time.Second
		pod := bound(name, in, age)
		switch r.IntN(8) {
		case 0:
			pod = waiting(name, in, age)
		case 1:
			pod.Record.Subset, pod.Node = "", node("elsewhere")
		case 2:
			pod.Node = node(letter(r.IntN(subsets)))
		case 3:
			pod.Record = nil
		case 4:
			pod.Active = false
		}
		pod.Ready = pod.NodeName != "" && r.IntN(10) > 0
		pod.Cost = ptr.To(int32(100 * r.IntN(3)))
		f.Pods = append(f.Pods, pod)
	}
	f.Replicas = int32(len(f.Pods)) - int32(r.IntN(2)*r.IntN(3))
	for range r.IntN(3) {
		m := v1beta1.Move{From: letter(r.IntN(subsets)), To: letter(r.IntN(subsets)), Round: 1 + int32(r.IntN(4)), Remaining: int32(r.IntN(5)),
			Time: metav1.NewTime(start.Add(-time.Duration(r.IntN(3600)) * time.Second))}
		if len(f.Pods) > 0 && r.IntN(2) == 0 {
			m.InFlight = []v1beta1.PodInFlight{{UID: f.Pods[r.IntN(len(f.Pods))].UID, Time: metav1.NewTime(start.Add(-time.Duration(r.IntN(180)) * time.Second))}}
		}
		if find(f.Moves, m.From, m.To) < 0 {
			f.Moves = append(f.Moves, m)
		}
	}
	if r.IntN(3) == 0 {
		waits := r.IntN(subsets)
		f.Subsets, f.SchedulableSince = waitedIn(letter(waits), time.Duration(r.IntN(600))*time.Second), make([]time.Time, subsets)
		for i := range f.SchedulableSince {
			if i != waits {
				f.SchedulableSince[i] = start.Add(-time.Hour)
			}
		}
	}
	if r.IntN(2) == 0 {
		f.Misplaced = &v1beta1.Misplaced{Pods: 20, Since: metav1.NewTime(start.Add(-time.Hour))}
	}
	return f
}

func randomRooms(r *rand.Rand) func() *rooms {
	places, spare, seed := map[int]int{}, r.IntN(5), r.IntN(3) == 0
	for i := -1; i < 4; i++ {
		places[i] = r.IntN(4)
	}
	return func() *rooms {
		own := map[int]int{}
		for k, v := range places {
			own[k] = v
		}
		return &rooms{places: own, spare: ptr.To(spare), unknown: seed}
	}
}

func eachRandom(t *testing.T, do func(t *testing.T, seed uint64, r *rand.Rand, f *Facts, cluster func() *rooms)) {
	t.Helper()
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 7))
		do(t, seed, r, random(t, r), randomRooms(r))
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// strategies decide with generous limits, so that much is moved.
func strategies() map[string]func(*Facts, Cluster) Decision {
	leave, trim, home := leaveLimits, trimLimits, returnLimits
	trim.MaxUnavailable = intstr.FromInt(4)
	home.AtMost, home.Residence = intstr.FromInt32(5), time.Minute
	return map[string]func(*Facts, Cluster) Decision{
		"leave":  func(f *Facts, c Cluster) Decision { return Leave(f, leave, c) },
		"trim":   func(f *Facts, c Cluster) Decision { return Trim(f, trim, c) },
		"return": func(f *Facts, c Cluster) Decision { return Return(f, home, c) },
	}
}

func TestWhateverIsMovedMayBeMoved(t *testing.T) {
	made := map[string]int{}
	eachRandom(t, func(t *testing.T, _ uint64, _ *rand.Rand, f *Facts, cluster func() *rooms) {
		t.Helper()
		gone := f.gone()
		for name, decide := range strategies() {
			c := cluster()
			spare, room := *c.spare, 0
			for _, n := range c.places {
				room += n
			}
			d := decide(f, c)
			made[name] += len(d.Moves)
			seen := map[types.UID]bool{}
			for _, m := range d.Moves {
				_, flies := gone[m.Pod.UID]
				switch {
				case !m.Pod.Active, flies, seen[m.Pod.UID]:
					t.Errorf("%s moves pod %s, which is gone", name, m.Pod.Name)
				case f.Paused:
					t.Errorf("%s moves pods of a paused spread", name)
				case name == "return" && (f.Moved&Away != 0 || !earlier(m.To, m.From)):
					t.Errorf("return moves from %d to %d, after %b", m.From, m.To, f.Moved)
				case name != "return" && f.Moved&Home != 0:
					t.Errorf("%s moves after a return", name)
				}
				seen[m.Pod.UID] = true
			}
			if len(d.Moves) > spare {
				t.Errorf("%s moves %d pods, and budgets spare %d", name, len(d.Moves), spare)
			}
			if name != "leave" && len(d.Moves) > room {
				t.Errorf("%s moves %d pods into %d places", name, len(d.Moves), room)
			}
		}
	})
	for name, n := range made {
		if n < 50 {
			t.Errorf("%s moved %d pods in all: the random facts prove nothing", name, n)
		}
	}
}

func TestNoSubsetIsFilledAboveItsQuota(t *testing.T) {
	eachRandom(t, func(t *testing.T, _ uint64, _ *rand.Rand, f *Facts, cluster func() *rooms) {
		t.Helper()
		for name, decide := range strategies() {
			d := decide(f, cluster())
			places := f.placesOf(f.present())
			over := map[string]map[int]bool{}
			for _, m := range d.Moves {
				scope := f.Policy.ScopeOf(m.Pod.Revision)
				places.tally.Remove(scope, m.From)
			}
			for _, m := range d.Moves {
				if m.To == subset.None {
					continue
				}
				scope := f.Policy.ScopeOf(m.Pod.Revision)
				places.tally.Add(scope, m.To)
				if quota := places.plan.Quota[m.To]; quota != subset.NoLimit && places.tally.Kept(scope).At(m.To) > quota && !over[scope][m.To] {
					t.Errorf("%s fills subset %d above %d", name, m.To, quota)
				}
			}
		}
	})
}

func TestRunningEarlyBoundPodsFindTheRoomThatTheyWereMovedFor(t *testing.T) {
	made := 0
	eachRandom(t, func(t *testing.T, _ uint64, _ *rand.Rand, f *Facts, cluster func() *rooms) {
		t.Helper()
		f.Policy = policy(t, early, quotasOf(f.Policy)...)
		for name, decide := range strategies() {
			d, after := decide(f, cluster()), *f
			if name == "leave" || len(d.Moves) == 0 {
				continue
			}
			made += len(d.Moves)
			var to []int
			for _, m := range d.Moves {
				to = append(to, m.To)
			}
			slices.Sort(to)
			if diff := cmp.Diff(to, sentTo(&after, &d)); diff != "" {
				t.Errorf("%s moves %v, and admission sends them elsewhere (-moved +sent):\n%s", name, names(d), diff)
			}
		}
	})
	if made < 50 {
		t.Errorf("moved %d pods in all: the random facts prove nothing", made)
	}
}

func quotasOf(p *subset.Policy) (quotas []int) {
	plan := p.Plan(0) // they are counts
	for _, quota := range plan.Quota {
		quotas = append(quotas, int(quota))
	}
	return quotas
}

func TestTheOrderOfPodsDoesNotMatter(t *testing.T) {
	eachRandom(t, func(t *testing.T, _ uint64, r *rand.Rand, f *Facts, cluster func() *rooms) {
		t.Helper()
		shuffled := *f
		shuffled.Pods = slices.Clone(f.Pods)
		r.Shuffle(len(shuffled.Pods), func(i, j int) { shuffled.Pods[i], shuffled.Pods[j] = shuffled.Pods[j], shuffled.Pods[i] })
		for name, decide := range strategies() {
			if diff := cmp.Diff(names(decide(f, cluster())), names(decide(&shuffled, cluster()))); diff != "" {
				t.Errorf("%s (-before +after shuffling):\n%s", name, diff)
			}
		}
	})
}

// A second descheduler that reads what the first has recorded, and sees the same pods because nothing has happened yet,
// moves none of them again, and no more in all than one would.
func TestWhatIsRecordedIsNotMovedAgain(t *testing.T) {
	eachRandom(t, func(t *testing.T, seed uint64, _ *rand.Rand, f *Facts, cluster func() *rooms) {
		t.Helper()
		for name, decide := range strategies() {
			r := rand.New(rand.NewPCG(seed, 11)) // strategies come in any order
			c := cluster()
			first := decide(f, c)
			if len(first.Moves) == 0 {
				continue
			}
			second := *f
			second.Moves, second.Misplaced = f.Record(&first), first.Misplaced
			for _, m := range decide(&second, c).Moves {
				if slices.ContainsFunc(first.Moves, func(other Move) bool { return other.Pod.UID == m.Pod.UID }) {
					t.Errorf("%s moves pod %s twice", name, m.Pod.Name)
				}
			}
			if name == "return" && len(decide(&second, c).Moves) > 0 {
				t.Error("a second descheduler returns pods at the same time")
			}
			if diff := cmp.Diff(f.Record(&Decision{}), f.Retract(second.Moves, first.Moves)); diff != "" {
				t.Errorf("%s: refused moves leave a trace (-want +got):\n%s", name, diff)
			}
			// A budget refuses some of them.
			went, failed := first, []Move(nil)
			went.Moves = nil
			for _, m := range first.Moves {
				if r.IntN(2) == 0 {
					failed = append(failed, m)
				} else {
					went.Moves = append(went.Moves, m)
				}
			}
			reasonOfThoseThatWent := cmpopts.IgnoreFields(v1beta1.Move{}, "Reason") // one word for several moves
			if diff := cmp.Diff(f.Record(&went), f.Retract(second.Moves, failed), reasonOfThoseThatWent, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s: it is not as if %d refused moves had not been decided (-want +got):\n%s", name, len(failed), diff)
			}
		}
	})
}

// Case 37.
func TestTheOrderOfCandidatesIsStrictAndWeak(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var pods []Pod
	for range 12 {
		pods = append(pods, random(t, r).Pods...)
	}
	for i := range pods {
		pods[i].UID = types.UID(fmt.Sprint(i))
	}
	for i := range pods {
		for j := range pods {
			a, b := &pods[i], &pods[j]
			if ab, ba := before(a, b), before(b, a); i == j && ab != 0 || i != j && (ab == 0 || (ab < 0) == (ba < 0)) {
				t.Fatalf("before(%d, %d) is %d, and the other way %d", i, j, ab, ba)
			}
			for k := range pods {
				if before(a, b) < 0 && before(b, &pods[k]) < 0 && before(a, &pods[k]) >= 0 {
					t.Fatalf("%d < %d < %d, and not %d < %d", i, j, k, i, k)
				}
			}
		}
	}
}

// Case 26, in the model: the preferred subset takes pods and loses them again, at random, for a day, with a look every
// two minutes and a second, so that no wait is over just then. However it does that, the number of moves in any two
// hours is bounded by the rounds that fit into them, however many go in a round.
func TestAFlappingSubsetIsLeftAlone(t *testing.T) {
	const look = 2*time.Minute + time.Second
	fast := DefaultReturnLimits()
	fast.Stable, fast.Residence = 0, 0 // which only make it slower
	for replicas, limits := range map[int]ReturnLimits{5: {Cooldown: time.Minute, AtMost: intstr.FromInt32(1), Pace: fast.Pace}, 40: fast} {
		for seed := range uint64(50) {
			r := rand.New(rand.NewPCG(seed, 3))
			f := &Facts{Name: "web", Policy: policy(t, adaptive, replicas, -1), Replicas: int32(replicas), Pods: many("b", replicas, time.Hour), Now: start}
			var moved []time.Time
			for cycle := range 720 {
				f.Now = start.Add(time.Duration(cycle) * look)
				if r.IntN(2) == 0 { // the preferred subset dies: its pods are made anew in the other one
					for i := range f.Pods {
						if f.Pods[i].Record.Subset == "a" {
							f.Pods[i] = bound(fmt.Sprintf("%d-%d", cycle, i), "b", start.Sub(f.Now))
						}
					}
				}
				d := Return(f, limits, &rooms{places: map[int]int{0: 99}})
				f.Moves = f.Record(&d)
				for i, m := range d.Moves {
					moved = append(moved, f.Now)
					index := slices.IndexFunc(f.Pods, func(p Pod) bool { return p.UID == m.Pod.UID })
					f.Pods[index] = bound(fmt.Sprintf("%d-home-%d", cycle, i), "a", start.Sub(f.Now))
				}
			}
			for i := range moved {
				in := 0
				for j := i; j < len(moved) && moved[j].Sub(moved[i]) < 2*time.Hour; j++ {
					in++
				}
				// 5 + 10 + 20 + 40 minutes are waited for between rounds; in each round, all may go home before the
				// next death.
				if in > 5*replicas {
					t.Fatalf("%d replicas, seed %d: %d moves within two hours", replicas, seed, in)
				}
			}
			if len(moved) < 3 || len(moved) > 12*replicas {
				t.Errorf("%d replicas, seed %d: %d moves in a day", replicas, seed, len(moved))
			}
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// With the default limits 240 pods are home after an hour and a half, although one is never ready, and after three
// hours if pods wait for a node of the subset once in each hour. Never are more than a tenth away.
func TestComingHomeIsFast(t *testing.T) {
	const replicas, look = 240, 2 * time.Minute
	for hourly, most := range map[bool]time.Duration{false: 90 * time.Minute, true: 3 * time.Hour} {
		f := &Facts{Name: "web", Policy: policy(t, adaptive, replicas, -1), Replicas: replicas, Pods: many("b", replicas, time.Hour)}
		f.Pods[replicas/2].Ready = false
		for home := 0; home < replicas; {
			f.Now = later(f.Now, start).Add(look)
			for i := range f.Pods { // those of the previous cycle are ready by now, but for the one that never is
				f.Pods[i].Ready = f.Pods[i].Ready || f.Pods[i].Record.Subset == "a" && f.Pods[i].Name != "home-0"
			}
			if hourly {
				f.SchedulableSince = []time.Time{f.Now.Truncate(time.Hour), {}}
			}
			d := Return(f, DefaultReturnLimits(), &rooms{places: map[int]int{0: replicas}})
			f.Moves = f.Record(&d)
			for _, m := range d.Moves {
				index := slices.IndexFunc(f.Pods, func(p Pod) bool { return p.UID == m.Pod.UID })
				f.Pods[index] = bound(fmt.Sprint("home-", home), "a", start.Sub(f.Now))
				f.Pods[index].Ready = false
				home++
			}
			if away := replicas - int(ready(f.present())); away > replicas/10+1 {
				t.Fatalf("%d pods are away", away)
			}
			if f.Now.Sub(start) > most {
				t.Fatalf("hourly: %t: %d of %d are home after %s", hourly, home, replicas, most)
			}
		}
		t.Logf("hourly: %t: all are home after %s", hourly, f.Now.Sub(start))
	}
}

func TestSinceWhenASubsetIsSchedulable(t *testing.T) {
	p := policy(t, adaptive, 2, -1)
	spread := &v1beta1.WorkloadSpread{ObjectMeta: metav1.ObjectMeta{Name: "web", CreationTimestamp: metav1.NewTime(start.Add(-time.Hour))}}
	say := func(status metav1.ConditionStatus) {
		spread.Status.SubsetStatuses = []v1beta1.SubsetStatus{{Name: "b", Conditions: []metav1.Condition{
			{Type: v1beta1.ConditionSchedulable, Status: status, LastTransitionTime: metav1.NewTime(start)}}}}
	}
	created := spread.CreationTimestamp.Time
	say(metav1.ConditionTrue)
	if diff := cmp.Diff([]time.Time{created, start}, FactsOf(spread, p, start).SchedulableSince); diff != "" {
		t.Errorf("schedulable (-want +got):\n%s", diff)
	}
	say(metav1.ConditionFalse)
	if diff := cmp.Diff([]time.Time{created, {}}, FactsOf(spread, p, start).SchedulableSince); diff != "" {
		t.Errorf("not schedulable (-want +got):\n%s", diff)
	}
}

// Strategies decide one after the other on the same look at the cluster. What one of them has announced, the next one
// reckons with.
func TestASlotIsNotGivenTwiceInOneCycle(t *testing.T) {
	f := &Facts{Name: "web", Policy: policy(t, early, 1, 1, 1), Replicas: 3, Now: start, Misplaced: &v1beta1.Misplaced{Pods: 9},
		Pods: append(many("c", 2, time.Hour), waiting("p", "a", time.Minute))}
	limits := trimLimits
	limits.MaxUnavailable = intstr.FromString("100%")
	left := Leave(f, leaveLimits, &rooms{places: map[int]int{1: 9}})
	check(t, left, []string{"p 0>1 UnschedulableTooLong"}, nil)
	f.Moves = f.Record(&left)
	check(t, Trim(f, limits, &rooms{places: map[int]int{1: 9}}), nil, map[string]v1beta1.Reason{"c1": v1beta1.ReasonNoRoom})

	// The next cycle sees the replacement itself, and counts it once.
	next := *f
	next.Pods, next.Now = append(many("c", 2, time.Hour), waiting("r", "b", 0)), start.Add(30*time.Second)
	next.Policy = policy(t, early, 1, 2, 1)
	check(t, Trim(&next, limits, &rooms{places: map[int]int{1: 9}}), []string{"c1 2>1 OverQuota"}, nil)

	// If the process ended before the eviction, the pod is still there and may go at any moment.
	restarted := *f
	restarted.Now = start.Add(30 * time.Second)
	check(t, Trim(&restarted, limits, &rooms{places: map[int]int{1: 9}}), nil, map[string]v1beta1.Reason{"c1": v1beta1.ReasonNoRoom})
}

// All strategies of a cycle together fill no subset above its quota, whatever some of them have announced before, now
// or in an earlier cycle.
func TestACycleFillsNoSubsetAboveItsQuota(t *testing.T) {
	together := 0
	eachRandom(t, func(t *testing.T, seed uint64, _ *rand.Rand, f *Facts, _ func() *rooms) {
		t.Helper()
		f.Paused, f.Moved = false, 0
		if seed%2 == 0 {
			f.Policy = policy(t, early, quotasOf(f.Policy)...)
		}
		c, plan := &rooms{places: map[int]int{-1: 9, 0: 9, 1: 9, 2: 9, 3: 9}}, f.Policy.Plan(f.Replicas)
		holds := func() map[string]map[int]int32 { // where each pod, or its replacement, is in the end
			in := map[string]map[int]int32{}
			for i := range f.Pods {
				pod := &f.Pods[i]
				at, _ := f.Policy.SubsetOf(&pod.Pod, f.Name)
				if pod.NodeName == "" {
					at, _ = f.Policy.AdmittedTo(pod.Admitted, f.Name)
				}
				for _, m := range f.Moves {
					if slices.ContainsFunc(m.InFlight, func(in v1beta1.PodInFlight) bool { return in.UID == pod.UID && f.flies(&in) }) {
						at = f.Policy.Index(m.To)
					}
				}
				if scope := f.Policy.ScopeOf(pod.Revision); pod.Active && at != subset.None {
					if in[scope] == nil {
						in[scope] = map[int]int32{}
					}
					in[scope][at]++
				}
			}
			return in
		}
		before, moving := holds(), 0
		for _, name := range []string{"leave", "trim", "return"} {
			d := strategies()[name](f, c)
			if len(d.Moves) > 0 {
				f.Moves = f.Record(&d)
				moving++
			}
		}
		if moving > 1 {
			together++
		}
		for scope, subsets := range holds() {
			for at, n := range subsets {
				if quota := plan.Quota[at]; quota != subset.NoLimit && n > max(quota, before[scope][at]) {
					t.Errorf("seed %d: subset %d gets %d pods; its quota is %d and it had %d", seed, at, n, quota, before[scope][at])
				}
			}
		}
	})
	if together < 20 {
		t.Errorf("in %d cycles several strategies moved pods: the random facts prove nothing", together)
	}
}

// A spread with targetFilter.selector and without replicasPathList divides some pods of its workload, and nobody says
// how many the workload asks for of these. It is at rest when the pods that it has are ready.
func TestASpreadOfAPartOfTheWorkload(t *testing.T) {
	unready := many("b", 1, time.Hour)
	unready[0].Ready = false
	limits := trimLimits
	limits.MaxUnavailable = intstr.FromString("25%")
	trim := func(f *Facts, c Cluster) Decision { return Trim(f, limits, c) }
	home := func(f *Facts, c Cluster) Decision { return Return(f, returnLimits, c) }
	inFlight := func(uid types.UID) []v1beta1.Move {
		return []v1beta1.Move{{From: "b", To: "c", Round: 1, Remaining: 9, Time: metav1.NewTime(start.Add(-90 * time.Second)),
			InFlight: []v1beta1.PodInFlight{{UID: uid, Time: metav1.NewTime(start.Add(-90 * time.Second))}}}}
	}
	for name, tc := range map[string]struct {
		decide   func(*Facts, Cluster) Decision
		pods     []Pod
		moves    []v1beta1.Move
		want     []string
		wantHeld map[string]v1beta1.Reason
	}{
		"a pod returns while all are ready": {decide: home, pods: many("b", 2, time.Hour), want: []string{"b0 1>0 EarlierSubsetHasRoom"},
			wantHeld: map[string]v1beta1.Reason{"b1": v1beta1.ReasonLimitReached}},
		"none returns while one is not": {decide: home, pods: append(many("c", 1, time.Hour), unready...),
			wantHeld: map[string]v1beta1.Reason{"all": v1beta1.ReasonNotAtRest}},
		"none returns while one waits": {decide: home, pods: append(many("c", 1, time.Hour), waiting("w", "", time.Hour)),
			wantHeld: map[string]v1beta1.Reason{"all": v1beta1.ReasonNotAtRest}},
		"none returns while one is being evicted": {decide: home, pods: many("c", 2, time.Hour), moves: inFlight("c1"),
			wantHeld: map[string]v1beta1.Reason{"all": v1beta1.ReasonNotAtRest}},
		"a quarter of its pods may be unavailable, and not of all pods": {decide: trim, pods: many("a", 8, time.Hour), want: []string{"a7 0>1 OverQuota", "a6 0>1 OverQuota"},
			wantHeld: map[string]v1beta1.Reason{"a3": v1beta1.ReasonLimitReached, "a4": v1beta1.ReasonLimitReached, "a5": v1beta1.ReasonLimitReached}},
		"a pod that is being evicted is one of these": {decide: trim, pods: many("a", 8, time.Hour), moves: inFlight("a7"), want: []string{"a6 0>1 OverQuota"},
			wantHeld: map[string]v1beta1.Reason{"a3": v1beta1.ReasonLimitReached, "a4": v1beta1.ReasonLimitReached, "a5": v1beta1.ReasonLimitReached}},
	} {
		t.Run(name, func(t *testing.T) {
			part := policy(t, adaptive, 3, -1, -1)
			part.IsPart = true
			f := &Facts{Name: "web", Policy: part, Replicas: 100, Pods: tc.pods, Moves: tc.moves,
				Misplaced: &v1beta1.Misplaced{Pods: 9}, Now: start}
			check(t, tc.decide(f, &rooms{places: map[int]int{0: 9, 1: 9}}), tc.want, tc.wantHeld)
		})
	}
}

// The only pod of a workload goes home only if a budget covers it, which then decides.
func TestTheOnlyPodStays(t *testing.T) {
	f := &Facts{Name: "web", Policy: policy(t, adaptive, 1, -1), Replicas: 1, Pods: []Pod{bound("only", "b", time.Hour)}, Now: start}
	for _, sole := range []bool{true, false} {
		f.Pods[0].Sole = sole
		d := Return(f, DefaultReturnLimits(), &rooms{places: map[int]int{0: 1}})
		if stays := reasons(d)["only"] == v1beta1.ReasonOnlyPod; stays != sole || len(d.Moves) == 1 == sole {
			t.Errorf("sole %v: moves %v, holds %v", sole, names(d), reasons(d))
		}
	}
}
