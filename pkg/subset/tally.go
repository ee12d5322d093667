package subset

import (
	"maps"
	"slices"
)

// Counts are the pods that hold a slot in each subset of one quota scope. Nil counts nothing.
type Counts []int32

// At is the count of a subset. It is 0 for nil Counts and for None.
func (c Counts) At(subset int) int32 {
	if subset < 0 || subset >= len(c) {
		return 0
	}
	return c[subset]
}

func (c Counts) sum() (n int32) {
	for _, pods := range c {
		n += pods
	}
	return n
}

// OverQuota is how many of the counted pods are above the quotas of their subsets. Lent pods are not, as long as there
// are no more pods than replicas.
func (p *Policy) OverQuota(plan *Plan, kept Counts) int32 {
	var over int32
	for i, quota := range plan.Quota {
		if quota != NoLimit {
			over += max(kept.At(i)-quota, 0)
		}
	}
	if p.lends {
		over = min(over, max(kept.sum()-plan.Replicas, 0))
	}
	return over
}

// Tally counts the pods that hold a slot, by quota scope and subset. The zero value is not usable; see NewTally. It is
// not safe for concurrent use.
type Tally struct {
	subsets int
	scopes  map[string]Counts
}

// NewTally is an empty tally for the subsets of the policy.
func (p *Policy) NewTally() *Tally {
	return &Tally{subsets: len(p.Subsets), scopes: map[string]Counts{}}
}

// Count tallies the pods of a spread that hold a slot.
func (p *Policy) Count(pods []Pod, spread string) *Tally {
	tally := p.NewTally()
	for i := range pods {
		if !p.HoldsSlot(&pods[i]) {
			continue
		}
		if subset, _ := p.SubsetOf(&pods[i], spread); subset != None {
			tally.Add(p.ScopeOf(pods[i].Revision), subset)
		}
	}
	return tally
}

// Kept are the counts of a scope. The caller must not change them. They change with the tally.
func (t *Tally) Kept(scope string) Counts { return t.scopes[scope] }

// Total is the sum over all scopes, in a new slice.
func (t *Tally) Total() Counts {
	total := make(Counts, t.subsets)
	for _, counts := range t.scopes {
		for i, n := range counts {
			total[i] += n
		}
	}
	return total
}

// Scopes lists the scopes that hold a pod, in no particular order.
func (t *Tally) Scopes() []string {
	return slices.Collect(maps.Keys(t.scopes))
}

// Add takes a slot. None takes nothing.
func (t *Tally) Add(scope string, subset int) { t.change(scope, subset, 1) }

// Remove gives back a slot that Add took. None gives back nothing. The tally forgets a scope without pods, so that old
// revisions leave nothing behind.
func (t *Tally) Remove(scope string, subset int) { t.change(scope, subset, -1) }

func (t *Tally) change(scope string, subset int, by int32) {
	if subset == None {
		return
	}
	counts := t.scopes[scope]
	if counts == nil {
		counts = make(Counts, t.subsets)
		t.scopes[scope] = counts
	}
	counts[subset] += by
	for _, n := range counts {
		if n != 0 {
			return
		}
	}
	delete(t.scopes, scope)
}

// Clone is an independent copy.
func (t *Tally) Clone() *Tally {
	clone := &Tally{subsets: t.subsets, scopes: maps.Clone(t.scopes)}
	for scope, counts := range clone.scopes {
		clone.scopes[scope] = append(Counts(nil), counts...)
	}
	return clone
}
