package subset

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/testkit/worlds"
)

// surplusByCounting, costsByCounting and overbookedByCounting answer as a roster does, by looking at all pods.
func surplusByCounting(p *Policy, plan *Plan, pods []Pod) []Excess {
	type at struct {
		scope  string
		subset int
	}
	places := map[at][]Pod{}
	for _, pod := range pods {
		if pod.Active && pod.NodeName != "" {
			subset, _ := p.SubsetOf(&pod, "web")
			here := at{p.ScopeOf(pod.Revision), subset}
			places[here] = append(places[here], pod)
		}
	}
	var surplus []Excess
	for here, pods := range places {
		reason, quota := v1beta1.ReasonNoSubset, int32(0)
		if here.subset != None {
			reason, quota = v1beta1.ReasonOverQuota, plan.Quota[here.subset]
		}
		if quota == NoLimit || len(pods) <= int(quota) {
			continue
		}
		slices.SortFunc(pods, func(a, b Pod) int { return keepBefore(&a, &b) })
		for _, pod := range pods[quota:] {
			surplus = append(surplus, Excess{pod, here.subset, reason})
		}
	}
	slices.SortFunc(surplus, func(a, b Excess) int {
		return cmp.Or(cmp.Compare(p.surplusCost(a.Subset), p.surplusCost(b.Subset)), keepBefore(&b.Pod, &a.Pod))
	})
	return surplus
}

func costsByCounting(p *Policy, plan *Plan, pods []Pod) map[string]int32 {
	type group struct {
		owner  types.UID
		subset int
	}
	over := map[types.UID]bool{}
	for _, excess := range surplusByCounting(p, plan, pods) {
		over[excess.Pod.UID] = excess.Subset != None
	}
	costs, newest, onNode, groups := map[string]int32{}, map[types.UID]*Pod{}, map[string]int{}, map[group][]*Pod{}
	for i := range pods {
		if pod := &pods[i]; pod.Active && pod.NodeName != "" {
			onNode[pod.NodeName]++
			if n := newest[pod.Owner]; n == nil || cmp.Or(n.Created.Compare(pod.Created), cmp.Compare(n.UID, pod.UID)) < 0 {
				newest[pod.Owner] = pod
			}
		}
	}
	for i := range pods {
		pod := &pods[i]
		if !pod.Active || pod.NodeName == "" || pod.CostIgnored {
			continue
		}
		in, _ := p.SubsetOf(pod, "web")
		switch {
		case len(p.Subsets) > 1 && pod.Revision != newest[pod.Owner].Revision:
			costs[pod.Name] = -100 * int32(len(p.Subsets)+2)
		case over[pod.UID] && !p.seats.has(in):
			costs[pod.Name] = -100 * int32(in+1)
		case in == None:
			costs[pod.Name] = -100 * int32(len(p.Subsets)+1)
		default:
			groups[group{pod.Owner, in}] = append(groups[group{pod.Owner, in}], pod)
		}
	}
	for key, here := range groups {
		slices.SortFunc(here, keepBefore)
		shared := slices.DeleteFunc(slices.Clone(here), func(pod *Pod) bool { return onNode[pod.NodeName] == 1 })
		alone := slices.DeleteFunc(slices.Clone(here), func(pod *Pod) bool { return onNode[pod.NodeName] != 1 })
		if !p.seats.has(key.subset) {
			for _, pod := range here {
				costs[pod.Name] = 100 * int32(len(p.Subsets)-key.subset)
			}
			for _, pod := range alone {
				if len(shared) > 0 {
					costs[pod.Name]--
				}
			}
			continue
		}
		for first, half := range map[int][]*Pod{0: shared, len(shared): alone} {
			var wanted []int32
			for i := range half {
				wanted = append(wanted, p.DeletionCost(key.subset, int32(first+i+1)))
			}
			half = slices.DeleteFunc(half, func(pod *Pod) bool {
				if pod.Cost == nil || !slices.Contains(wanted, *pod.Cost) {
					return false
				}
				wanted = slices.DeleteFunc(wanted, func(cost int32) bool { return cost == *pod.Cost })
				costs[pod.Name] = *pod.Cost
				return true
			})
			for i, pod := range half {
				costs[pod.Name] = wanted[i]
			}
		}
	}
	return costs
}

