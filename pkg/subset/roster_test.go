package subset

import (
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
	"github.com/berth-project/berth/test/testkit/worlds"
)

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

// TestTheOrderOfChangesDoesNotMatter: a roster answers after any changes as one that is made anew. As long as the costs
// that it wants are written, it wants no others. No pod of a Job is replaced.
func TestTheOrderOfChangesDoesNotMatter(t *testing.T) {
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
			if pod, there := randomChange(policy, r, pods, &next); there {
				roster.Put(*pod)
			} else {
				roster.Remove(pod.UID)
				roster.Remove(pod.UID)
			}
			anew := policy.NewRoster(&plan, "web")
			anew.Latest = roster.Latest
			var all []Pod
			for _, uid := range slices.Backward(slices.Sorted(maps.Keys(pods))) {
				all = append(all, *pods[uid])
				anew.Put(*pods[uid])
			}
			expectEqual(t, step, "tally", policy.Count(all, "web").scopes, roster.Tally().scopes)
			expectEqual(t, step, "surplus", anew.Surplus(), roster.Surplus())
			expectEqual(t, step, "costs", anew.Costs(), roster.Costs())
			expectEqual(t, step, "overbooked", anew.Overbooked(), roster.Overbooked())
			if failed := slices.IndexFunc(roster.Overbooked(), func(pod *Pod) bool { return pod.OfJob }); failed >= 0 {
				t.Fatalf("step %d: %s is to be replaced, and its Job would count a failure", step, roster.Overbooked()[failed].Name)
			}
			for _, c := range roster.Costs() {
				pod := *pods[c.Pod.UID]
				pod.Cost, pod.AskedBefore = ptr.To(c.Cost), c.Asked
				anew.Put(pod)
			}
			expectEqual(t, step, "wrong costs after they were written", []PodCost(nil), anew.WrongCosts())
		}
	})
}

func expectEqual(t rapid.TB, step int, what string, want, got any) {
	t.Helper()
	options := []gocmp.Option{cmpopts.EquateEmpty(), cmpopts.IgnoreFields(Pod{}, "Node")}
	if diff := gocmp.Diff(want, got, options...); diff != "" {
		t.Fatalf("step %d: %s (-anew +roster):\n%s", step, what, diff)
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
					pod.Cost, pod.AskedBefore = ptr.To(c.Cost), c.Asked
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
