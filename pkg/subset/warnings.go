package subset

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

// warnings are about what the spec alone shows.
func warnings(policy *Policy, spec *v1beta1.WorkloadSpreadSpec, path *field.Path) []string {
	subsets := path.Child("subsets")
	all := warnOfUnreached(policy, subsets)
	all = append(all, warnOfSameNodes(policy, subsets)...)
	return append(all, warnOfAdaptive(policy, &spec.ScheduleStrategy, path.Child("scheduleStrategy"))...)
}

// warnOfUnreached is about subsets to which no pod goes. A subset with a quota of 0 is closed on purpose.
func warnOfUnreached(policy *Policy, path *field.Path) []string {
	if policy.shares {
		return warnOfNoWeight(policy, path)
	}
	unlimitedAt := slices.IndexFunc(policy.Subsets, func(s Subset) bool { return s.Limit.kind == unlimited })
	if policy.Strategy != v1beta1.FixedScheduleStrategy || unlimitedAt == -1 {
		return nil
	}
	without, which := 0, ""
	for _, after := range policy.Subsets[unlimitedAt+1:] {
		if hasMinimum(after) {
			which = " that have no minReplicas"
		} else {
			without++
		}
	}
	if without == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%s: has no maxReplicas, so with type: Fixed no pod reaches the subsets after it%s", path.Index(unlimitedAt), which)}
}

func warnOfNoWeight(policy *Policy, path *field.Path) []string {
	var all []string
	for i := range policy.Subsets {
		if s := policy.Subsets[i]; s.Weight == 0 && !hasMinimum(s) && (s.Limit.kind == unlimited || s.Limit.value > 0) {
			all = append(all, fmt.Sprintf("%s: has neither weight nor minReplicas, and other subsets have a weight, so no pod goes there", path.Index(i)))
		}
	}
	return all
}

func hasMinimum(s Subset) bool { return s.Min.kind != unlimited && s.Min.value > 0 }

// warnOfSameNodes ignores subsets without a term. If no subset has one, the spread is not about nodes.
func warnOfSameNodes(policy *Policy, path *field.Path) []string {
	var all []string
	for i := range policy.Subsets {
		term := policy.Subsets[i].term
		if j := slices.IndexFunc(policy.Subsets[:i], func(s Subset) bool {
			return term != nil && s.term != nil && implies(term, s.term) && implies(s.term, term)
		}); j >= 0 {
			all = append(all, fmt.Sprintf("%s: selects the same nodes as %s; pods there that Berth did not bind count in the first of the two",
				path.Index(i).Child("requiredNodeSelector"), path.Index(j)))
		}
	}
	return all
}

func warnOfAdaptive(policy *Policy, strategy *v1beta1.ScheduleStrategy, path *field.Path) []string {
	if policy.Strategy != v1beta1.AdaptiveScheduleStrategy {
		return nil
	}
	if len(policy.Subsets) == 1 {
		return []string{fmt.Sprintf("%s: Adaptive goes on to the next subset, and the spread has only one, so it has no effect", path.Child("type"))}
	}
	adaptive, neverWaits := path.Child("adaptive"), policy.Adaptive.Wait == 0
	var all []string
	if neverWaits && policy.Kruise && policy.BindsEarly() {
		all = append(all, fmt.Sprintf("%s: is not set, and the subset is picked at admission, so no pod goes on to the next subset, as with type: Fixed", adaptive.Child("rescheduleCriticalSeconds")))
	}
	if strategy.Adaptive != nil && strategy.Adaptive.DisableSimulationSchedule && !policy.Kruise {
		all = append(all, fmt.Sprintf("%s: has no effect, as in OpenKruise: a pod goes on when no node of a subset fits", adaptive.Child("disableSimulationSchedule")))
	}
	if neverWaits && strategy.Adaptive != nil && strategy.Adaptive.UnschedulableLastSeconds != nil {
		all = append(all, fmt.Sprintf("%s: a subset is skipped after a wait of rescheduleCriticalSeconds, which is not set, so it has no effect", adaptive.Child("unschedulableLastSeconds")))
	}
	return all
}

// WarningsBeside are about what a node autoscaler of this name cannot read in the pods. Path is that of the spec.
func (p *Policy) WarningsBeside(autoscaler string, path *field.Path) (all []string) {
	switch p.EffectiveBinding(true) {
	case v1beta1.LateBinding:
		return []string{fmt.Sprintf("%s: with Late a node autoscaler (%s) takes pods to fit in any of the subsets, as it knows no quotas, so pods can wait forever, and running pods can be evicted; leave binding out, or set Gated",
			path.Child("scheduleStrategy", "binding"), autoscaler)}
	case v1beta1.GatedBinding: // a gated pod has the tolerations of all subsets, and the terms of one
		if p.Strategy == v1beta1.AdaptiveScheduleStrategy && p.Adaptive.Wait == 0 && len(p.Subsets) > 1 {
			all = append(all, fmt.Sprintf("%s: is not set, so pods that no subset has a node for wait in the last subset with room, and a node autoscaler (%s) makes nodes there and in no other; set it if others have pools too",
				path.Child("scheduleStrategy", "adaptive", "rescheduleCriticalSeconds"), autoscaler))
		}
		for i := range p.Subsets {
			foreign := func(t corev1.Toleration) bool { return !hasToleration(p.Subsets[i].Constraints.tolerations, &t) }
			if p.Subsets[i].term == nil && slices.ContainsFunc(p.Constraints.tolerations, foreign) {
				all = append(all, fmt.Sprintf("%s: selects all nodes by their labels, and does not tolerate the taints of other subsets; a node autoscaler (%s) may take its pods to fit on tainted nodes; set requiredNodeSelectorTerm",
					path.Child("subsets").Index(i), autoscaler))
			}
		}
	}
	return all
}

