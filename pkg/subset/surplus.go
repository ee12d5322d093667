package subset

import (
	"slices"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
)

// Excess is a bound pod that the plan has no place for.
type Excess struct {
	Pod Pod
	// Subset the pod is in, or None.
	Subset int
	// Reason is ReasonOverQuota or ReasonNoSubset.
	Reason v1alpha1.Reason
}

// Surplus lists the active bound pods above the plan, the ones to give up first in front: pods of no subset, then those above the quota
// of the last subset, and so on to the first. Inside a subset those are kept that are ready and old. Each quota scope is judged
// by itself with the same plan.
func (p *Policy) Surplus(plan *Plan, pods []Pod, spread string) []Excess {
	type place struct {
		scope  string
		subset int
	}
	places := map[place][]Pod{}
	for i := range pods {
		if !pods[i].Active || pods[i].NodeName == "" {
			continue
		}
		subset, _ := p.SubsetOf(&pods[i], spread)
		at := place{p.ScopeOf(pods[i].Revision), subset}
		places[at] = append(places[at], pods[i])
	}
	var surplus []Excess
	for at, here := range places {
		reason, quota := v1alpha1.ReasonNoSubset, int32(0)
		if at.subset != None {
			reason, quota = v1alpha1.ReasonOverQuota, plan.Quota[at.subset]
		}
		if quota == NoLimit || len(here) <= int(quota) {
			continue
		}
		slices.SortFunc(here, func(a, b Pod) int { return keepBefore(&a, &b) })
		for _, pod := range here[quota:] {
			surplus = append(surplus, Excess{Pod: pod, Subset: at.subset, Reason: reason})
		}
	}
	slices.SortFunc(surplus, func(a, b Excess) int {
		costA, costB := p.surplusCost(a.Subset), p.surplusCost(b.Subset)
		if costA != costB {
			return int(costA - costB)
		}
		return keepBefore(&b.Pod, &a.Pod)
	})
	return surplus
}
