package budget

import (
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Overlaps is true if some pod can be picked by both selectors, as far as that can be said of selectors: those that have no label key in
// common are not judged, because every two such selectors would overlap. A selector without requirements picks every pod and overlaps with
// every selector that picks any.
func Overlaps(a, b labels.Selector) bool {
	as, selectable := requirementsOf(a)
	bs, alsoSelectable := requirementsOf(b)
	if !selectable || !alsoSelectable || !satisfiable(as) || !satisfiable(bs) {
		return false
	}
	if len(as) == 0 || len(bs) == 0 {
		return true
	}
	shared := false
	for key, requirements := range as {
		others, found := bs[key]
		if !found {
			continue
		}
		shared = true
		if !possible(slices.Concat(requirements, others)) {
			return false
		}
	}
	return shared
}

func requirementsOf(s labels.Selector) (map[string][]labels.Requirement, bool) {
	requirements, selectable := s.Requirements()
	byKey := map[string][]labels.Requirement{}
	for _, r := range requirements {
		byKey[r.Key()] = append(byKey[r.Key()], r)
	}
	return byKey, selectable
}

func satisfiable(byKey map[string][]labels.Requirement) bool {
	for _, requirements := range byKey {
		if !possible(requirements) {
			return false
		}
	}
	return true
}

// possible is true if a label with the key of all the requirements, or its absence, satisfies them all. It is enough to try the values that
// they name, one that they do not, none, and numbers next to those of comparisons.
func possible(requirements []labels.Requirement) bool {
	key := requirements[0].Key()
	candidates := sets.New[string]()
	for _, r := range requirements {
		candidates.Insert(r.Values().UnsortedList()...)
		if r.Operator() == selection.GreaterThan || r.Operator() == selection.LessThan {
			for value := range r.Values() {
				if n, err := strconv.ParseInt(value, 10, 64); err == nil {
					candidates.Insert(strconv.FormatInt(n+1, 10), strconv.FormatInt(n-1, 10))
				}
			}
		}
	}
	candidates.Insert(unnamed(candidates))
	fits := func(set labels.Set) bool {
		return !slices.ContainsFunc(requirements, func(r labels.Requirement) bool { return !r.Matches(set) })
	}
	if fits(labels.Set{}) {
		return true
	}
	for value := range candidates {
		if fits(labels.Set{key: value}) {
			return true
		}
	}
	return false
}

// unnamed is a value that is none of the given.
func unnamed(values sets.Set[string]) string {
	for i := 0; ; i++ {
		if value := "v" + strconv.Itoa(i); !values.Has(value) {
			return value
		}
	}
}
