// Package allocation divides a number of replicas over places: the subsets of a spread, the zones of a workload, the
// members of a federation. It is plain data, without client and clock. Begin reading at Divide.
package allocation

import (
	"cmp"
	"container/heap"
	"math"
	"slices"
	"strings"
)

// Unlimited is a maximum or capacity that bounds nothing.
const Unlimited = math.MaxInt32

// Claim is what one place asks for. Negative numbers count as 0.
type Claim struct {
	// Name decides between claims that are equal in all else, so that the order of the slice does not matter.
	Name string
	// Min is filled before any other claim gets more than its own minimum. It is cut to Max and Capacity.
	Min int32
	// Max is the greatest number that the place may have. Its zero value closes the place; Unlimited bounds nothing.
	Max int32
	// Capacity is how many replicas the place can run at present. Its zero value closes the place; Unlimited bounds
	// nothing.
	Capacity int32
	// Weight is the share of the place, in proportion to the weights of the other claims. 0 is no share: if any other
	// claim has a weight, the place gets no more than its minimum and, unless replicas may move, what it has.
	Weight int32
	// Current is how many replicas the place has now. It matters only if replicas may not move.
	Current int32
	// Order is that of minimums, and of everything if no claim has a weight. Lower numbers come first.
	Order int
	// Tie decides between claims whose next replica is due at the same time and whose weights are equal. Lower numbers
	// come first.
	Tie int
}

// room is the upper bound of a claim.
func (c *Claim) room() int32 { return max(min(c.Max, c.Capacity), 0) }

// Divide returns how many of total replicas each claim gets, in the order of the claims. What nobody may take is not in
// the result: the sum is at most total.
//
//  1. Minimums come first, in order.
//  2. Without rebalance each claim then keeps what it has, within its bounds. If this does not fit into the total, what
//     it has is its upper bound.
//  3. The rest goes one by one to the claim with the greatest weight / (2·assigned + 1), as in the method of Webster
//     and Sainte-Laguë. If no claim has a weight, it goes in order.
//  4. Claims without weight keep what is still left of what they have.
func Divide(total int32, claims []Claim, rebalance bool) []int32 {
	d := &division{claims: claims, got: make([]int32, len(claims)), bound: make([]int32, len(claims)), left: max(total, 0)}
	inOrder := d.inOrder()
	for _, i := range inOrder {
		d.bound[i] = claims[i].room()
		d.give(i, min(claims[i].Min, d.bound[i]))
	}
	shrinks := !rebalance && !d.keep()
	weighted := slices.ContainsFunc(claims, func(c Claim) bool { return c.Weight > 0 })
	if weighted {
		d.share()
	}
	if !weighted || shrinks {
		for _, i := range inOrder {
			d.give(i, d.bound[i]-d.got[i])
		}
	}
	return d.got
}

// division is the state of one call of Divide.
type division struct {
	claims []Claim
	// got is what each claim has been given, and bound the most that it may get.
	got, bound []int32
	// left is what nobody has been given.
	left int32
}

func (d *division) inOrder() []int {
	order := make([]int, len(d.claims))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(d.claims[a].Order, d.claims[b].Order), strings.Compare(d.claims[a].Name, d.claims[b].Name))
	})
	return order
}

// give gives the claim n more replicas, or as many as are left.
func (d *division) give(i int, n int32) {
	n = min(max(n, 0), d.left)
	d.got[i] += n
	d.left -= n
}

// keep gives each claim what it has now. It is false if that is more than is left, and then it becomes the bound.
func (d *division) keep() bool {
	kept, more := make([]int32, len(d.claims)), int64(0)
	for i := range d.claims {
		kept[i] = max(d.got[i], min(d.claims[i].Current, d.bound[i]))
		more += int64(kept[i] - d.got[i])
	}
	if more > int64(d.left) {
		d.bound = kept
		return false
	}
	for i := range kept {
		d.give(i, kept[i]-d.got[i])
	}
	return true
}

// share gives what is left by weight.
func (d *division) share() {
	d.jump()
	h := &next{division: d}
	for i := range d.claims {
		if d.wants(i) {
			h.claims = append(h.claims, i)
		}
	}
	heap.Init(h)
	for d.left > 0 && h.Len() > 0 {
		i := h.claims[0]
		d.give(i, 1)
		if d.wants(i) {
			heap.Fix(h, 0)
		} else {
			heap.Pop(h)
		}
	}
}

func (d *division) wants(i int) bool { return d.claims[i].Weight > 0 && d.got[i] < d.bound[i] }

// jump gives at once what the loop in share would give one by one, but for about one replica for each claim. The loop
// gives replicas in falling order of their quotient, weight / (2·assigned + 1). So it gives all replicas with a
// quotient above some number before any other. jump finds such a number by bisection, so that these replicas are not
// more than are left.
func (d *division) jump() {
	tooLow, enough := math.SmallestNonzeroFloat32, float64(math.MaxInt32) // every quotient is between them
	for range 64 {
		if middle := math.Sqrt(tooLow * enough); d.above(middle, nil) > int64(d.left) {
			tooLow = middle
		} else {
			enough = middle
		}
	}
	// One replica of each claim waits for the loop in share, because quotients are rounded here.
	d.above(enough, func(i int, n int32) { d.give(i, n-1) })
}

// above is how many more replicas have a quotient above this one. It calls visit, unless that is nil, with the number
// of each claim.
func (d *division) above(quotient float64, visit func(i int, n int32)) (sum int64) {
	for i := range d.claims {
		if !d.wants(i) {
			continue
		}
		upTo := math.Ceil((float64(d.claims[i].Weight)/quotient - 1) / 2)
		n := int32(min(max(upTo, float64(d.got[i])), float64(d.bound[i]))) - d.got[i]
		sum += int64(n)
		if visit != nil {
			visit(i, n)
		}
	}
	return sum
}

// next is the heap of the claims that want more. The one to get the next replica is on top.
type next struct {
	*division
	claims []int
}

func (h *next) Len() int      { return len(h.claims) }
func (h *next) Swap(i, j int) { h.claims[i], h.claims[j] = h.claims[j], h.claims[i] }
func (h *next) Push(i any)    { h.claims = append(h.claims, i.(int)) }
func (h *next) Pop() any {
	last := h.claims[len(h.claims)-1]
	h.claims = h.claims[:len(h.claims)-1]
	return last
}

// Less is true if claim i gets a replica before claim j.
func (h *next) Less(i, j int) bool {
	a, b := h.claims[i], h.claims[j]
	x, y := &h.division.claims[a], &h.division.claims[b]
	return cmp.Or(CompareShares(x.Weight, h.got[a], y.Weight, h.got[b]), cmp.Compare(x.Tie, y.Tie), strings.Compare(x.Name, y.Name)) < 0
}

// CompareShares compares two claims by which of them is due for the next replica: the one with the greater weight /
// (2·assigned + 1), without rounding; if these are equal, the one with the greater weight. It is negative for the first
// claim, and 0 if both are equal. No number is negative.
func CompareShares(weight, assigned, otherWeight, otherAssigned int32) int {
	return cmp.Or(
		cmp.Compare(uint64(otherWeight)*(2*uint64(assigned)+1), uint64(weight)*(2*uint64(otherAssigned)+1)), // below 2^63
		cmp.Compare(otherWeight, weight))
}
