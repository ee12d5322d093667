package budget

import (
	"math"
	"slices"
	"strconv"

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

// possible is true if some value of the label, or its absence, satisfies all requirements. They all have the same key. The time is linear in the
// number of values, because the author of a budget decides how many there are.
func possible(requirements []labels.Requirement) bool {
	d := demand{above: math.MinInt64, below: math.MaxInt64, excluded: sets.New[string]()}
	absent, present := true, true
	listed, lists := map[string]int{}, 0 // the number of lists that contain each value, and of all lists
	for i := range requirements {
		r := &requirements[i]
		switch r.Operator() {
		case selection.In, selection.Equals, selection.DoubleEquals:
			absent = false
			lists++
			for value := range r.Values() {
				listed[value]++
			}
		case selection.NotIn, selection.NotEquals:
			for value := range r.Values() {
				d.excluded.Insert(value)
			}
		case selection.Exists:
			absent = false
		case selection.DoesNotExist:
			present = false
		case selection.GreaterThan, selection.LessThan:
			absent = false
			d.compare(r)
		}
	}
	switch {
	case absent:
		return true
	case !present:
		return false
	case lists == 0:
		return d.leavesAny()
	}
	for value, in := range listed {
		if in == lists && d.fits(value) {
			return true
		}
	}
	return false
}

// demand is what the requirements on one key ask of a value, apart from the lists that must contain it.
type demand struct {
	excluded sets.Set[string]
	// compared: the value must be a number greater than above and less than below.
	compared     bool
	above, below int64
}

func (d *demand) compare(r *labels.Requirement) {
	d.compared = true
	for value := range r.Values() {
		n, err := strconv.ParseInt(value, 10, 64)
		switch {
		case err != nil: // no value fits; package labels does not parse such a requirement
			d.above = math.MaxInt64
		case r.Operator() == selection.GreaterThan:
			d.above = max(d.above, n)
		default:
			d.below = min(d.below, n)
		}
	}
}

func (d *demand) fits(value string) bool {
	if d.excluded.Has(value) {
		return false
	}
	if !d.compared {
		return true
	}
	n, err := strconv.ParseInt(value, 10, 64)
	return err == nil && d.above < n && n < d.below
}

// leavesAny is true if some value fits. For numbers it is enough to try the first ones beyond a bound: one more than there are excluded values.
func (d *demand) leavesAny() bool {
	if !d.compared {
		return true
	}
	n, step := d.above, int64(1)
	if n == math.MinInt64 {
		n, step = d.below, -1
	}
	for range d.excluded.Len() + 1 {
		n += step // an overflow gives the least number, which does not fit
		if d.fits(strconv.FormatInt(n, 10)) {
			return true
		}
	}
	return false
}
