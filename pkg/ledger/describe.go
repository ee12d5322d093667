package ledger

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
)

// describe is an answer with the fields that Describe needs.
func (l *Ledger) describe(e *entry, reason v1beta1.Reason) Answer {
	a := e.account
	return Answer{Reason: reason, Spread: a.active(), Policy: a.policy, Plan: a.plan, Claim: e.index(), Kept: slices.Clone(a.tally.Kept(e.scope))}
}

// Describe says for every subset why it refuses the pod. Why may be nil. It says why no node of a subset fits, or returns an empty string if it does
// not know.
func (a *Answer) Describe(why func(index int) string) string {
	return fmt.Sprintf("WorkloadSpread %q: %s", a.Spread.Name, a.DescribeSubsets(why))
}

// DescribeSubsets is Describe without the name of the spread.
func (a *Answer) DescribeSubsets(why func(index int) string) string {
	parts := make([]string, len(a.Policy.Subsets))
	for i := range parts {
		parts[i] = a.Policy.DescribeSubset(&a.Plan, a.Kept, i)
		if why == nil || i != a.Claim && subset.Free(a.Plan.Quota[i], a.Kept.At(i)) == 0 {
			continue // it is full, whatever its nodes are
		}
		if because := why(i); because != "" {
			parts[i] = a.Policy.Subsets[i].Name + ": " + because
		}
	}
	return strings.Join(parts, "; ")
}
