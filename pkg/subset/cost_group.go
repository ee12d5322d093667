package subset

import (
	"iter"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// band is the costs of pods that all cost the same. Pods that are alone on their nodes get a discount, unless all of them are alone: then a discount
// would cost writes and change nothing.
type band struct {
	shared, alone, aloneDiscounted priced
}

var _ costs = &band{}

// priced are pods that should have the same cost, and those of them that do not.
type priced struct {
	cost   int32
	pods   map[types.UID]*Member
	others map[types.UID]*Member
}

func newBand(cost, discount int32) *band {
	at := func(cost int32) priced {
		return priced{cost: cost, pods: map[types.UID]*Member{}, others: map[types.UID]*Member{}}
	}
	return &band{shared: at(cost), alone: at(cost), aloneDiscounted: at(cost - discount)}
}

func (p *priced) add(m *Member) {
	p.pods[m.UID] = m
	if m.Cost == nil || *m.Cost != p.cost {
		p.others[m.UID] = m
	}
}

func (p *priced) remove(m *Member) {
	delete(p.pods, m.UID)
	delete(p.others, m.UID)
}

func (p *priced) list(pods map[types.UID]*Member) []PodCost {
	list := make([]PodCost, 0, len(pods))
	for _, m := range pods {
		list = append(list, PodCost{&m.Pod, p.cost})
	}
	return list
}

func (b *band) add(m *Member, alone bool) {
	if !alone {
		b.shared.add(m)
		return
	}
	b.alone.add(m)
	b.aloneDiscounted.add(m)
}

func (b *band) remove(m *Member, alone bool) {
	if !alone {
		b.shared.remove(m)
		return
	}
	b.alone.remove(m)
	b.aloneDiscounted.remove(m)
}

func (b *band) empty() bool { return len(b.shared.pods)+len(b.alone.pods) == 0 }

// ofAlone is the cost of pods that are alone now.
func (b *band) ofAlone() *priced {
	if len(b.shared.pods) > 0 {
		return &b.aloneDiscounted
	}
	return &b.alone
}

func (b *band) all() []PodCost {
	alone := b.ofAlone()
	return append(b.shared.list(b.shared.pods), alone.list(alone.pods)...)
}

func (b *band) wrong() []PodCost {
	alone := b.ofAlone()
	return append(b.shared.list(b.shared.others), alone.list(alone.others)...)
}

// rows are the costs of pods by seats. Pods that are alone on their nodes should be deleted first, so there are two rows: pods that share their nodes
// have the first seats, pods that are alone the seats after them.
type rows struct {
	shared, alone row
}

var _ costs = &rows{}

func newRows(seats *seating, subset int) *rows {
	r := &rows{}
	for _, row := range []*row{&r.shared, &r.alone} {
		row.seats, row.subset = seats, subset
		row.last = row.first - 1
		row.claims, row.standing, row.free = map[int32][]*Member{}, map[types.UID]*Member{}, map[int32]bool{}
	}
	return r
}

func (r *rows) add(m *Member, alone bool)    { r.change(m, alone, (*row).add, 1) }
func (r *rows) remove(m *Member, alone bool) { r.change(m, alone, (*row).remove, -1) }

func (r *rows) change(m *Member, alone bool, change func(*row, *Member), by int32) {
	shared, of := r.shared.length(), r.alone.length()
	if alone {
		of += by
		change(&r.alone, m)
	} else {
		shared += by
		change(&r.shared, m)
	}
	r.shared.stretch(1, shared)
	r.alone.stretch(shared+1, shared+of)
}

func (r *rows) empty() bool { return r.shared.length()+r.alone.length() == 0 }

func (r *rows) all() []PodCost {
	return slices.Concat(r.shared.right(), r.alone.right(), r.shared.newlySeated(), r.alone.newlySeated())
}

// wrong leaves out pods with late seats that have the same cost.
func (r *rows) wrong() []PodCost {
	return slices.DeleteFunc(append(r.shared.newlySeated(), r.alone.newlySeated()...), func(c PodCost) bool { return c.Pod.Cost != nil && *c.Pod.Cost == c.Cost })
}

// row is the seats of a subset from first to last, and as many pods. A seat is named by the ordinal of its pod, from 1.
type row struct {
	seats       *seating
	subset      int
	first, last int32
	// claims are the pods by the seat that their present cost names, in the order of keepBefore. The first of them gets the seat, if the seat is in
	// the row.
	claims map[int32][]*Member
	// standing are the pods without a seat, and free the seats without a pod. Both have the same length.
	standing map[types.UID]*Member
	free     map[int32]bool
}

func (r *row) length() int32            { return r.last - r.first + 1 }
func (r *row) has(ordinal int32) bool   { return r.first <= ordinal && ordinal <= r.last }
func (r *row) cost(ordinal int32) int32 { return r.seats.cost(r.subset, ordinal) }

// add adds a pod. The row must then be stretched by one.
func (r *row) add(m *Member) {
	r.standing[m.UID] = m
	ordinal, says := r.seats.ordinal(r.subset, m.Cost)
	if !says {
		return
	}
	r.giveUp(ordinal)
	claims := r.claims[ordinal]
	at, _ := slices.BinarySearchFunc(claims, m, byKeepBefore)
	r.claims[ordinal] = slices.Insert(claims, at, m)
	r.take(ordinal)
}

// remove undoes add.
func (r *row) remove(m *Member) {
	if ordinal, says := r.seats.ordinal(r.subset, m.Cost); says {
		r.giveUp(ordinal)
		claims := slices.DeleteFunc(r.claims[ordinal], func(other *Member) bool { return other == m })
		if r.claims[ordinal] = claims; len(claims) == 0 {
			delete(r.claims, ordinal)
		}
		r.take(ordinal)
	}
	delete(r.standing, m.UID)
}

func byKeepBefore(a, b *Member) int { return keepBefore(&a.Pod, &b.Pod) }

// take gives a seat of the row to the first pod that claims it, or leaves it free.
func (r *row) take(ordinal int32) {
	if !r.has(ordinal) {
		return
	}
	if claims := r.claims[ordinal]; len(claims) > 0 {
		delete(r.standing, claims[0].UID)
	} else {
		r.free[ordinal] = true
	}
}

// giveUp undoes take.
func (r *row) giveUp(ordinal int32) {
	if !r.has(ordinal) {
		return
	}
	if claims := r.claims[ordinal]; len(claims) > 0 {
		r.standing[claims[0].UID] = claims[0]
	}
	delete(r.free, ordinal)
}

// stretch changes the row to the seats from first to last.
func (r *row) stretch(first, last int32) {
	wasFirst, wasLast := r.first, r.last
	for ordinal := range outside(wasFirst, wasLast, first, last) {
		r.giveUp(ordinal)
	}
	r.first, r.last = first, last
	for ordinal := range outside(first, last, wasFirst, wasLast) {
		r.take(ordinal)
	}
}

// outside are the numbers of one range that are not in another.
func outside(first, last, otherFirst, otherLast int32) iter.Seq[int32] {
	return func(yield func(int32) bool) {
		for n := first; n <= min(last, otherFirst-1); n++ {
			if !yield(n) {
				return
			}
		}
		for n := max(first, otherLast+1, otherFirst); n <= last; n++ {
			if !yield(n) {
				return
			}
		}
	}
}

// right are the costs of the pods with seats.
func (r *row) right() []PodCost {
	var list []PodCost
	for ordinal := r.first; ordinal <= r.last; ordinal++ {
		if claims := r.claims[ordinal]; len(claims) > 0 {
			list = append(list, PodCost{&claims[0].Pod, r.cost(ordinal)})
		}
	}
	return list
}

// newlySeated gives the free seats to the pods without one, both in order, and returns these costs.
func (r *row) newlySeated() []PodCost {
	if len(r.standing) == 0 {
		return nil
	}
	standing := slices.SortedFunc(maps.Values(r.standing), byKeepBefore)
	free := slices.Sorted(maps.Keys(r.free))
	list := make([]PodCost, len(standing))
	for i, m := range standing {
		list[i] = PodCost{&m.Pod, r.cost(free[i])}
	}
	return list
}
