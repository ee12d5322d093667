package subset

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/test/testkit/worlds"
)

func TestPlan(t *testing.T) {
	tests := map[string]struct {
		spec     string
		replicas int32
		want     Plan
		targets  []int32
		unplaced int32
	}{
		"the first subset is filled before the second": {
			spec:     `subsets: [{name: normal, maxReplicas: 100}, {name: elastic}]`,
			replicas: 120,
			want:     Plan{Replicas: 120, Quota: []int32{100, NoLimit}}, targets: []int32{100, 20},
		},
		"a subset that is not reached stays empty": {
			spec:     `subsets: [{name: normal, maxReplicas: 100}, {name: elastic}]`,
			replicas: 80,
			want:     Plan{Replicas: 80, Quota: []int32{100, NoLimit}}, targets: []int32{80, 0},
		},
		"percentages divide in proportion": {
			spec:     `subsets: [{name: a, maxReplicas: "20%"}, {name: b, maxReplicas: "20%"}, {name: c, maxReplicas: "60%"}]`,
			replicas: 15,
			want:     Plan{Replicas: 15, Quota: []int32{3, 3, 9}, Min: []int32{0, 0, 0}, Target: []int32{3, 3, 9}}, targets: []int32{3, 3, 9},
		},
		"percentages are shares, and the quotas are rounded up": {
			spec:     `subsets: [{name: a, maxReplicas: "33%"}, {name: b, maxReplicas: "33%"}, {name: c, maxReplicas: "34%"}]`,
			replicas: 10,
			want:     Plan{Replicas: 10, Quota: []int32{4, 4, 4}, Min: []int32{0, 0, 0}, Target: []int32{3, 3, 4}}, targets: []int32{3, 3, 4},
		},
		"percentages before a subset without limit are filled in order": {
			spec:     `subsets: [{name: a, maxReplicas: "33%"}, {name: b, maxReplicas: "33%"}, {name: c}]`,
			replicas: 10,
			want:     Plan{Replicas: 10, Quota: []int32{4, 4, NoLimit}}, targets: []int32{4, 4, 2},
		},
		"minimums come before all else, in order": {
			spec:     `subsets: [{name: a}, {name: b, minReplicas: 3}, {name: c, minReplicas: "20%"}]`,
			replicas: 11,
			want:     Plan{Replicas: 11, Quota: []int32{NoLimit, NoLimit, NoLimit}, Min: []int32{0, 3, 3}, Target: []int32{5, 3, 3}}, targets: []int32{5, 3, 3},
		},
		"minimums that do not fit are filled in order": {
			spec:     `subsets: [{name: a, minReplicas: 3}, {name: b, minReplicas: 3}]`,
			replicas: 4,
			want:     Plan{Replicas: 4, Quota: []int32{NoLimit, NoLimit}, Min: []int32{3, 3}, Target: []int32{3, 1}}, targets: []int32{3, 1},
		},
		"weights divide the rest, up to maximums": {
			spec:     `subsets: [{name: a, weight: 1, minReplicas: 2}, {name: b, weight: 1, maxReplicas: 2}, {name: c, weight: 3}]`,
			replicas: 20,
			want:     Plan{Replicas: 20, Quota: []int32{NoLimit, 2, NoLimit}, Min: []int32{2, 0, 0}, Target: []int32{4, 2, 14}}, targets: []int32{4, 2, 14},
		},
		"a subset without weight gets its minimum": {
			spec:     `subsets: [{name: a, minReplicas: 2}, {name: b, weight: 5}, {name: c}]`,
			replicas: 9,
			want:     Plan{Replicas: 9, Quota: []int32{2, NoLimit, 0}, Min: []int32{2, 0, 0}, Target: []int32{2, 7, 0}}, targets: []int32{2, 7, 0},
		},
		"pods above every quota are unplaced": {
			spec:     `subsets: [{name: a, maxReplicas: 2}, {name: b, maxReplicas: 0}]`,
			replicas: 5,
			want:     Plan{Replicas: 5, Quota: []int32{2, 0}}, targets: []int32{2, 0}, unplaced: 3,
		},
		"negative replicas are none": {
			spec:     `subsets: [{name: a}]`,
			replicas: -1,
			want:     Plan{Quota: []int32{NoLimit}}, targets: []int32{0},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			policy := compile(t, tc.spec)
			plan := policy.Plan(tc.replicas)
			if diff := cmp.Diff(tc.want, plan); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
			if targets, unplaced := policy.Targets(&plan, tc.replicas); !slices.Equal(targets, tc.targets) || unplaced != tc.unplaced {
				t.Errorf("targets %v, unplaced %d; want %v, %d", targets, unplaced, tc.targets, tc.unplaced)
			}
		})
	}
}

