package budget

import (
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Overlaps is true if both selectors can select the same pod. It is false for selectors without a common label key, because any two of these
// would overlap. A selector without requirements selects every pod, and overlaps with every selector that can select one.
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

// possible is true if some value of the label, or its absence, satisfies all requirements. They all have the same key. No
// requirement compares numbers, because a metav1.LabelSelector has none that does. The time is linear in the number of values, because the author of a budget decides how many there are.
func possible(requirements []labels.Requirement) bool {
	absent, present := true, true
	excluded := sets.New[string]()
	listed, lists := map[string]int{}, 0 // the number of lists that contain each value, and of all lists
	for i := range requirements {
		r := &requirements[i]
		switch r.Operator() {
		case selection.In, selection.Equals:
			absent = false
			lists++
			for value := range r.Values() {
				listed[value]++
			}
		case selection.NotIn, selection.NotEquals:
			excluded.Insert(r.ValuesUnsorted()...)
		case selection.Exists:
			absent = false
		case selection.DoesNotExist:
			present = false
		}
	}
	switch {
	case absent:
		return true
	case !present:
		return false
	case lists == 0:
		return true // some value is not excluded
	}
	for value, in := range listed {
		if in == lists && !excluded.Has(value) {
			return true
		}
	}
	return false
}