func costsAsKruiseByCounting(p *Policy, plan *Plan, pods []Pod, latest string) map[string]int32 {
	costs, n := map[string]int32{}, int32(len(p.Subsets))
	places := map[place][]*Pod{}
	for i := range pods {
		if pod := &pods[i]; pod.Active && pod.NodeName != "" {
			in, _ := p.SubsetOf(pod, "web")
			at := place{p.ScopeOf(pod.Revision), in}
			places[at] = append(places[at], pod)
		}
	}
	for at, here := range places {
		slices.SortFunc(here, keepBefore)
		for rank, pod := range here {
			i := int32(at.subset)
			if latest != "" && pod.Revision != latest {
				i = n - 1 - i
			}
			switch {
			case pod.CostIgnored:
			case at.subset == None:
				costs[pod.Name] = -100 * (n + 1)
			case plan.Quota[at.subset] != NoLimit && rank >= int(plan.Quota[at.subset]):
				costs[pod.Name] = -100 * (i + 1)
			default:
				costs[pod.Name] = 100 * (n - i)
			}
		}
	}
	return costs
}

func overbookedByCounting(p *Policy, plan *Plan, pods []Pod) []string {
	kept := p.Count(pods, "web")
	var waiting, overbooked []*Pod
	for i := range pods {
		if pods[i].Active && pods[i].NodeName == "" {
			waiting = append(waiting, &pods[i])
		}
	}
	slices.SortFunc(waiting, keepBefore)
	for _, pod := range waiting {
		index, counts := p.AdmittedTo(pod.Admitted, "web")
		if !counts || index == None {
			continue
		}
		if scope := p.ScopeOf(pod.Revision); p.HasRoom(plan, kept.Kept(scope), index, Candidate{}) {
			kept.Add(scope, index)
		} else {
			overbooked = append(overbooked, pod)
		}
	}
	var names []string
	for _, pod := range overbooked {
		scope := p.ScopeOf(pod.Revision)
		verdict := p.Admit(plan, kept.Kept(scope), Candidate{})
		if kept.Add(scope, verdict.Subset); verdict.Allowed() && !pod.OfJob {
			names = append(names, pod.Name)
		}
	}
	return names
}

// randomChange makes a pod, changes one or drops one, and returns it with true if it is still there.
func randomChange(p *Policy, r *worlds.History, pods map[types.UID]*Pod, next *int) (*Pod, bool) {
	subset := func() string {
		if r.IntN(8) == 0 {
			return ""
		}
		return p.Subsets[r.IntN(len(p.Subsets))].Name
	}
	var pod *Pod
	if uids := slices.Sorted(maps.Keys(pods)); len(uids) > 0 && r.IntN(3) > 0 {
		pod = pods[uids[r.IntN(len(uids))]]
	} else {
		name := fmt.Sprintf("p%d", *next)
		*next++
		pod = &Pod{Name: name, UID: types.UID(name), Active: true, Created: time.Unix(int64(r.IntN(5)), 0),
			Owner: types.UID(fmt.Sprintf("o%d", r.IntN(2))), Revision: fmt.Sprintf("r%d", r.IntN(2)), CostIgnored: r.IntN(8) == 0, OfJob: r.IntN(8) == 0}
		if r.IntN(3) == 0 {
			pod.Admitted = &Admitted{Spread: "web", Subset: subset()}
		}
		pods[pod.UID] = pod
	}
	switch r.IntN(8) {
	case 0:
		pod.Ready = !pod.Ready
	case 1:
		pod.Active = false
	case 2:
		delete(pods, pod.UID)
		return pod, false
	case 3, 4:
		pod.NodeName, pod.Node = fmt.Sprintf("n%d", r.IntN(6)), node("a")
		if r.IntN(4) > 0 {
			pod.Record = &Record{Spread: "web", Subset: subset()}
		}
	default:
		pod.Cost = ptr.To(p.DeletionCost(r.IntN(len(p.Subsets)+1)-1, int32(r.IntN(6))+1) - int32(r.IntN(8))/7)
	}
	return pod, true
}