func TestAdmit(t *testing.T) {
	const twoThenAny = `subsets: [{name: a, maxReplicas: 2}, {name: b}]`
	const twoAndTwo = `subsets: [{name: a, maxReplicas: 2}, {name: b, maxReplicas: 2}]`
	const wait = "\nscheduleStrategy: {whenFull: Wait}"
	const adaptive = "\nscheduleStrategy: {type: Adaptive}"
	tests := map[string]struct {
		spec string
		kept Counts
		pod  Candidate
		want Verdict
	}{
		"the first subset with quota is taken":                      {twoThenAny, Counts{1, 0}, Candidate{}, Verdict{Subset: 0, Reason: v1beta1.ReasonAdmitted}},
		"a full subset is passed over":                              {twoThenAny, Counts{2, 7}, Candidate{}, Verdict{Subset: 1, Reason: v1beta1.ReasonAdmitted}},
		"nothing kept is room everywhere":                           {twoAndTwo, nil, Candidate{}, Verdict{Subset: 0, Reason: v1beta1.ReasonAdmitted}},
		"a pod's own slot does not stand in its way":                {twoAndTwo, Counts{2, 2}, Candidate{Holds: Mask(0).With(0)}, Verdict{Subset: 0, Reason: v1beta1.ReasonAdmitted}},
		"a pod moves to an earlier subset that has room":            {twoAndTwo, Counts{1, 2}, Candidate{Holds: Mask(0).With(1)}, Verdict{Subset: 0, Reason: v1beta1.ReasonAdmitted}},
		"a lowered quota is kept by those who asked first":          {twoAndTwo, Counts{5, 0}, Candidate{Holds: Mask(0).With(0), Behind: 3}, Verdict{Subset: 0, Reason: v1beta1.ReasonAdmitted}},
		"a lowered quota sends those on who asked last":             {twoAndTwo, Counts{5, 0}, Candidate{Holds: Mask(0).With(0), Behind: 2}, Verdict{Subset: 1, Reason: v1beta1.ReasonAdmitted}},
		"claims give way in the subset that they are in, no other":  {twoAndTwo, Counts{3, 5}, Candidate{Holds: Mask(0).With(0).With(1), Claim: 1, Behind: 3}, Verdict{Subset: 1, Reason: v1beta1.ReasonAdmitted}},
		"with every subset full the pod is let go":                  {twoAndTwo, Counts{2, 2}, Candidate{}, Verdict{Subset: None, Reason: v1beta1.ReasonUnplaced}},
		"with every subset full the pod is held if the spread says": {twoAndTwo + wait, Counts{2, 2}, Candidate{}, Verdict{Subset: None, Reason: v1beta1.ReasonSubsetsFull}},
		"a subset that is closed to the pod is passed over":         {twoThenAny + adaptive, Counts{0, 0}, Candidate{Closed: Mask(0).With(0)}, Verdict{Subset: 1, Reason: v1beta1.ReasonAdmitted}},
		"a subset with quota that is closed does not let a pod go":  {twoAndTwo + adaptive, Counts{2, 1}, Candidate{Closed: Mask(0).With(1)}, Verdict{Subset: None, Reason: v1beta1.ReasonNoNodeFits}},
		"a share without a node goes to the others":                 {oneOneThree + adaptive, Counts{0, 2, 6}, Candidate{Closed: Mask(0).With(0)}, Verdict{Subset: 2, Lent: true, Reason: v1beta1.ReasonAdmitted}},
		"a lent pod that asks again keeps what it has":              {oneOneThree + adaptive, Counts{0, 2, 7}, Candidate{Holds: Mask(0).With(2), Lent: true, Closed: Mask(0).With(0)}, Verdict{Subset: 2, Lent: true, Reason: v1beta1.ReasonAdmitted}},
		"a share with a node does not":                              {oneOneThree + adaptive, Counts{0, 2, 6}, Candidate{Closed: Mask(0).With(1)}, Verdict{Subset: 0, Reason: v1beta1.ReasonAdmitted}},
		"no more pods than replicas are lent":                       {oneOneThree + adaptive, Counts{0, 3, 7}, Candidate{Closed: Mask(0).With(0)}, Verdict{Subset: None, Reason: v1beta1.ReasonNoNodeFits}},
		"with Fixed a share without a node waits":                   {oneOneThree, Counts{0, 2, 6}, Candidate{Closed: Mask(0).With(0)}, Verdict{Subset: 0, Reason: v1beta1.ReasonAdmitted}},
		"a subset of 0 % is lent nothing": {`subsets: [{name: a, maxReplicas: 50%}, {name: b, maxReplicas: 0%}, {name: c, maxReplicas: 50%}]` + adaptive,
			Counts{0, 0, 5}, Candidate{Closed: Mask(0).With(0).With(2)}, Verdict{Subset: None, Reason: v1beta1.ReasonNoNodeFits}},
		"weights go on up to the maximum": {`subsets: [{name: a, weight: 1}, {name: b, weight: 1, maxReplicas: 3}]` + adaptive,
			Counts{0, 3}, Candidate{Closed: Mask(0).With(0)}, Verdict{Subset: None, Reason: v1beta1.ReasonNoNodeFits}},
		"Fixed stays in a subset that is closed": {twoThenAny, Counts{0, 0}, Candidate{Closed: Mask(0).With(0)}, Verdict{Subset: 0, Reason: v1beta1.ReasonAdmitted}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			policy := compile(t, tc.spec)
			plan := policy.Plan(10)
			got := policy.Admit(&plan, tc.kept, tc.pod)
			if got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
			tc.pod.Lent = got.Lent
			if got.Subset != None && !policy.HasRoom(&plan, tc.kept, got.Subset, tc.pod) {
				t.Error("HasRoom disagrees with Admit")
			}
		})
	}
}

