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
	as, selectable := a.Requirements()
	bs, alsoSelectable := b.Requirements()
	byKey := map[string][]labels.Requirement{}
	for _, r := range as {
		byKey[r.Key()] = append(byKey[r.Key()], r)
	}
	shared := len(as) == 0 || len(bs) == 0 || slices.ContainsFunc(bs, func(r labels.Requirement) bool { return byKey[r.Key()] != nil })
	for _, r := range bs {
		byKey[r.Key()] = append(byKey[r.Key()], r)
	}
	for _, requirements := range byKey {
		if !possible(requirements) {
			return false
		}
	}
	return selectable && alsoSelectable && shared
}

// possible is true if some value of the label, or its absence, satisfies all requirements. They all have the same key. No requirement compares numbers,
// because a metav1.LabelSelector has none that does. The time is linear in the number of values, because the author of a budget decides how many there are.
func possible(requirements []labels.Requirement) bool {
	absent, present := true, true
	excluded := sets.New[string]()
	var listed sets.Set[string] // the values that each list contains, nil without a list
	for i := range requirements {
		r := &requirements[i]
		switch r.Operator() {
		case selection.In, selection.Equals:
			absent = false
			if values := sets.New(r.ValuesUnsorted()...); listed == nil {
				listed = values
			} else {
				listed = listed.Intersection(values)
			}
		case selection.NotIn, selection.NotEquals:
			excluded.Insert(r.ValuesUnsorted()...)
		case selection.Exists:
			absent = false
		case selection.DoesNotExist:
			present = false
		}
	}
	return absent || present && (listed == nil || listed.Difference(excluded).Len() > 0) // without a list, some value is not excluded
}