// WarningsAt are about a workload with this number of replicas. maxUnavailable is as in BlockedRollout. Path is that of
// the spec.
func (p *Policy) WarningsAt(replicas int32, maxUnavailable *int32, path *field.Path) []string {
	all := append(p.warnOfRounding(replicas, path), p.warnOfMinimums(replicas, path)...)
	if blocked := p.BlockedRollout(replicas, maxUnavailable); blocked != "" {
		all = append(all, fmt.Sprintf("%s: %s", path.Child("scheduleStrategy", "quotaScope"), blocked))
	}
	return all
}

// warnOfRounding is about percentages that are filled in order. Shares are never more than the replicas.
func (p *Policy) warnOfRounding(replicas int32, path *field.Path) []string {
	if p.shares || !slices.ContainsFunc(p.Subsets, func(s Subset) bool { return s.Limit.IsPercent() }) {
		return nil
	}
	quotas, sum := p.sumOf(p.boundsAt(replicas).Quota)
	if sum <= int64(replicas) || replicas <= 0 {
		return nil
	}
	return []string{fmt.Sprintf("%s: of %d replicas the percentages, each rounded up, are %d pods (%s), so the last subsets hold fewer",
		path.Child("subsets"), replicas, sum, quotas)}
}

func (p *Policy) warnOfMinimums(replicas int32, path *field.Path) []string {
	minimums, sum := p.sumOf(p.boundsAt(replicas).Min)
	if sum <= int64(replicas) || replicas <= 0 {
		return nil
	}
	return []string{fmt.Sprintf("%s: the minimums are %d pods (%s), and the workload has %d replicas, so the last subsets get less than their minimum",
		path.Child("subsets"), sum, minimums, replicas)}
}

// sumOf adds up the bounds of the subsets, and lists them.
func (p *Policy) sumOf(bounds []int32) (list string, sum int64) {
	parts := make([]string, len(bounds))
	for i, bound := range bounds {
		parts[i] = fmt.Sprintf("%s %s", p.Subsets[i].Name, FormatQuota(bound))
		sum += int64(max(bound, 0))
	}
	return strings.Join(parts, ", "), sum
}

// BlockedRollout says why a rolling update of a workload with this number of replicas can never go on, and what to
// change. It is empty if it can, or if that is not known. A nil maxUnavailable means that the workload has no such
// number.
//
// If all revisions share quotas that pods of the old revision fill, a pod of the new one waits until an old one goes.
// The workload's controller removes an available pod only if more than replicas − maxUnavailable pods are available. No
// more than there are slots can be.
func (p *Policy) BlockedRollout(replicas int32, maxUnavailable *int32) string {
	if p.Scope != v1beta1.WorkloadQuotaScope || p.WhenFull != v1beta1.WhenFullWait || maxUnavailable == nil || replicas <= 0 ||
		!p.podSelector.Empty() { // of the replicas, nobody knows how many the spread divides
		return ""
	}
	slots := int64(0)
	for _, quota := range p.Plan(replicas).Quota {
		if quota == NoLimit {
			return ""
		}
		slots += int64(quota)
	}
	if slots+int64(*maxUnavailable) > int64(replicas) {
		return ""
	}
	return fmt.Sprintf("a rolling update can never go on: %d of %d replicas must stay available, and all revisions together have %d slots; "+
		"raise a maxReplicas, set maxUnavailable of the workload to %d or more, or use quotaScope: Revision",
		replicas-*maxUnavailable, replicas, slots, int64(replicas)-slots+1)
}

// WarningsAmong are about a cluster with these nodes, of which only labels are read. Path is that of the spec.
func (p *Policy) WarningsAmong(nodes []*corev1.Node, path *field.Path) (all []string) {
	for i := range p.Subsets {
		if s := &p.Subsets[i]; !s.SelectsAllNodes() && !slices.ContainsFunc(nodes, s.Holds) {
			all = append(all, fmt.Sprintf("%s: no node matches now", path.Child("subsets").Index(i).Child("requiredNodeSelector")))
		}
	}
	return all
}

// HasNodeFor is true if the subset, and the pod's own nodeSelector and required node affinity, select one of the nodes.
func (s *Subset) HasNodeFor(pod *corev1.Pod, nodes []*corev1.Node) bool {
	affinity := nodeaffinity.GetRequiredNodeAffinity(pod)
	return slices.ContainsFunc(nodes, func(node *corev1.Node) bool {
		matches, err := affinity.Match(node)
		return err == nil && matches && s.Holds(node)
	})
}
