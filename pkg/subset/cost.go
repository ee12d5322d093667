package subset

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// PodCost is the deletion cost that a bound pod should carry.
type PodCost struct {
	Pod  *Pod
	Cost int32
}

// Costs are the deletion costs of the active bound pods. A controller that scales down deletes the pods with the lowest cost first, and the layout
// stays right at every number of pods. With n subsets, i counted from 0:
//
//	kept                            100·(n−i), one less for those that are the workload's only pod on their node
//	                               if others of the subset are not
//	over quota                     −100·(i+1)
//	no subset                      −100·(n+1)
//	older revision                 −100·(n+2)
//
// With percentages, minimums or weights a pod that is kept, or over quota, costs 1,000,000 − its seat instead; see seating. A pod over quota is one with
// a late seat. The cost does not depend on the replicas, so a controller may read it at any time while they change.
//
// A pod is of an older revision if its own controller has pods of a newer one, as a CloneSet does. The revisions of a Deployment have a controller
// each, and each controller is ranked by itself. With one subset no pod is of an older revision: the costs say nothing that the controller does not
// know, and a rollout would write every pod. Pods whose cost is right keep it, so that as few pods as possible are written. A pod that is not
// ready is deleted before all others of its controller, whatever its cost: that is a rule of the ReplicaSet controller.
//
// A spread that behaves as OpenKruise's has OpenKruise's costs, also with percentages, minimums and weights. There a pod is of an older revision if
// its Deployment rolls out another one; see Roster.Latest. The order of the subsets is then the other way round:
//
//	                               latest revision     older revision
//	kept                            100·(n−i)           100·(i+1)
//	over quota                     −100·(i+1)          −100·(n−i)
//	no subset                      −100·(n+1)          −100·(n+1)
func (r *Roster) Costs() []PodCost { return r.listCosts(costs.all) }

// WrongCosts are those of Costs that differ from what the pods carry.
func (r *Roster) WrongCosts() []PodCost { return r.listCosts(costs.wrong) }

// Costs is Roster.Costs of these pods.
func (p *Policy) Costs(plan *Plan, pods []Pod, spread string) []PodCost {
	return p.rosterOf(plan, pods, spread).Costs()
}

func (r *Roster) listCosts(of func(costs) []PodCost) []PodCost {
	var list []PodCost
	for _, group := range r.costs {
		list = append(list, of(group)...)
	}
	slices.SortFunc(list, func(a, b PodCost) int {
		return cmp.Or(cmp.Compare(a.Pod.Name, b.Pod.Name), cmp.Compare(a.Pod.UID, b.Pod.UID))
	})
	return list
}

// costGroup names the pods of one controller in one subset. Their costs depend on each other.
type costGroup struct {
	owner  types.UID
	subset int
	class  costClass
}

type costClass int

const (
	withinQuota costClass = iota
	aboveQuota
	ofOlderRevision
	// aboveQuotaOfOlder is for spreads that behave as OpenKruise's. Others do not look at the quota of an older revision.
	aboveQuotaOfOlder
)

// costs computes the costs of a group of pods. Pods that are alone on their nodes cost less.
type costs interface {
	add(m *Member, alone bool)
	remove(m *Member, alone bool)
	empty() bool
	all() []PodCost
	wrong() []PodCost
}

// assignCost adds the pod to the group that computes its cost.
func (r *Roster) assignCost(m *Member) {
	if m.CostIgnored {
		return
	}
	m.group, m.aloneThen = r.groupOf(m), r.alone(m)
	m.costs = r.costs[m.group]
	if m.costs == nil {
		m.costs = r.newCosts(m.group)
		r.costs[m.group] = m.costs
	}
	m.costs.add(m, m.aloneThen)
}

// withdrawCost undoes assignCost.
func (r *Roster) withdrawCost(m *Member) {
	if m.costs == nil {
		return
	}
	m.costs.remove(m, m.aloneThen)
	if m.costs.empty() {
		delete(r.costs, m.group)
	}
	m.costs = nil
}

// reassignCost moves the pod to the group that it belongs to now, if it is in a group.
func (r *Roster) reassignCost(m *Member) {
	if m.costs != nil && (m.group != r.groupOf(m) || m.aloneThen != r.alone(m)) {
		r.withdrawCost(m)
		r.assignCost(m)
	}
}

func (r *Roster) groupOf(m *Member) costGroup {
	over := m.overQuota && m.Subset != None
	switch {
	case r.isOlder(m) && over && r.policy.Kruise:
		return costGroup{m.Owner, m.Subset, aboveQuotaOfOlder}
	case r.isOlder(m):
		return costGroup{m.Owner, m.Subset, ofOlderRevision}
	case over && !r.policy.graded(m.Subset):
		return costGroup{m.Owner, m.Subset, aboveQuota}
	default:
		return costGroup{m.Owner, m.Subset, withinQuota}
	}
}

func (r *Roster) newCosts(of costGroup) costs {
	p := r.policy
	switch {
	case p.Kruise:
		return newBand(p.costAsKruise(of), 0)
	case of.class == ofOlderRevision:
		return newBand(-100*int32(len(p.Subsets)+2), 0)
	case of.class == aboveQuota:
		return newBand(p.surplusCost(of.subset), 0)
	case p.graded(of.subset):
		return newRows(p.seats, of.subset)
	case of.subset == None:
		return newBand(p.surplusCost(None), 0)
	default:
		return newBand(p.DeletionCost(of.subset, 1), 1)
	}
}

// graded is true if each pod of the subset has a cost of its own.
func (p *Policy) graded(subset int) bool { return !p.Kruise && p.seats.has(subset) }

func (p *Policy) costAsKruise(of costGroup) int32 {
	i := of.subset
	if i != None && (of.class == ofOlderRevision || of.class == aboveQuotaOfOlder) {
		i = len(p.Subsets) - 1 - i
	}
	if of.class == aboveQuota || of.class == aboveQuotaOfOlder {
		return p.surplusCost(i)
	}
	return p.DeletionCost(i, 1)
}

// DeletionCost is the cost of a pod that is within quota or in no subset, and of no older revision. The pod is the ordinal-th of its subset to be kept, counted from 1. The ordinal
// matters if there are percentages, minimums or weights.
func (p *Policy) DeletionCost(subset int, ordinal int32) int32 {
	if p.graded(subset) {
		return p.seats.cost(subset, max(ordinal, 1))
	}
	if subset == None {
		return p.surplusCost(None)
	}
	return 100 * int32(len(p.Subsets)-subset)
}

// surplusCost is the cost of a pod over its subset's quota, or of no subset.
func (p *Policy) surplusCost(subset int) int32 {
	if subset == None {
		return -100 * int32(len(p.Subsets)+1)
	}
	return -100 * int32(subset+1)
}
