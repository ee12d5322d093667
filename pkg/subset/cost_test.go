package subset

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/berth-project/berth/test/testkit/worlds"
)

const oneOneThree = `
subsets: [{name: a, maxReplicas: "20%"}, {name: b, maxReplicas: "20%"}, {name: c, maxReplicas: "60%"}]
targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
`

const twoAndOne = `
subsets: [{name: a, maxReplicas: 2}, {name: b, maxReplicas: 1}]
targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
`

// kept makes active pods of one controller, bound in subsets, as in "a", 3, "b", 2.
func kept(owner, revision string, subsets ...any) []Pod {
	var pods []Pod
	for i := 0; i < len(subsets); i += 2 {
		for j := range subsets[i+1].(int) {
			name := fmt.Sprintf("%s-%s%s%d", owner, revision, subsets[i], j)
			pods = append(pods, Pod{Name: name, UID: types.UID(name), Owner: types.UID(owner), Revision: revision, Active: true, Ready: true,
				NodeName: "node", Record: &Record{Spread: "web", Subset: subsets[i].(string)}, Created: time.Unix(int64(len(pods)), 0)})
		}
	}
	return pods
}

func costsOf(p *Policy, replicas int32, pods []Pod) map[string]int32 {
	plan := p.Plan(replicas)
	costs := map[string]int32{}
	for _, c := range p.Costs(&plan, pods, "web") {
		costs[c.Pod.Name] = c.Cost
	}
	return costs
}

