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
//	kept, quotas are counts         100·(n−i), one less for those that are the workload's only pod on their node
//	                               if others of the subset are not
//	kept, quotas are percentages    1,000,000 − the pod's seat; see seating
//	over quota, counts             −100·(i+1)
//	no subset                      −100·(n+1)
//	older revision                 −100·(n+2)
//
// With percentages a pod over quota is one with a late seat. Its cost does not depend on the replicas, so a controller may read it at any time while
// they change.
//
// A pod is of an older revision if its own controller has pods of a newer one, as a CloneSet does. The revisions of a Deployment have a controller
// each, and each controller is ranked by itself. Pods whose cost is right keep it, so that as few pods as possible are written. A pod that is not
// ready is deleted before all others of its controller, whatever its cost: that is a rule of the ReplicaSet controller.
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
	switch {
	case r.isOlder(m):
		return costGroup{m.Owner, m.Subset, ofOlderRevision}
	case m.overQuota && m.Subset != None && !r.policy.seats.has(m.Subset):
		return costGroup{m.Owner, m.Subset, aboveQuota}
	default:
		return costGroup{m.Owner, m.Subset, withinQuota}
	}
}

func (r *Roster) newCosts(of costGroup) costs {
	p := r.policy
	switch {
	case of.class == ofOlderRevision:
		return newBand(-100*int32(len(p.Subsets)+2), 0)
	case of.class == aboveQuota:
		return newBand(p.surplusCost(of.subset), 0)
	case p.seats.has(of.subset):
		return newRows(&p.seats, of.subset)
	case of.subset == None:
		return newBand(p.surplusCost(None), 0)
	default:
		return newBand(p.DeletionCost(of.subset, 1), 1)
	}
}

// DeletionCost is the cost of a pod that is within quota or in no subset. The pod is the ordinal-th of its subset to be kept, counted from 1. Only
// percentages use the ordinal.
func (p *Policy) DeletionCost(subset int, ordinal int32) int32 {
	if p.seats.has(subset) {
		return p.seats.cost(subset, max(ordinal, 1))
	}
	if subset == None {
		return p.surplusCost(None)
	}
	return 100 * int32(len(p.Subsets)-subset)
}

// firstSeatCost is far above the costs of counts, so that they do not mix when the quotas of a spread become percentages.
const firstSeatCost = 1_000_000

// surplusCost is the cost of a pod over its subset's quota, or of no subset.
func (p *Policy) surplusCost(subset int) int32 {
	if subset == None {
		return -100 * int32(len(p.Subsets)+1)
	}
	return -100 * int32(subset+1)
}

// seating says in which order the pods of subsets with percentages are deleted: the pod with seat k is kept as long as there are at least k pods.
//
// Let share[i] be the percentage of subset i; the subset without limit has the rest of the hundred. The seats are dealt so that for every number K of
// pods
//
//	floor(share[i]·K / 100) ≤ seats of i up to K ≤ ceil(share[i]·K / 100)
//
// So each subset is within one pod of its share, and within its quota. This is proportionate fair scheduling on one processor (Baruah, Cohen,
// Plaxton, Varvel 1996): the j-th seat of i may be dealt from floor((j−1)·100/share[i])+1 on and must be dealt by ceil(j·100/share[i]). Taking the
// subset with the earliest deadline meets every deadline, because the shares add up to the hundred. After a hundred seats everything repeats.
type seating struct {
	// seats of each subset in the first hundred, ascending.
	seats [][]int32
}

const hundred = 100

// newSeating relies on percentages that add up to a hundred, or to less before a last subset without limit. Compile requires that.
func newSeating(subsets []Subset) seating {
	shares := make([]int32, len(subsets))
	rest := int32(hundred)
	for i := range subsets {
		shares[i] = rest
		if limit := subsets[i].Limit; limit.kind == percent {
			shares[i] = limit.value
		}
		rest -= shares[i]
	}
	s := seating{seats: make([][]int32, len(subsets))}
	for seat := int32(1); seat <= hundred; seat++ {
		next, earliest := -1, int32(0)
		for i, share := range shares {
			dealt := int32(len(s.seats[i]))
			if share == 0 || dealt*hundred >= share*seat { // not before floor(dealt·100/share)+1
				continue
			}
			if due := ((dealt+1)*hundred + share - 1) / share; next == -1 || due < earliest {
				next, earliest = i, due
			}
		}
		s.seats[next] = append(s.seats[next], seat)
	}
	return s
}

// has is true if the subset has a share.
func (s *seating) has(subset int) bool {
	return subset != None && subset < len(s.seats) && len(s.seats[subset]) > 0
}

// of is the seat of a pod; false if its subset has no share.
func (s *seating) of(subset int, ordinal int32) (seat int32, seated bool) {
	if !s.has(subset) {
		return 0, false
	}
	seats := s.seats[subset]
	round, place := (ordinal-1)/int32(len(seats)), (ordinal-1)%int32(len(seats))
	return hundred*round + seats[place], true
}

// cost of the pod with this ordinal in a subset with a share.
func (s *seating) cost(subset int, ordinal int32) int32 {
	seat, _ := s.of(subset, ordinal)
	return max(firstSeatCost-seat, 1)
}

// ordinal is the ordinal of the pod with this cost in a subset with a share. It is false if no pod has this cost.
func (s *seating) ordinal(subset int, cost *int32) (ordinal int32, found bool) {
	if cost == nil || *cost < 1 || *cost >= firstSeatCost {
		return 0, false
	}
	seat := firstSeatCost - *cost
	round, seats := (seat-1)/hundred, s.seats[subset]
	place, found := slices.BinarySearch(seats, (seat-1)%hundred+1)
	return round*int32(len(seats)) + int32(place) + 1, found
}
