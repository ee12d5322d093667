package subset

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-project/berth/pkg/allocation"
)

// Plan says what each subset may and should hold at a number of replicas.
type Plan struct {
	// Replicas the plan is made for, in one quota scope.
	Replicas int32
	// Quota of each subset, or NoLimit.
	Quota []int32
	// Min is the minimum of each subset, and Target how many pods it should hold. Both are nil if the subsets are
	// filled in order: then the quotas say it all.
	Min, Target []int32
}

// Plan is the plan for a number of replicas. Negative replicas count as 0.
func (p *Policy) Plan(replicas int32) Plan {
	plan := p.boundsAt(replicas)
	if p.ranked {
		plan.Target, _ = p.Targets(&plan, plan.Replicas)
	}
	return plan
}

// boundsAt is a plan without targets.
func (p *Policy) boundsAt(replicas int32) Plan {
	n := len(p.Subsets)
	plan := Plan{Replicas: max(replicas, 0), Quota: make([]int32, n)}
	if p.ranked {
		plan.Min = make([]int32, n)
	}
	p.setBounds(&plan)
	return plan
}

// setBounds computes quotas and minimums for the replicas of the plan.
func (p *Policy) setBounds(plan *Plan) {
	for i := range p.Subsets {
		s := &p.Subsets[i]
		quota := s.Limit.Quota(plan.Replicas)
		if p.ranked {
			least := max(s.Min.Quota(plan.Replicas), 0)
			if quota != NoLimit {
				least = min(least, quota)
			}
			if plan.Min[i] = least; p.shares && s.Weight == 0 {
				quota = least
			}
		}
		plan.Quota[i] = quota
	}
}

// Targets are how many pods each subset holds when every pod is where it should be. unplaced is how many pods are left
// over when every subset is full. pods are the replicas of the plan, or fewer if the spread divides some pods of a
// workload, and knows the replicas of the whole workload only.
func (p *Policy) Targets(plan *Plan, pods int32) (targets []int32, unplaced int32) {
	unplaced = max(pods, 0)
	if p.seats.repeats() && p.shares {
		targets = p.seats.upTo(unplaced) // each rounded at the same time as when the workload grows to this size
	} else {
		targets = allocation.Divide(pods, p.claims(plan), true)
	}
	for _, target := range targets {
		unplaced -= target
	}
	return targets, unplaced
}

func (p *Policy) claims(plan *Plan) []allocation.Claim {
	claims := make([]allocation.Claim, len(p.Subsets))
	for i, quota := range plan.Quota {
		claims[i] = allocation.Claim{Order: i, Tie: i, Max: quota, Capacity: allocation.Unlimited}
		if quota == NoLimit {
			claims[i].Max = allocation.Unlimited
		}
		if p.ranked {
			claims[i].Min = plan.Min[i]
		}
		if p.shares {
			claims[i].Weight = p.Subsets[i].Weight
		}
	}
	return claims
}

// LagsBehind is true if one owner has more live pods than the plan has replicas. The workload was then scaled up, and
// the new number has not arrived yet. With percentages every quota is too small until it arrives, so the pod should
// wait. Owner is the ReplicaSet, StatefulSet or Job: its pods never exceed its replicas, while those of a Deployment do
// during a surge.
func (p *Policy) LagsBehind(plan *Plan, livePodsOfOwner int32) bool {
	return p.hasPercent && livePodsOfOwner > plan.Replicas
}

// DescribeSubset says how full one subset is: "subset-a: 10/10 kept".
func (p *Policy) DescribeSubset(plan *Plan, kept Counts, subset int) string {
	return fmt.Sprintf("%s: %d/%s kept", p.Subsets[subset].Name, kept.At(subset), FormatQuota(plan.Quota[subset]))
}

// FormatQuota prints a quota: "-" for NoLimit.
func FormatQuota(quota int32) string {
	if quota == NoLimit {
		return "-"
	}
	return strconv.Itoa(int(quota))
}

// FormatReasons prints reasons with their counts, the most frequent first: "38 Insufficient cpu, 2 untolerated taint".
func FormatReasons(counts map[string]int) string {
	reasons := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	parts := make([]string, len(reasons))
	for i, reason := range reasons {
		parts[i] = fmt.Sprintf("%d %s", counts[reason], reason)
	}
	return strings.Join(parts, ", ")
}
