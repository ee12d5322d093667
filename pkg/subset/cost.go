package subset

import (
	"cmp"
	"math"
	"math/bits"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// PodCost is the deletion cost that a bound pod should carry.
type PodCost struct {
	Pod  *Pod
	Cost int32
	// Asked is the cost that the pod's application asks for. 0 if it asks for none.
	Asked int32
}

// Costs are the deletion costs of the active bound pods. A controller that scales down deletes the pods with the lowest
// cost first, and the layout stays right at every number of pods. With n subsets, i counted from 0:
//
//	kept                            100·(n−i), one less for those that are the workload's only pod on their node
//	                               if others of the subset are not
//	over quota                     −100·(i+1)
//	no subset                      −100·(n+1)
//	older revision                 −100·(n+2)
//
// With percentages, minimums or weights a pod that is kept, or over quota, costs 1,000,000 − its seat instead; see
// seating. A pod over quota is one with a late seat. The cost does not depend on the replicas, so a controller may read
// it at any time while they change.
//
// A pod is of an older revision if its own controller has pods of a newer one, as a CloneSet does. The revisions of a
// Deployment have a controller each, and each controller is ranked by itself. With one subset no pod is of an older
// revision: the costs say nothing that the controller does not know, and a rollout would write every pod. Pods whose
// cost is right keep it, so that as few pods as possible are written. A pod that is not ready is deleted before all
// others of its controller, whatever its cost: that is a rule of the ReplicaSet controller.
//
// An application may write a cost of its own, as Kubernetes documents it. It decides inside a subset: within is added
// to the cost, or the pods get their seats in that order.
//
// A spread that behaves as OpenKruise's has OpenKruise's costs, also with percentages, minimums and weights. There a
// pod is of an older revision if its Deployment rolls out another one; see Roster.Latest. The order of the subsets is
// then the other way round:
//
//	                               latest revision     older revision
//	kept                            100·(n−i)           100·(i+1)
//	over quota                     −100·(i+1)          −100·(n−i)
//	no subset                      −100·(n+1)          −100·(n+1)
func (r *Roster) Costs() []PodCost { return r.costs(func(PodCost) bool { return true }) }

// WrongCosts are those of Costs that differ from what the pods carry.
func (r *Roster) WrongCosts() []PodCost {
	return r.costs(func(c PodCost) bool {
		return c.Pod.Cost == nil || *c.Pod.Cost != c.Cost || c.Pod.AskedBefore != c.Asked
	})
}

// Costs is Roster.Costs of these pods.
func (p *Policy) Costs(plan *Plan, pods []Pod, spread string) []PodCost {
	return p.rosterOf(plan, pods, spread).Costs()
}

// costs are those that are wanted, sorted by the names of the pods.
func (r *Roster) costs(wanted func(PodCost) bool) (list []PodCost) {
	// group is the pods of one controller in one subset, of its newest revision and within quota or with seats. Their
	// costs depend on each other.
	type group struct {
		owner  types.UID
		subset int
	}
	give := func(m *Member, cost int32) {
		if c := (PodCost{&m.Pod, cost, m.asked}); wanted(c) {
			list = append(list, c)
		}
	}
	giveAt := func(m *Member, cost int32) { give(m, cost+within(m.asked)) }
	p, counted, groups := r.policy, r.count(), map[group][]*Member{}
	for _, m := range counted.live {
		switch {
		case m.CostIgnored:
		case p.Kruise:
			give(m, r.costAsKruise(m))
		case r.isOlder(m):
			giveAt(m, -100*int32(len(p.Subsets)+2))
		case m.Subset == None, counted.over[m] && !p.graded(m.Subset):
			giveAt(m, p.surplusCost(m.Subset))
		default:
			of := group{m.Owner, m.Subset}
			groups[of] = append(groups[of], m)
		}
	}
	for of, pods := range groups {
		alone := func(m *Member) bool { return counted.onNode[m.NodeName] == 1 } // should be deleted first
		if p.graded(of.subset) {
			rank := func(m *Member) int32 {
				if alone(m) {
					return 2*within(m.asked) - 1
				}
				return 2 * within(m.asked)
			}
			slices.SortFunc(pods, func(a, b *Member) int { return cmp.Compare(rank(b), rank(a)) })
			for first := 0; first < len(pods); {
				end := first + 1
				for end < len(pods) && rank(pods[end]) == rank(pods[first]) {
					end++
				}
				p.seat(of.subset, int32(first+1), pods[first:end], give)
				first = end
			}
			continue
		}
		discount := int32(1)
		if !slices.ContainsFunc(pods, func(m *Member) bool { return !alone(m) }) {
			discount = 0 // it would cost writes and change nothing
		}
		for _, m := range pods {
			cost := p.DeletionCost(of.subset, 1)
			if alone(m) {
				cost -= discount
			}
			giveAt(m, cost)
		}
	}
	slices.SortFunc(list, func(a, b PodCost) int {
		return cmp.Or(cmp.Compare(a.Pod.Name, b.Pod.Name), cmp.Compare(a.Pod.UID, b.Pod.UID))
	})
	return list
}

// asked is the cost that the application of a pod asks for, 0 if it asks for none: a cost that Berth does not write, or
// the one that Berth has noted when it replaced that.
func (p *Policy) asked(pod *Pod) int32 {
	switch {
	case p.Kruise || pod.Cost == nil:
		return 0
	case p.writes(*pod.Cost) || p.writes(*pod.Cost-within(pod.AskedBefore)):
		return pod.AskedBefore
	default:
		return *pod.Cost
	}
}

// writes is true for a cost that Berth writes if the application asks for none.
func (p *Policy) writes(cost int32) bool {
	n := int32(len(p.Subsets))
	isBase := func(base int32) bool { return base != 0 && base%100 == 0 && -100*(n+2) <= base && base <= 100*n }
	return isBase(cost) || cost > 0 && isBase(cost+1) || firstSeatCost-firstLateSeat-lateSeats*n <= cost && cost < firstSeatCost
}

// within is the order of costs that applications ask for, from -44 to 44, so that it does not mix the costs of subsets.
// It is exact up to 16, and goes by powers of two beyond.
func within(asked int32) int32 {
	size := min(max(int64(asked), -int64(asked)), math.MaxInt32)
	if size > 16 {
		size = 12 + int64(bits.Len64(uint64(size)))
	}
	if asked < 0 {
		return -int32(size)
	}
	return int32(size)
}

// isOlder is true for a pod of an older revision; see Costs.
func (r *Roster) isOlder(m *Member) bool {
	if r.policy.Kruise {
		return r.Latest != "" && m.Revision != r.Latest
	}
	return len(r.policy.Subsets) > 1 && m.Revision != r.count().newest[m.Owner].Revision
}

// seat gives the seats of a subset from an ordinal on to as many pods. A pod whose cost names one of these seats keeps
// it, and the others get the rest in the order of keepBefore.
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

// DeletionCost is the cost of a pod that is within quota or in no subset, and of no older revision. The pod is the
// ordinal-th of its subset to be kept, counted from 1. The ordinal matters if there are percentages, minimums or
// weights.
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