func TestDescribe(t *testing.T) {
	policy := compile(t, `subsets: [{name: a, maxReplicas: 10}, {name: b}]`)
	plan := policy.Plan(13)
	for i, want := range []string{"a: 10/10 kept", "b: 3/- kept"} {
		if got := policy.DescribeSubset(&plan, Counts{10, 3}, i); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestLagsBehind(t *testing.T) {
	percent := compile(t, `subsets: [{name: a, maxReplicas: "50%"}, {name: b}]`)
	counts := compile(t, `subsets: [{name: a, maxReplicas: 5}, {name: b}]`)
	plan := percent.Plan(10)
	if !percent.LagsBehind(&plan, 11) {
		t.Error("11 pods of 10 replicas: a percentage of 10 is too small")
	}
	if percent.LagsBehind(&plan, 10) || counts.LagsBehind(&plan, 11) {
		t.Error("with as many pods as replicas, or with counts, no number is missing")
	}
}

func node(zone string) *corev1.Node {
	n := &corev1.Node{}
	n.Name, n.Labels = "node-"+zone, map[string]string{"zone": zone}
	return n
}

const zones = `subsets:
- {name: a, maxReplicas: 2, requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [a]}]}}
- {name: b, requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [b]}]}}`

func TestSubsetOf(t *testing.T) {
	policy := compile(t, zones)
	bound := func(record *Record, n *corev1.Node) Pod {
		return Pod{Active: true, NodeName: "n", Node: n, Record: record}
	}
	tests := map[string]struct {
		pod     Pod
		want    int
		adopted bool
	}{
		"an unbound pod has none":                                     {Pod{Active: true}, None, false},
		"the record is the truth, whatever the node's labels say":     {bound(&Record{Spread: "web", Subset: "a"}, node("b")), 0, false},
		"a pod without a record is adopted by its node":               {bound(nil, node("b")), 1, true},
		"a record of another spread counts for nothing":               {bound(&Record{Spread: "other", Subset: "a"}, node("b")), 1, true},
		"a subset that is no longer there leaves the pod to its node": {bound(&Record{Spread: "web", Subset: "gone"}, node("a")), 0, true},
		"a node in no subset leaves the pod in none":                  {bound(nil, node("z")), None, true},
		"a node that is not known leaves the pod in none":             {bound(nil, nil), None, true},
		"a pod that was let go without a subset is in none for good":  {bound(&Record{Spread: "web", Subset: ""}, node("a")), None, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, adopted := policy.SubsetOf(&tc.pod, "web")
			if got != tc.want || adopted != tc.adopted {
				t.Errorf("got %d, adopted %t; want %d, %t", got, adopted, tc.want, tc.adopted)
			}
		})
	}
}

// ranks are subsets that overlap on node b.
const ranks = `subsets:
- {name: any, patch: {metadata: {labels: {tier: any}}}}
- name: prefers
  patch: {metadata: {labels: {tier: prefers}}}
  preferredNodeSelector: [{weight: 1, preference: {matchExpressions: [{key: zone, operator: In, values: [b]}]}}]
- {name: a, patch: {metadata: {labels: {tier: a}}}, requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [a]}]}}
- {name: "no", patch: {metadata: {labels: {tier: "no"}}}, requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [z]}]}}
`

func TestAdoptedPods(t *testing.T) {
	bound := func(zone, tier, picked string) Pod {
		pod := Pod{Active: true, NodeName: "n", Node: node(zone), Labels: map[string]string{"tier": tier}}
		if picked != "" {
			pod.Admitted = &Admitted{Spread: "web", Subset: picked}
		}
		return pod
	}
	const early = "scheduleStrategy: {binding: Early}"
	for name, tc := range map[string]struct {
		pod           Pod
		late          bool
		want, kruises string
	}{
		"the first subset of the node wins a tie":               {bound("a", "", ""), false, "any", "any"},
		"the subset that prefers the node wins":                 {bound("b", "", ""), false, "prefers", "prefers"},
		"before labels do, which only OpenKruise's spreads see": {bound("b", "any", ""), false, "prefers", "prefers"},
		"in a tie of preferences labels win there":              {bound("a", "a", ""), false, "any", "a"},
		"but not those of a subset without the node":            {bound("a", "no", ""), false, "any", "any"},
		"the pick of admission wins over all":                   {bound("b", "", "any"), false, "any", "any"},
		"unless its subset does not select the node":            {bound("b", "", "a"), false, "prefers", "prefers"},
		"or the spread binds late":                              {bound("b", "", "any"), true, "prefers", ""},
	} {
		t.Run(name, func(t *testing.T) {
			spec := ranks + early
			if tc.late {
				spec = ranks
			}
			policy := compile(t, spec)
			if in, adopted := policy.SubsetOf(&tc.pod, "web"); policy.Subsets[in].Name != tc.want || !adopted {
				t.Errorf("in %s, adopted %t; want %s", policy.Subsets[in].Name, adopted, tc.want)
			}
			if policy = kruise(policy); tc.kruises != "" {
				if in, _ := policy.SubsetOf(&tc.pod, "web"); policy.Subsets[in].Name != tc.kruises {
					t.Errorf("as OpenKruise's in %s, want %s", policy.Subsets[in].Name, tc.kruises)
				}
			}
		})
	}
}

func TestRecordOf(t *testing.T) {
	pod := func(nodeName, annotation string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "me", Annotations: map[string]string{}}, Spec: corev1.PodSpec{NodeName: nodeName}}
		if annotation != "" {
			p.Annotations[v1beta1.MatchedAnnotation] = annotation
		}
		return p
	}
	tests := map[string]struct {
		pod  *corev1.Pod
		want *Record
	}{
		"our own record counts":                      {pod("n", `{"name":"web","subset":"a","uid":"me"}`), &Record{Spread: "web", Subset: "a"}},
		"so does one that the controller wrote":      {pod("n", `{"name":"web","subset":"a","uid":"me","adopted":true}`), &Record{Spread: "web", Subset: "a", Adopted: true}},
		"a record on an unbound pod is forged":       {pod("", `{"name":"web","subset":"a","uid":"me"}`), nil},
		"a record copied from another pod is forged": {pod("n", `{"name":"web","subset":"a","uid":"other"}`), nil},
		"a record without a UID is forged":           {pod("n", `{"name":"web","subset":"a"}`), nil},
		"what is not a record counts for nothing":    {pod("n", `subset a`), nil},
		"no record": {pod("n", ""), nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, RecordOf(tc.pod)); diff != "" {
				t.Errorf("record (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSurplus(t *testing.T) {
	policy := compile(t, zones)
	plan := policy.Plan(5)
	at := func(minute int) time.Time { return time.Date(2026, 1, 1, 0, minute, 0, 0, time.UTC) }
	pod := func(name, zone string, ready bool, minute int) Pod {
		return Pod{Name: name, UID: types.UID(name), Active: true, NodeName: "n", Node: node(zone), Ready: ready, Created: at(minute)}
	}
	pods := []Pod{
		pod("a-old", "a", true, 1), pod("a-young", "a", true, 3), pod("a-middle", "a", true, 2), pod("a-unready", "a", false, 0),
		pod("b", "b", true, 1), pod("nowhere", "z", true, 1),
		{Name: "terminating", NodeName: "n", Node: node("a")}, {Name: "pending", Active: true},
	}
	var got []string
	for _, excess := range policy.Surplus(&plan, pods, "web") {
		got = append(got, fmt.Sprintf("%s %s", excess.Pod.Name, excess.Reason))
	}
	want := []string{"nowhere NoSubset", "a-unready OverQuota", "a-young OverQuota"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("surplus (-want +got):\n%s", diff)
	}
}

// randomPolicy makes a valid policy of up to five subsets.
func randomPolicy(tb rapid.TB, r *worlds.History) *Policy {
	tb.Helper()
	spec := &v1beta1.WorkloadSpreadSpec{TargetReference: v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}}
	n := 1 + r.IntN(5)
	rest := 100
	percentages := r.IntN(2) == 0
	for i := range n {
		subset := v1beta1.Subset{Name: fmt.Sprintf("s%d", i)}
		if i < n-1 || !percentages && r.IntN(2) == 0 {
			limit := intstr.FromInt32(int32(r.IntN(8)))
			if percentages {
				share := r.IntN(rest + 1)
				rest -= share
				limit = intstr.FromString(fmt.Sprintf("%d%%", share))
			}
			subset.MaxReplicas = &limit
		}
		spec.Subsets = append(spec.Subsets, subset)
	}
	if !percentages && r.IntN(2) == 0 {
		for i := range spec.Subsets {
			spec.Subsets[i].Weight = ptr.To(int32(r.IntN(6)))
		}
	}
	if percentages && r.IntN(2) == 0 {
		spec.Subsets[n-1].MaxReplicas = ptr.To(intstr.FromString(fmt.Sprintf("%d%%", rest)))
	}
	if r.IntN(2) == 0 {
		for i := range spec.Subsets {
			spec.Subsets[i].MinReplicas = randomMinimum(r, spec.Subsets[i].MaxReplicas, n)
		}
	}
	if r.IntN(2) == 0 {
		spec.ScheduleStrategy.QuotaScope = v1beta1.WorkloadQuotaScope
	}
	if r.IntN(2) == 0 {
		spec.ScheduleStrategy.WhenFull = v1beta1.WhenFullWait
	}
	policy, errs := Compile(&v1beta1.WorkloadSpread{Spec: *spec}, field.NewPath("spec"))
	if len(errs) > 0 {
		tb.Fatalf("random spec: %v", errs.ToAggregate())
	}
	return policy
}

// randomMinimum is within a maximum. Percentages of n of them add up to at most 100.
func randomMinimum(r *worlds.History, maximum *intstr.IntOrString, n int) *intstr.IntOrString {
	if r.IntN(3) == 0 {
		most := 100 / n
		if maximum != nil && maximum.Type == intstr.String {
			limit, _ := CompileLimit(maximum, nil)
			most = min(most, int(limit.value))
		}
		return ptr.To(intstr.FromString(fmt.Sprintf("%d%%", r.IntN(most+1))))
	}
	most := int32(4)
	if maximum != nil && maximum.Type == intstr.Int {
		most = maximum.IntVal
	}
	return ptr.To(intstr.FromInt32(int32(r.IntN(int(most) + 1))))
}

func checkPlan(tb rapid.TB, policy *Policy, plan *Plan) {
	tb.Helper()
	targets, sum := policy.Targets(plan, plan.Replicas)
	for i := range policy.Subsets {
		sum += targets[i]
		if targets[i] < 0 || plan.Quota[i] != NoLimit && targets[i] > plan.Quota[i] {
			tb.Fatalf("subset %d: target %d with quota %d", i, targets[i], plan.Quota[i])
		}
	}
	if sum != plan.Replicas {
		tb.Fatalf("the plan places %d of %d pods", sum, plan.Replicas)
	}
}

func properties(t *testing.T, check worlds.Play) {
	t.Helper()
	worlds.Check(t, t.Name(), 500, check)
}

func TestAPlanAddsUpToTheReplicas(t *testing.T) {
	properties(t, func(t rapid.TB, r *worlds.History) {
		t.Helper()
		policy := randomPolicy(t, r)
		plan := policy.Plan(int32(r.IntN(50)))
		checkPlan(t, policy, &plan)
	})
}

func TestNoSubsetGetsMoreThanItsQuota(t *testing.T) {
	properties(t, func(t rapid.TB, r *worlds.History) {
		t.Helper()
		policy := randomPolicy(t, r)
		tally := policy.NewTally()
		type slot struct {
			scope  string
			subset int
		}
		var slots []slot
		plan := policy.Plan(30)
		for range r.Steps(200) {
			if len(slots) > 0 && r.IntN(3) == 0 {
				i := r.IntN(len(slots))
				tally.Remove(slots[i].scope, slots[i].subset)
				slots = append(slots[:i], slots[i+1:]...)
				continue
			}
			scope := policy.ScopeOf(fmt.Sprintf("rev-%d", r.IntN(2)))
			verdict := policy.Admit(&plan, tally.Kept(scope), Candidate{})
			for i := range policy.Subsets {
				hasRoom := plan.Quota[i] == NoLimit || tally.Kept(scope).At(i) < plan.Quota[i]
				if hasRoom && (verdict.Subset == None || verdict.Subset > i && !policy.ranked) {
					t.Fatalf("subset %d has room and the pod was given %d", i, verdict.Subset)
				}
			}
			tally.Add(scope, verdict.Subset)
			if verdict.Subset != None {
				slots = append(slots, slot{scope, verdict.Subset})
			}
			for i, quota := range plan.Quota {
				if kept := tally.Kept(scope).At(i); quota != NoLimit && kept > quota {
					t.Fatalf("subset %d keeps %d pods with quota %d", i, kept, quota)
				}
			}
		}
	})
}

// randomPods are bound pods with and without records, of two revisions, some of them ended.
func randomPods(policy *Policy, r *worlds.History) []Pod {
	pods := make([]Pod, r.IntN(40))
	for i := range pods {
		pods[i] = Pod{Name: fmt.Sprintf("p%d", i), UID: types.UID(fmt.Sprintf("u%d", i)), Revision: fmt.Sprintf("rev-%d", r.IntN(2)),
			NodeName: "n", Node: node("a"), Active: r.IntN(5) > 0, Ready: r.IntN(2) == 0, Created: time.Unix(int64(r.IntN(5)), 0)}
		if r.IntN(2) == 0 {
			pods[i].Record = &Record{Spread: "web", Subset: policy.Subsets[r.IntN(len(policy.Subsets))].Name}
		}
	}
	return pods
}

func TestTheOrderOfPodsDoesNotMatter(t *testing.T) {
	properties(t, func(t rapid.TB, r *worlds.History) {
		t.Helper()
		policy := randomPolicy(t, r)
		plan := policy.Plan(20)
		pods := randomPods(policy, r)
		shuffled := append([]Pod(nil), pods...)
		r.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		if diff := cmp.Diff(policy.Count(pods, "web").scopes, policy.Count(shuffled, "web").scopes); diff != "" {
			t.Errorf("counts (-in order +shuffled):\n%s", diff)
		}
		if diff := cmp.Diff(policy.Surplus(&plan, pods, "web"), policy.Surplus(&plan, shuffled, "web")); diff != "" {
			t.Errorf("surplus (-in order +shuffled):\n%s", diff)
		}
	})
}

func TestAddingThenRemovingAPodChangesNothing(t *testing.T) {
	properties(t, func(t rapid.TB, r *worlds.History) {
		t.Helper()
		policy := randomPolicy(t, r)
		tally := policy.Count(randomPods(policy, r), "web")
		before := tally.Clone()
		scope, subset := policy.ScopeOf("rev-new"), r.IntN(len(policy.Subsets)+1)-1
		tally.Add(scope, subset)
		if subset != None && tally.Kept(scope).At(subset) != before.Kept(scope).At(subset)+1 {
			t.Errorf("Add did not count")
		}
		tally.Remove(scope, subset)
		if diff := cmp.Diff(before.scopes, tally.scopes); diff != "" {
			t.Errorf("tally (-before +after):\n%s", diff)
		}
	})
}

func TestSurplusIsWhatIsAboveTheQuota(t *testing.T) {
	properties(t, func(t rapid.TB, r *worlds.History) {
		t.Helper()
		policy := randomPolicy(t, r)
		plan := policy.Plan(20)
		pods := randomPods(policy, r)
		tally := policy.Count(pods, "web")
		for _, excess := range policy.Surplus(&plan, pods, "web") {
			if excess.Subset != None {
				tally.Remove(policy.ScopeOf(excess.Pod.Revision), excess.Subset)
			}
		}
		over := policy.Count(pods, "web")
		for _, scope := range over.Scopes() {
			for i, quota := range plan.Quota {
				want := over.Kept(scope).At(i)
				if quota != NoLimit {
					want = min(want, quota)
				}
				if got := tally.Kept(scope).At(i); got != want {
					t.Errorf("without the surplus scope %q keeps %d in subset %d, want %d", scope, got, i, want)
				}
			}
		}
	})
}

func BenchmarkAdmit(b *testing.B) {
	var spec strings.Builder
	spec.WriteString("subsets:\n")
	for i := range 15 {
		fmt.Fprintf(&spec, "- {name: s%d, maxReplicas: 10}\n", i)
	}
	spec.WriteString("- {name: last}\n")
	policy := compile(b, spec.String())
	plan := policy.Plan(200)
	full := make(Counts, 16)
	for i := range 15 {
		full[i] = 10
	}
	b.ReportAllocs()
	for b.Loop() {
		if policy.Admit(&plan, full, Candidate{}).Subset != 15 {
			b.Fatal("the last subset is the only one with room")
		}
	}
}
