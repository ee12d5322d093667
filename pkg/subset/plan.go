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
	// Target is how many pods each subset holds when every pod is where it should be.
	Target []int32
	// Unplaced is how many pods are left over when every subset is full.
	Unplaced int32
}

// Plan fills the subsets in order:
//
//	target[i] = min(quota[i], replicas − target[0] − … − target[i−1])
//
// Negative replicas count as 0.
func (p *Policy) Plan(replicas int32) Plan {
	plan := Plan{Replicas: max(replicas, 0), Quota: make([]int32, len(p.Subsets))}
	for i := range p.Subsets {
		plan.Quota[i] = p.Subsets[i].Limit.Quota(plan.Replicas)
	}
	return plan.For(plan.Replicas)
}

// For is the plan with targets for another number of pods than the replicas, and with the same quotas. A spread that divides some pods of a workload
// may know the replicas of the whole workload only.
func (plan Plan) For(pods int32) Plan {
	claims := make([]allocation.Claim, len(plan.Quota))
	for i, quota := range plan.Quota {
		claims[i] = allocation.Claim{Order: i, Max: quota, Capacity: allocation.Unlimited}
		if quota == NoLimit {
			claims[i].Max = allocation.Unlimited
		}
	}
	plan.Target, plan.Unplaced = allocation.Divide(pods, claims, true), pods
	for _, target := range plan.Target {
		plan.Unplaced -= target
	}
	return plan
}

// LagsBehind is true if one owner has more live pods than the plan has replicas. The workload was then scaled up, and the new number has not arrived
// yet. With percentages every quota is too small until it arrives, so the pod should wait. Owner is the ReplicaSet, StatefulSet or Job: its pods
// never exceed its replicas, while those of a Deployment do during a surge.
func (p *Policy) LagsBehind(plan *Plan, livePodsOfOwner int32) bool {
	return p.hasPercent && livePodsOfOwner > plan.Replicas
}

// Describe says how full each subset is: "subset-a: 10/10 kept; subset-b: 3/- kept".
func (p *Policy) Describe(plan *Plan, kept Counts) string {
	var b strings.Builder
	for i := range p.Subsets {
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(p.DescribeSubset(plan, kept, i))
	}
	return b.String()
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