func TestCosts(t *testing.T) {
	tests := map[string]struct {
		spec string
		pods []Pod
		want map[string]int32
	}{
		"counts rank in bands, by subset and surplus": {twoAndOne, kept("rs", "1", "a", 3, "b", 2, "", 1), map[string]int32{
			"rs-1a0": 200, "rs-1a1": 200, "rs-1a2": -100, "rs-1b0": 100, "rs-1b1": -200, "rs-10": -300}},
		"pods of an older revision of the same controller go first": {twoAndOne, append(kept("clone", "1", "a", 1), kept("clone", "2", "b", 1, "", 1)...), map[string]int32{
			"clone-1a0": -400, "clone-2b0": 100, "clone-20": -300}},
		"pods of another controller are ranked by themselves": {twoAndOne, append(kept("old", "1", "a", 1), kept("new", "2", "b", 1)...), map[string]int32{
			"old-1a0": 200, "new-2b0": 100}},
		"percentages take turns": {oneOneThree, kept("rs", "1", "a", 1, "b", 1, "c", 3), map[string]int32{
			"rs-1c0": 999_999, "rs-1c1": 999_998, "rs-1a0": 999_997, "rs-1b0": 999_996, "rs-1c2": 999_995}},
		"and a pod of no subset goes before them": {oneOneThree, kept("rs", "1", "a", 1, "", 1), map[string]int32{"rs-1a0": 999_997, "rs-10": -400}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, costsOf(compile(t, tc.spec), int32(len(tc.pods)), tc.pods)); diff != "" {
				t.Errorf("costs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCostsOfOneSubsetDoNotDependOnTheRevision(t *testing.T) {
	for name, limit := range map[string]string{"no limit": "", "a count": ", maxReplicas: 3"} {
		t.Run(name, func(t *testing.T) {
			policy := compile(t, "subsets: [{name: a"+limit+"}]\ntargetRef: {apiVersion: apps.kruise.io/v1beta1, kind: CloneSet, name: web}")
			want := map[string]int32{"clone-1a0": 100, "clone-1a1": 100, "clone-2a0": 100, "clone-10": -200}
			got := costsOf(policy, 4, append(kept("clone", "1", "a", 2, "", 1), kept("clone", "2", "a", 1)...))
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("costs (-want +got):\n%s", diff)
			}
		})
	}
}

// kruise is the policy of a spread that behaves as OpenKruise's.
func kruise(p *Policy) *Policy {
	p.Kruise = true
	return p
}

func TestCostsAsOpenKruise(t *testing.T) {
	tests := map[string]struct {
		spec   string
		latest string
		pods   []Pod
		want   map[string]int32
	}{
		"counts": {twoAndOne, "", kept("rs", "1", "a", 3, "b", 2, "", 1), map[string]int32{
			"rs-1a0": 200, "rs-1a1": 200, "rs-1a2": -100, "rs-1b0": 100, "rs-1b1": -200, "rs-10": -300}},
		"percentages are not graded": {oneOneThree, "", kept("rs", "1", "a", 2, "b", 1, "c", 2), map[string]int32{
			"rs-1a0": 300, "rs-1a1": -100, "rs-1b0": 200, "rs-1c0": 100, "rs-1c1": 100}},
		"older revisions have the subsets the other way round": {twoAndOne, "2",
			append(kept("old", "1", "a", 3, "b", 2, "", 1), kept("new", "2", "a", 3, "b", 2, "", 1)...), map[string]int32{
				"old-1a0": 100, "old-1a1": 100, "old-1a2": -200, "old-1b0": 200, "old-1b1": -100, "old-10": -300,
				"new-2a0": 200, "new-2a1": 200, "new-2a2": -100, "new-2b0": 100, "new-2b1": -200, "new-20": -300}},
		"so it is with percentages": {oneOneThree, "2", append(kept("old", "1", "a", 1, "c", 1), kept("new", "2", "a", 1, "c", 1)...), map[string]int32{
			"old-1a0": 100, "old-1c0": 300, "new-2a0": 300, "new-2c0": 100}},
		"a CloneSet has one revision": {twoAndOne, "", append(kept("clone", "1", "a", 1), kept("clone", "2", "b", 1)...), map[string]int32{
			"clone-1a0": 200, "clone-2b0": 100}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			policy := kruise(compile(t, tc.spec))
			plan := policy.Plan(5)
			roster := policy.NewRoster(&plan, "web")
			roster.Latest = tc.latest
			for _, pod := range tc.pods {
				roster.Put(pod)
			}
			got := map[string]int32{}
			for _, c := range roster.Costs() {
				got[c.Pod.Name] = c.Cost
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("costs (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("a pod alone on its node costs what the others do", func(t *testing.T) {
		pods := kept("rs", "1", "a", 2)
		pods = append(pods, kept("rs", "1", "b", 1)...)
		pods[1].NodeName = "another"
		want := map[string]int32{"rs-1a0": 200, "rs-1a1": 200, "rs-1b0": 100}
		if diff := cmp.Diff(want, costsOf(kruise(compile(t, twoAndOne)), 3, pods)); diff != "" {
			t.Errorf("costs (-want +got):\n%s", diff)
		}
	})
	t.Run("the Binding writes the same cost", func(t *testing.T) {
		if cost := kruise(compile(t, oneOneThree)).DeletionCost(0, 7); cost != 300 {
			t.Errorf("cost %d, want 300", cost)
		}
	})
}

func TestAPodThatEmptiesANodeGoesBeforeOthersOfItsSubset(t *testing.T) {
	policy, pods := compile(t, twoAndOne), kept("rs", "1", "a", 2)
	if diff := cmp.Diff(map[string]int32{"rs-1a0": 200, "rs-1a1": 200}, costsOf(policy, 2, pods)); diff != "" {
		t.Errorf("both on one node (-want +got):\n%s", diff)
	}
	pods = append(pods, kept("rs", "1", "b", 1)...)
	pods[1].NodeName = "another"
	if diff := cmp.Diff(map[string]int32{"rs-1a0": 200, "rs-1a1": 199, "rs-1b0": 100}, costsOf(policy, 3, pods)); diff != "" {
		t.Errorf("the second on a node of its own (-want +got):\n%s", diff)
	}
	pods[2].NodeName = "third"
	if diff := cmp.Diff(map[string]int32{"rs-1a0": 200, "rs-1a1": 200, "rs-1b0": 100}, costsOf(policy, 3, pods)); diff != "" {
		t.Errorf("all on nodes of their own (-want +got):\n%s", diff)
	}
}

func TestCostsOfPercentagesDoNotChangeWithTheReplicas(t *testing.T) {
	policy, pods := compile(t, oneOneThree), kept("rs", "1", "a", 20, "b", 20, "c", 60)
	before := costsOf(policy, 100, pods)
	for _, replicas := range []int32{99, 50, 7, 0, 200} {
		if diff := cmp.Diff(before, costsOf(policy, replicas, pods)); diff != "" {
			t.Errorf("%d replicas (-at 100 +now):\n%s", replicas, diff)
		}
	}
}

func TestRightCostsStay(t *testing.T) {
	policy := compile(t, oneOneThree)
	pods := kept("rs", "1", "a", 4, "b", 4, "c", 12)
	for i := range pods {
		pods[i].Cost = ptr.To(costsOf(policy, 20, pods)[pods[i].Name])
	}
	// The first pod of c is lost and another takes its place; then one changes seats, and no other.
	lost := slices.IndexFunc(pods, func(p Pod) bool { return p.Name == "rs-1c0" })
	want := *pods[lost].Cost
	pods[lost].Name, pods[lost].UID, pods[lost].Cost, pods[lost].Created = "new", "new", ptr.To[int32](7), time.Unix(1000, 0)
	costs := costsOf(policy, 20, pods)
	for i := range pods {
		if pods[i].Name != "new" && costs[pods[i].Name] != *pods[i].Cost {
			t.Errorf("%s changes from %d to %d", pods[i].Name, *pods[i].Cost, costs[pods[i].Name])
		}
	}
	if costs["new"] != want {
		t.Errorf("the new pod has cost %d, want that of the lost one, %d", costs["new"], want)
	}
	// So it is after every cost was wrong.
	for i := range pods {
		pods[i].Cost = nil
	}
	seen := map[int32]string{}
	for name, cost := range costsOf(policy, 20, pods) {
		if other, twice := seen[cost]; twice {
			t.Errorf("%s and %s both have cost %d", name, other, cost)
		}
		seen[cost] = name
	}
}

// TestGrowthGoesThroughTheTargets grows workloads from nothing, one pod at a time and by the seats, and shrinks them
// again. Without percentages in minimums, and unless percentages leave a rest, both go through the targets of every
// size.
func TestGrowthGoesThroughTheTargets(t *testing.T) {
	properties(t, func(t rapid.TB, r *worlds.History) {
		t.Helper()
		policy := randomPolicy(t, r)
		percentMinimum := slices.ContainsFunc(policy.Subsets, func(s Subset) bool { return s.Min.IsPercent() })
		exact := !percentMinimum && (policy.shares || !policy.hasPercent) && (!policy.ranked || !policy.hasPercent || policy.seats.repeats())
		kept := make(Counts, len(policy.Subsets))
		for size := int32(1); size <= 250; size++ {
			plan := policy.boundsAt(size)
			next := policy.Next(&plan, kept, Candidate{}, 0)
			if next == None {
				break // every subset is full for good
			}
			kept[next]++
			if kept[next] > plan.Quota[next] && plan.Quota[next] != NoLimit {
				t.Fatalf("%d pods: subset %d has %d, above its quota of %d", size, next, kept[next], plan.Quota[next])
			}
			if policy.seats.has(next) {
				if seat := policy.seats.of(next, kept[next]); seat != size {
					t.Fatalf("pod %d of subset %d has seat %d, want %d", kept[next], next, seat, size)
				}
			}
			if targets, _ := policy.Targets(&plan, size); exact && !slices.Equal(targets, kept) {
				t.Fatalf("%d pods are %v, want the targets %v", size, kept, targets)
			}
		}
	})
}

// TestPodsBoundAtOneSizeReachTheTargets binds as many pods as a workload has, in the order in which a scheduler finds
// nodes, which is any.
func TestPodsBoundAtOneSizeReachTheTargets(t *testing.T) {
	properties(t, func(t rapid.TB, r *worlds.History) {
		t.Helper()
		policy := randomPolicy(t, r)
		for range 20 {
			plan := policy.Plan(int32(r.IntN(60)))
			kept, want := make(Counts, len(policy.Subsets)), int32(0)
			targets, unplaced := policy.Targets(&plan, plan.Replicas)
			for want = plan.Replicas - unplaced; want > 0; want-- {
				next := policy.Next(&plan, kept, Candidate{}, 0)
				if next == None {
					t.Fatalf("%d replicas: no subset for the next pod after %v, targets %v", plan.Replicas, kept, targets)
				}
				kept[next]++
			}
			if !slices.Equal(targets, kept) {
				t.Fatalf("%d replicas are %v, want the targets %v", plan.Replicas, kept, targets)
			}
			// A pod that ends is replaced in the same subset, whichever it is.
			for i := range kept {
				if kept[i] == 0 {
					continue
				}
				kept[i]--
				if next := policy.Next(&plan, kept, Candidate{}, 0); next != i {
					t.Fatalf("%d replicas: a pod of subset %d ended, and the next pod goes to %d; kept %v, targets %v", plan.Replicas, i, next, kept, targets)
				}
				kept[i]++
			}
		}
	})
}

// TestSharesAreTheSameUpAndDown is the case of seven pods at 20/20/60 %, at every size.
func TestSharesAreTheSameUpAndDown(t *testing.T) {
	for name, spec := range map[string]string{
		"percentages": oneOneThree,
		"weights":     `subsets: [{name: a, weight: 1}, {name: b, weight: 1}, {name: c, weight: 3}]`,
	} {
		t.Run(name, func(t *testing.T) {
			policy := compile(t, spec)
			plan := policy.Plan(7)
			if targets, _ := policy.Targets(&plan, 7); !slices.Equal(targets, []int32{1, 1, 5}) {
				t.Errorf("7 pods are %v, want 1/1/5", targets)
			}
			var costs []int32 // of the pods of a workload that grew to 40, in the order of growth
			kept := make(Counts, 3)
			for size := int32(1); size <= 40; size++ {
				plan := policy.Plan(size)
				next := policy.Next(&plan, kept, Candidate{}, 0)
				kept[next]++
				costs = append(costs, policy.DeletionCost(next, kept[next]))
				if targets, _ := policy.Targets(&plan, size); !slices.Equal(targets, kept) {
					t.Errorf("%d pods are %v, want %v", size, kept, targets)
				}
			}
			if !slices.IsSortedFunc(costs, func(a, b int32) int { return int(b - a) }) {
				t.Errorf("scale-down would not go back the way: costs %v", costs)
			}
		})
	}
}

func TestScaleDownTakesMinimumsLast(t *testing.T) {
	policy := compile(t, `subsets: [{name: a, minReplicas: 1}, {name: b, minReplicas: 2, maxReplicas: 4}, {name: c, minReplicas: 1}]`)
	plan := policy.Plan(9)
	if targets, unplaced := policy.Targets(&plan, 9); !slices.Equal(targets, []int32{6, 2, 1}) || unplaced != 0 {
		t.Errorf("targets %v, %d unplaced", targets, unplaced)
	}
	type pod struct {
		subset, ordinal int32
	}
	// Three pods of b and two of c are there, because subset a had no node for a while.
	order := []pod{{0, 1}, {1, 1}, {1, 2}, {2, 1}, {0, 2}, {0, 3}, {0, 4}, {1, 3}, {2, 2}}
	for i := range order[1:] {
		before, after := policy.DeletionCost(int(order[i].subset), order[i].ordinal), policy.DeletionCost(int(order[i+1].subset), order[i+1].ordinal)
		if before <= after {
			t.Errorf("pod %v costs %d and pod %v %d, want less", order[i], before, order[i+1], after)
		}
	}
}

// answered are the pods after the wrong costs were written, and how many that were.
func answered(p *Policy, pods []Pod) int {
	plan := p.Plan(int32(len(pods)))
	wrong := p.rosterOf(&plan, pods, "web").WrongCosts()
	for _, c := range wrong {
		for i := range pods {
			if pods[i].UID == c.Pod.UID {
				pods[i].Cost, pods[i].AskedBefore = ptr.To(c.Cost), c.Asked
			}
		}
	}
	return len(wrong)
}

// TestAnApplicationOrdersThePodsOfASubset: the application writes a cost of its own into the annotation, and changes
// it. The subsets keep their order.
func TestAnApplicationOrdersThePodsOfASubset(t *testing.T) {
	for name, spec := range map[string]string{"counts": twoAndOne, "percentages": oneOneThree} {
		t.Run(name, func(t *testing.T) {
			p := compile(t, spec)
			rapid.Check(t, func(t *rapid.T) {
				pods := kept("rs", "1", "a", rapid.IntRange(0, 4).Draw(t, "a"), "b", rapid.IntRange(0, 4).Draw(t, "b"), "", rapid.IntRange(0, 2).Draw(t, "none"))
				answered(p, pods)
				before := byName(pods)
				asked := map[string]int32{}
				for range rapid.IntRange(0, 6).Draw(t, "changes") {
					if len(pods) == 0 {
						break
					}
					pod := &pods[rapid.IntRange(0, len(pods)-1).Draw(t, "pod")]
					cost := rapid.SampledFrom([]int32{0, 1, 5, 16, 17, 250, 1000, 70_000, math.MaxInt32, -1, -3, -900, math.MinInt32}).Draw(t, "cost")
					pod.Cost = ptr.To(cost)
					if asked[pod.Name] = cost; rapid.Bool().Draw(t, "answered") {
						answered(p, pods)
					}
				}
				answered(p, pods)
				if again := answered(p, pods); again > 0 {
					t.Fatalf("%d costs are written again", again)
				}
				after := byName(pods)
				for one, a := range after {
					for other, b := range after {
						switch {
						case before[one]/100 > before[other]/100 && name == "counts" && a <= b:
							t.Fatalf("%s costs %d and %s %d, and cost %d and %d before somebody asked", one, a, other, b, before[one], before[other])
						case subsetIn(pods, one) == subsetIn(pods, other) && bandOf(before[one]) == bandOf(before[other]) && within(asked[one]) > within(asked[other]) && a <= b:
							t.Fatalf("%s costs %d and %s %d, for which the application asks %d and %d", one, a, other, b, asked[one], asked[other])
						}
					}
				}
				for name := range asked {
					for i := range pods {
						if pods[i].Name == name {
							pods[i].Cost = nil // the application asks for nothing any more
						}
					}
				}
				answered(p, pods)
				if name == "counts" {
					if diff := cmp.Diff(before, byName(pods)); diff != "" {
						t.Fatalf("costs when nobody asks any more (-before +now):\n%s", diff)
					}
				}
			})
		})
	}
}

func byName(pods []Pod) map[string]int32 {
	costs := map[string]int32{}
	for i := range pods {
		costs[pods[i].Name] = *pods[i].Cost
	}
	return costs
}

func subsetIn(pods []Pod, name string) string {
	return pods[slices.IndexFunc(pods, func(p Pod) bool { return p.Name == name })].Record.Subset
}

// bandOf is the same for pods of one subset whose costs without a request mean the same.
func bandOf(cost int32) int32 {
	if cost > firstSeatCost/2 {
		return firstSeatCost
	}
	return cost
}

// TestASpreadAsOpenKruisesAsksNoApplication: OpenKruise replaces every cost.
func TestASpreadAsOpenKruisesAsksNoApplication(t *testing.T) {
	p, pods := compile(t, twoAndOne), kept("rs", "1", "a", 2)
	p.Kruise = true
	pods[0].Cost = ptr.To[int32](1000)
	if got := costsOf(p, 2, pods); got["rs-1a0"] != 200 || got["rs-1a1"] != 200 {
		t.Errorf("got %v", got)
	}
}
