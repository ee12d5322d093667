package moves

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
)

// sharing compiles a spec of subsets a, b and c. Each argument is what one subset has, for example "maxReplicas: 20%".
func sharing(tb testing.TB, a, b, c string) *subset.Policy {
	tb.Helper()
	term := func(pool string) string {
		return "requiredNodeSelector: {matchExpressions: [{key: pool, operator: In, values: [" + pool + "]}]}"
	}
	spec := &v1beta1.WorkloadSpreadSpec{}
	text := fmt.Sprintf(`{targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, subsets: [{name: a, %s, %s}, {name: b, %s, %s}, {name: c, %s, %s}]}`,
		a, term("a"), b, term("b"), c, term("c"))
	if err := yaml.UnmarshalStrict([]byte(text), spec); err != nil {
		tb.Fatal(err)
	}
	policy, errs := subset.Compile(&v1beta1.WorkloadSpread{Spec: *spec}, field.NewPath("spec"))
	if len(errs) > 0 {
		tb.Fatal(errs)
	}
	return policy
}

func TestReturnByShares(t *testing.T) {
	percent := func(t *testing.T) *subset.Policy {
		t.Helper()
		return sharing(t, "maxReplicas: 20%", "maxReplicas: 20%", "maxReplicas: 60%")
	}
	minimums := func(t *testing.T) *subset.Policy {
		t.Helper()
		return sharing(t, "minReplicas: 3", "minReplicas: 3", "minReplicas: 3")
	}
	everywhere := map[int]int{0: 9, 1: 9, 2: 9}
	tests := map[string]struct {
		policy   func(*testing.T) *subset.Policy
		kept     [3]int
		places   map[int]int
		want     []string
		wantHeld map[string]v1beta1.Reason
	}{
		"1/1/5 is where it should be, though a and b have quota":   {percent, [3]int{1, 1, 5}, everywhere, nil, nil},
		"2/2/3 is above the targets in a and b":                    {percent, [3]int{2, 2, 3}, everywhere, []string{"b0 1>2 EarlierSubsetHasRoom"}, map[string]v1beta1.Reason{"a0": v1beta1.ReasonLimitReached, "a1": v1beta1.ReasonLimitReached, "b1": v1beta1.ReasonLimitReached}},
		"a later subset may be below its target":                   {percent, [3]int{2, 1, 4}, everywhere, []string{"a0 0>2 EarlierSubsetHasRoom"}, map[string]v1beta1.Reason{"a1": v1beta1.ReasonLimitReached}},
		"it stays without a node there":                            {percent, [3]int{2, 1, 4}, map[int]int{1: 9}, nil, map[string]v1beta1.Reason{"a0": v1beta1.ReasonNoRoom, "a1": v1beta1.ReasonNoRoom}},
		"minimums are met from what others have above theirs":      {minimums, [3]int{4, 3, 2}, everywhere, []string{"a0 0>2 EarlierSubsetHasRoom"}, nil},
		"minimums in the layout of the targets stay":               {minimums, [3]int{34, 3, 3}, everywhere, nil, nil},
		"above the minimums an earlier subset is better":           {minimums, [3]int{3, 3, 4}, everywhere, []string{"c0 2>0 EarlierSubsetHasRoom"}, nil},
		"a minimum that the replicas do not reach is no gap":       {minimums, [3]int{3, 1, 0}, everywhere, nil, nil},
		"of two minimums that are not reached the first is filled": {minimums, [3]int{2, 2, 0}, everywhere, []string{"b0 1>0 EarlierSubsetHasRoom"}, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			f := &Facts{Name: "web", Policy: tc.policy(t), Pods: podsIn(tc.kept), Now: start}
			f.Replicas = int32(len(f.Pods))
			d := Return(f, returnLimits, &rooms{places: tc.places})
			if tc.wantHeld == nil {
				d.Held = nil
			}
			check(t, d, tc.want, tc.wantHeld)
		})
	}
}

func podsIn(kept [3]int) []Pod {
	var pods []Pod
	for i, n := range kept {
		pods = append(pods, many(letter(i), n, time.Hour)...)
	}
	return pods
}

// TestMovesEndAtTheTargets moves one pod after the other, from any layout. The scheduler puts each replacement where
// the move wanted it, and pods do not move in circles.
func TestMovesEndAtTheTargets(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for name, policy := range map[string]*subset.Policy{
		"percentages":          sharing(t, "maxReplicas: 20%", "maxReplicas: 20%", "maxReplicas: 60%"),
		"weights":              sharing(t, "weight: 1", "weight: 1", "weight: 3"),
		"minimums":             sharing(t, "minReplicas: 3", "minReplicas: 3", "minReplicas: 3"),
		"minimums in percent":  sharing(t, "minReplicas: 10%", "minReplicas: 30%", "minReplicas: 30%"),
		"minimums and weights": sharing(t, "minReplicas: 2, weight: 1", "maxReplicas: 4, weight: 1", "minReplicas: 1, weight: 3"),
	} {
		t.Run(name, func(t *testing.T) {
			for range 200 {
				f := &Facts{Name: "web", Policy: policy, Replicas: r.Int32N(41), Now: start}
				plan := policy.Plan(f.Replicas)
				kept := make(subset.Counts, 3)
				var began [3]int
				for left := f.Replicas; left > 0; {
					if in := r.IntN(3); plan.Quota[in] == subset.NoLimit || kept[in] < plan.Quota[in] {
						kept[in]++
						began[in]++
						left--
					}
				}
				f.Pods = podsIn(began)
				moves := 0
				for ; ; moves++ {
					d := Return(f, returnLimits, &rooms{places: map[int]int{0: 99, 1: 99, 2: 99}})
					if len(d.Moves) == 0 {
						break
					}
					move := d.Moves[0]
					kept[move.From]--
					if next := policy.Next(&plan, kept, subset.Candidate{}, 0); next != move.To {
						t.Fatalf("%v of %v: a pod moves from %d to %d, and its replacement goes to %d", began, plan.Target, move.From, move.To, next)
					}
					kept[move.To]++
					i := slices.IndexFunc(f.Pods, func(p Pod) bool { return p.UID == move.Pod.UID })
					f.Pods[i] = bound(fmt.Sprintf("moved%d", moves), letter(move.To), time.Hour)
				}
				wanted := 0
				for i, target := range plan.Target {
					wanted += max(began[i]-int(target), 0)
				}
				if !slices.Equal(kept, plan.Target) || moves != wanted {
					t.Fatalf("from %v to %v in %d moves, want %v in %d", began, kept, moves, plan.Target, wanted)
				}
			}
		})
	}
}
