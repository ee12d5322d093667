package subset

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

const oneOneThree = `
subsets: [{name: a, maxReplicas: "20%"}, {name: b, maxReplicas: "20%"}, {name: c}]
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

// TestEverySizeIsALayoutOfItsOwn: whatever the percentages, the first K seats leave each subset within one pod of its share of K, and within
// its quota at K.
func TestEverySizeIsALayoutOfItsOwn(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 5))
	for range 500 {
		spec, rest := "targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}\nsubsets:\n", 100
		n := 1 + random.IntN(8)
		shares := make([]int, n)
		for i := range n {
			shares[i] = random.IntN(rest + 1)
			if i == n-1 {
				shares[i] = rest
			}
			limit := fmt.Sprintf(", maxReplicas: %d%%", shares[i])
			if i == n-1 && random.IntN(2) == 0 {
				limit = ""
			}
			rest -= shares[i]
			spec += fmt.Sprintf("- {name: s%d%s}\n", i, limit)
		}
		policy := compile(t, spec)
		if !policy.UsesPercent() {
			continue
		}
		next := make([]int32, n)
		for size := int32(1); size <= 250; size++ {
			plan, dealt := policy.Plan(size), int32(0)
			for i := range next {
				if seat, seated := policy.seats.of(i, next[i]+1); seated && seat == size {
					next[i]++
				}
				dealt += next[i]
				low, high := int32(shares[i])*size/100, (int32(shares[i])*size+99)/100
				if next[i] < low || next[i] > high {
					t.Fatalf("%s\nat %d pods subset %d has %d seats, want %d to %d", spec, size, i, next[i], low, high)
				}
				if plan.Quota[i] != NoLimit && next[i] > plan.Quota[i] {
					t.Fatalf("%s\nat %d pods subset %d has %d seats above its quota of %d", spec, size, i, next[i], plan.Quota[i])
				}
			}
			if dealt != size {
				t.Fatalf("%s\nat %d pods %d seats are dealt", spec, size, dealt)
			}
		}
	}
}
