package subset

import (
	"slices"
	"sync"
)

// firstSeatCost is far above the costs of pods without a seat, so that they do not mix when the quotas of a spread
// change from counts to percentages.
const firstSeatCost = 1_000_000

// seating is the order in which the subsets get their pods as a workload grows from nothing: at k replicas, seat k goes
// to the subset that is Next for the bounds at k replicas. A pod with seat k is kept as long as there are at least k
// pods.
//
// So a workload that shrinks goes back through the layouts of its growth. These are the targets at every size, unless
// minimums are percentages: at some sizes two minimums then grow at once, and the second waits for the next size.
type seating struct {
	policy *Policy
	// period is after how many seats everything repeats. 0 means never.
	period int32

	mu sync.Mutex // guards what follows
	// at is the subset of each seat that is known, and seats are the seats of each subset, ascending. Seats count from
	// 1.
	at    []uint8
	seats [][]int32
	// ended is true if every subset is full after the seats that are known.
	ended bool
}

const (
	// hundred is after how many seats percentages repeat: each subset then has exactly its percentage.
	hundred = 100
	// mostSeats bounds the memory of a seating that does not repeat. Pods above it have late seats.
	mostSeats = 20_000
	// firstLateSeat is the first seat of pods that their subset would not have as the workload grows. Each subset has
	// lateSeats of them, the first subset in front. The last of them is for all pods beyond.
	firstLateSeat = 500_000
	lateSeats     = 7_000
)

func newSeating(p *Policy) *seating {
	s := &seating{policy: p, seats: make([][]int32, len(p.Subsets))}
	if !slices.ContainsFunc(p.Subsets, func(s Subset) bool { return s.Min.kind != unlimited || s.Weight > 0 && !s.Limit.IsPercent() }) {
		s.period = hundred
		s.extend(hundred)
	}
	return s
}

// repeats is true if the seats repeat. A nil seating has no seats.
func (s *seating) repeats() bool { return s != nil && s.period > 0 }

// has is true if the pods of the subset have seats.
func (s *seating) has(subset int) bool {
	return s != nil && subset != None && (s.period == 0 || len(s.seats[subset]) > 0)
}

// extend makes the first seats known, or as many as there are. The caller holds the mutex, or is the only one who knows
// the seating.
func (s *seating) extend(seats int) {
	seats = min(seats, mostSeats)
	if len(s.at) >= seats || s.ended {
		return
	}
	kept := make(Counts, len(s.seats))
	for i := range s.seats {
		kept[i] = int32(len(s.seats[i]))
	}
	bounds := s.policy.boundsAt(0)
	for len(s.at) < seats {
		seat := int32(len(s.at)) + 1
		bounds.Replicas = seat
		s.policy.setBounds(&bounds)
		next := s.policy.Next(&bounds, kept, Candidate{}, 0)
		if next == None {
			s.ended = true
			return
		}
		kept[next]++
		s.at, s.seats[next] = append(s.at, uint8(next)), append(s.seats[next], seat)
	}
}

// of is the seat of a pod. Its subset has seats, and the pod is the ordinal-th of the subset, counted from 1.
func (s *seating) of(subset int, ordinal int32) int32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	place := ordinal - 1
	if s.period > 0 {
		known := int32(len(s.seats[subset]))
		return s.period*(place/known) + s.seats[subset][place%known]
	}
	for len(s.seats[subset]) <= int(place) && !s.ended && len(s.at) < mostSeats {
		s.extend(2*len(s.at) + hundred)
	}
	if late := place - int32(len(s.seats[subset])); late >= 0 {
		return firstLateSeat + lateSeats*int32(subset) + min(late, lateSeats-1)
	}
	return s.seats[subset][place]
}

// subsetAt is the subset with this seat, counted from 1, or None if every subset is full before. It is false for a seat
// that is not known.
func (s *seating) subsetAt(seat int32) (subset int, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.period > 0 {
		seat = (seat-1)%s.period + 1
	} else if int(seat) > len(s.at) {
		s.extend(max(int(seat), 2*len(s.at)+hundred))
	}
	if int(seat) <= len(s.at) {
		return int(s.at[seat-1]), true
	}
	return None, s.ended
}

// upTo is how many of the first seats each subset has. The seats repeat.
func (s *seating) upTo(seats int32) []int32 {
	counts := make([]int32, len(s.seats))
	rounds, rest := seats/s.period, seats%s.period
	for i, of := range s.seats {
		within, _ := slices.BinarySearch(of, rest+1)
		counts[i] = rounds*int32(len(of)) + int32(within)
	}
	return counts
}

// cost of the pod with this ordinal in a subset that has seats.
func (s *seating) cost(subset int, ordinal int32) int32 {
	return max(firstSeatCost-s.of(subset, ordinal), 1)
}
