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
func (r *Roster) Costs() []PodCost { return r.costs(func(PodCost) bool { return true }) }

// WrongCosts are those of Costs that differ from what the pods carry.
func (r *Roster) WrongCosts() []PodCost {
	return r.costs(func(c PodCost) bool { return c.Pod.Cost == nil || *c.Pod.Cost != c.Cost })
}

// Costs is Roster.Costs of these pods.
func (p *Policy) Costs(plan *Plan, pods []Pod, spread string) []PodCost {
	return p.rosterOf(plan, pods, spread).Costs()
}

// costs are those that are wanted, sorted by the names of the pods.
func (r *Roster) costs(wanted func(PodCost) bool) (list []PodCost) {
	// group is the pods of one controller in one subset, of its newest revision and within quota or with seats. Their costs depend on each other.
	type group struct {
		owner  types.UID
		subset int
	}
	give := func(m *Member, cost int32) {
		if c := (PodCost{&m.Pod, cost}); wanted(c) {
			list = append(list, c)
		}
	}
	p, counted, groups := r.policy, r.count(), map[group][]*Member{}
	for _, m := range counted.live {
		switch {
		case m.CostIgnored:
		case p.Kruise:
			give(m, r.costAsKruise(m))
		case r.isOlder(m):
			give(m, -100*int32(len(p.Subsets)+2))
		case m.Subset == None, counted.over[m] && !p.graded(m.Subset):
			give(m, p.surplusCost(m.Subset))
		default:
			of := group{m.Owner, m.Subset}
			groups[of] = append(groups[of], m)
		}
	}
	for of, pods := range groups {
		var shared, alone []*Member
		for _, m := range pods {
			if counted.onNode[m.NodeName] > 1 {
				shared = append(shared, m)
			} else {
				alone = append(alone, m) // should be deleted first
			}
		}
		if p.graded(of.subset) {
			p.seat(of.subset, 1, shared, give)
			p.seat(of.subset, int32(len(shared))+1, alone, give)
			continue
		}
		cost := p.DeletionCost(of.subset, 1)
		for _, m := range shared {
			give(m, cost)
		}
		if len(shared) > 0 { // if all of them are alone, a discount would cost writes and change nothing
			cost--
		}
		for _, m := range alone {
			give(m, cost)
		}
	}
	slices.SortFunc(list, func(a, b PodCost) int {
		return cmp.Or(cmp.Compare(a.Pod.Name, b.Pod.Name), cmp.Compare(a.Pod.UID, b.Pod.UID))
	})
	return list
}

// isOlder is true for a pod of an older revision; see Costs.
func (r *Roster) isOlder(m *Member) bool {
	if r.policy.Kruise {
		return r.Latest != "" && m.Revision != r.Latest
	}
	return len(r.policy.Subsets) > 1 && m.Revision != r.count().newest[m.Owner].Revision
}

// seat gives the seats of a subset from an ordinal on to as many pods. A pod whose cost names one of these seats keeps it, and the others get the rest
// in the order of keepBefore.
func (p *Policy) seat(subset int, first int32, pods []*Member, give func(*Member, int32)) {
	slices.SortFunc(pods, byKeepBefore)
	free := make(map[int32]int, len(pods)) // by cost, because pods with late seats may share the last one
	for i := range pods {
		free[p.seats.cost(subset, first+int32(i))]++
	}
	var standing []*Member
	for _, m := range pods {
		if m.Cost == nil || free[*m.Cost] == 0 {
			standing = append(standing, m)
			continue
		}
		free[*m.Cost]--
		give(m, *m.Cost)
	}
	for _, m := range standing {
		for free[p.seats.cost(subset, first)] == 0 {
			first++
		}
		free[p.seats.cost(subset, first)]--
		give(m, p.seats.cost(subset, first))
	}
}

// graded is true if each pod of the subset has a cost of its own.
func (p *Policy) graded(subset int) bool { return !p.Kruise && p.seats.has(subset) }

func (r *Roster) costAsKruise(m *Member) int32 {
	i := m.Subset
	if i != None && r.isOlder(m) {
		i = len(r.policy.Subsets) - 1 - i
	}
	if r.count().over[m] {
		return r.policy.surplusCost(i)
	}
	return r.policy.DeletionCost(i, 1)
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