// TestARosterAnswersAsIfItHadCounted: whatever comes, changes and goes, in whatever order.
func TestARosterAnswersAsIfItHadCounted(t *testing.T) {
	properties(t, func(t rapid.TB, r *worlds.History) {
		t.Helper()
		policy := randomPolicy(t, r)
		if r.IntN(3) == 0 {
			policy.Binding = v1beta1.EarlyBinding
		}
		policy.Kruise = r.IntN(3) == 0
		plan := policy.Plan(int32(r.IntN(20)))
		roster, pods, next := policy.NewRoster(&plan, "web"), map[types.UID]*Pod{}, 0
		roster.Latest = []string{"", "r0", "r1"}[r.IntN(3)]
		for step := range r.Steps(80) {
			if r.IntN(20) == 0 {
				plan = policy.Plan(int32(r.IntN(20)))
				roster.Replan(&plan)
			}
			pod, there := randomChange(policy, r, pods, &next)
			if there {
				roster.Put(*pod)
			} else {
				roster.Remove(pod.UID)
				roster.Remove(pod.UID)
			}
			var all []Pod
			for _, uid := range slices.Sorted(maps.Keys(pods)) {
				all = append(all, *pods[uid])
			}
			expectEqual(t, step, "tally", policy.Count(all, "web").scopes, roster.Tally().scopes)
			expectEqual(t, step, "surplus", surplusByCounting(policy, &plan, all), roster.Surplus())
			var want map[string]int32
			if policy.Kruise {
				want = costsAsKruiseByCounting(policy, &plan, all, roster.Latest)
			} else {
				want = costsByCounting(policy, &plan, all)
			}
			expectEqual(t, step, "costs", want, byName(roster.Costs()))
			for _, pod := range all {
				if cost, costs := want[pod.Name]; costs && pod.Cost != nil && *pod.Cost == cost {
					delete(want, pod.Name)
				}
			}
			expectEqual(t, step, "wrong costs", want, byName(roster.WrongCosts()))
			var overbooked []string
			for _, pod := range roster.Overbooked() {
				overbooked = append(overbooked, pod.Name)
			}
			expectEqual(t, step, "overbooked", overbookedByCounting(policy, &plan, all), overbooked)
		}
		for _, uid := range slices.Sorted(maps.Keys(pods)) {
			roster.Remove(uid)
		}
		if left := len(roster.members) + len(roster.places) + len(roster.onNode) + len(roster.ages) + len(roster.costs) + len(roster.waiting) + len(roster.tally.scopes); left > 0 {
			t.Errorf("a roster without pods still holds %d entries: %+v", left, roster)
		}
	})
}

func byName(costs []PodCost) map[string]int32 {
	all := map[string]int32{}
	for _, c := range costs {
		all[c.Pod.Name] = c.Cost
	}
	return all
}

func expectEqual(t rapid.TB, step int, what string, want, got any) {
	t.Helper()
	options := []gocmp.Option{cmpopts.EquateEmpty(), cmpopts.IgnoreFields(Pod{}, "Node")}
	if diff := gocmp.Diff(want, got, options...); diff != "" {
		t.Fatalf("step %d: %s (-by counting +roster):\n%s", step, what, diff)
	}
}

// BenchmarkRoster is one pod that becomes ready, and asking what is wrong, among other pods.
func BenchmarkRoster(b *testing.B) {
	for name, spec := range map[string]string{"counts": twoAndOne, "percentages": oneOneThree} {
		for _, size := range []int{30, 3000} {
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) {
				policy := compile(b, spec)
				plan := policy.Plan(int32(size))
				roster := policy.NewRoster(&plan, "web")
				pods := kept("rs", "1", "a", size/2, "b", size/2)
				for i := range pods {
					roster.Put(pods[i])
				}
				for _, c := range roster.Costs() {
					pod := *c.Pod
					pod.Cost = ptr.To(c.Cost)
					roster.Put(pod)
				}
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					pod := roster.members[pods[i%size].UID].Pod
					pod.Ready = !pod.Ready
					roster.Put(pod)
					roster.WrongCosts()
				}
			})
		}
	}
}
