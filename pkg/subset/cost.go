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

// Costs are the deletion costs of the active bound pods, so that a controller that scales down gives up the cheapest first, and the layout
// stays right whatever number it stops at. With n subsets, i counted from 0:
//
//	kept, quotas are counts         100·(n−i), one less for those that are the workload's only pod on their node
//	                               if others of the subset are not
//	kept, quotas are percentages    1,000,000 − the pod's seat; see seating
//	over quota, counts             −100·(i+1)
//	no subset                      −100·(n+1)
//	older revision                 −100·(n+2)
//
// With percentages a pod over quota is one with a late seat. Its cost does not change when the replicas do: it may be read at any moment of that.
//
// A pod is of an older revision if its own controller has pods of a newer one, as a CloneSet does; the pods of a Deployment's revisions have
// controllers of their own, and each is ranked by itself. Pods whose cost is right keep it, so that as few as possible have to be
// written. A pod that is not ready goes before all others of its controller, without any cost: that is the ReplicaSet controller's rule.
func (p *Policy) Costs(plan *Plan, pods []Pod, spread string) []PodCost {
	overQuota := map[types.UID]bool{}
	for _, excess := range p.Surplus(plan, pods, spread) {
		overQuota[excess.Pod.UID] = excess.Subset != None
	}
	type group struct {
		owner  types.UID
		subset int
	}
	var costs []PodCost
	newest, onNode, kept := map[types.UID]*Pod{}, map[string]int{}, map[group][]*Pod{}
	for i := range pods {
		pod := &pods[i]
		if !pod.Active || pod.NodeName == "" {
			continue
		}
		onNode[pod.NodeName]++
		if n := newest[pod.Owner]; n == nil || cmp.Or(n.Created.Compare(pod.Created), cmp.Compare(n.UID, pod.UID)) < 0 {
			newest[pod.Owner] = pod
		}
	}
	for i := range pods {
		pod := &pods[i]
		if !pod.Active || pod.NodeName == "" {
			continue
		}
		in, _ := p.SubsetOf(pod, spread)
		switch {
		case pod.Revision != newest[pod.Owner].Revision:
			costs = append(costs, PodCost{pod, -100 * int32(len(p.Subsets)+2)})
		case overQuota[pod.UID] && !p.seats.has(in):
			costs = append(costs, PodCost{pod, p.surplusCost(in)})
		default:
			key := group{pod.Owner, in}
			kept[key] = append(kept[key], pod)
		}
	}
	alone := func(pod *Pod) bool { return onNode[pod.NodeName] == 1 }
	for key, here := range kept {
		costs = append(costs, p.keptCosts(key.subset, here, alone)...)
	}
	slices.SortFunc(costs, func(a, b PodCost) int {
		return cmp.Or(cmp.Compare(a.Pod.Name, b.Pod.Name), cmp.Compare(a.Pod.UID, b.Pod.UID))
	})
	return costs
}

// keptCosts are the costs of the pods of one controller that are kept in a subset, or in none.
func (p *Policy) keptCosts(subset int, pods []*Pod, alone func(*Pod) bool) []PodCost {
	var costs []PodCost
	if !p.hasPercent {
		// If all are alone it makes no difference, and costs no write.
		some := subset != None && slices.ContainsFunc(pods, func(pod *Pod) bool { return !alone(pod) })
		for _, pod := range pods {
			cost := p.DeletionCost(subset, 1)
			if some && alone(pod) {
				cost--
			}
			costs = append(costs, PodCost{pod, cost})
		}
		return costs
	}
	// The pods that empty a node have the last seats.
	slices.SortFunc(pods, func(a, b *Pod) int {
		if alone(a) != alone(b) {
			if alone(a) {
				return 1
			}
			return -1
		}
		return keepBefore(a, b)
	})
	shared := slices.IndexFunc(pods, alone)
	if shared == -1 {
		shared = len(pods)
	}
	for first, half := range map[int][]*Pod{0: pods[:shared], shared: pods[shared:]} {
		wanted := map[int32]bool{}
		for i := range half {
			wanted[p.DeletionCost(subset, int32(first+i+1))] = true
		}
		var others []*Pod
		for _, pod := range half {
			if pod.Cost != nil && wanted[*pod.Cost] {
				delete(wanted, *pod.Cost)
				costs = append(costs, PodCost{pod, *pod.Cost})
			} else {
				others = append(others, pod)
			}
		}
		for i := range half {
			if cost := p.DeletionCost(subset, int32(first+i+1)); wanted[cost] {
				delete(wanted, cost)
				costs = append(costs, PodCost{others[0], cost})
				others = others[1:]
			}
		}
		for _, pod := range others { // without a seat of their own all are equal
			costs = append(costs, PodCost{pod, p.DeletionCost(subset, int32(len(pods)))})
		}
	}
	return costs
}

// DeletionCost is the cost of a pod within quota, or without a subset, that is the ordinal-th of its subset to be kept, counted from 1. Only
// percentages look at the ordinal.
func (p *Policy) DeletionCost(subset int, ordinal int32) int32 {
	if p.hasPercent {
		if seat, seated := p.seats.of(subset, max(ordinal, 1)); seated {
			return max(firstSeatCost-seat, 1)
		}
	}
	if subset == None {
		return p.surplusCost(None)
	}
	return 100 * int32(len(p.Subsets)-subset)
}

// firstSeatCost is far above the bands of counts, so that a spread whose quotas become percentages does not mix the two.
const firstSeatCost = 1_000_000

// surplusCost is the cost of a pod over its subset's quota, or of no subset.
func (p *Policy) surplusCost(subset int) int32 {
	if subset == None {
		return -100 * int32(len(p.Subsets)+1)
	}
	return -100 * int32(subset+1)
}

// seating says for each pod of a subset, with quotas in percent, up to which size of the workload it is given up: the pod with seat k is kept
// as long as there are at least k pods.
//
// Let share[i] be the percentage of subset i, and of the one without limit the rest of the hundred. The seats are dealt so that for every number
// K of pods
//
//	floor(share[i]·K / 100) ≤ seats of i up to K ≤ ceil(share[i]·K / 100)
//
// so that each subset is within one pod of its share, and within its quota. That is proportionate fair scheduling on one processor (Baruah,
// Cohen, Plaxton, Varvel 1996): the j-th seat of i may be dealt from floor((j−1)·100/share[i])+1 on and must be by ceil(j·100/share[i]);
// taking always the one that must be first meets every such date because the shares add up to the hundred. After a hundred seats
// everything repeats.
type seating struct {
	// seats of each subset in the first hundred, ascending.
	seats [][]int32
}

const hundred = 100

// newSeating relies on percentages adding up to a hundred, or to less before a last subset without limit, as Compile requires.
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
