package workload_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-project/berth/pkg/workload"
)

func TestPosition(t *testing.T) {
	from := func(start int32) *appsv1.StatefulSet {
		return &appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{Ordinals: &appsv1.StatefulSetOrdinals{Start: start}}}
	}
	for name, tc := range map[string]struct {
		pod, kind string
		set       any
		want      int32
	}{
		"the first ordinal is the first position":           {"db-0", "StatefulSet", &appsv1.StatefulSet{}, 1},
		"ordinals are numbers":                              {"db-10", "StatefulSet", &appsv1.StatefulSet{}, 11},
		"the first ordinal may be another":                  {"db-7", "StatefulSet", from(5), 3},
		"ordinals below the first have no position":         {"db-4", "StatefulSet", from(5), 0},
		"a set that is not known counts from 0":             {"db-4", "StatefulSet", nil, 5},
		"the greatest ordinal does not overflow":            {"db-2147483646", "StatefulSet", nil, 1<<31 - 1},
		"an ordinal that is too great is none":              {"db-2147483647", "StatefulSet", nil, 0},
		"the name of another set is none":                   {"dbx-1", "StatefulSet", nil, 0},
		"a name that goes on after the ordinal is none":     {"db-1-2", "StatefulSet", nil, 0},
		"a name without an ordinal is none":                 {"db-", "StatefulSet", nil, 0},
		"a negative number is none":                         {"db--1", "StatefulSet", nil, 0},
		"pods of a ReplicaSet have no position":             {"db-1", "ReplicaSet", &appsv1.ReplicaSet{}, 0},
		"pods of a Job have no position, indexed or not":    {"db-1", "Job", nil, 0},
		"a kind that is not known to count has no position": {"db-1", "Database", nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			owner := workload.Owner{Kind: schema.GroupKind{Group: "apps", Kind: tc.kind}, Name: "db"}
			if got := workload.OrdinalsOf(owner, tc.set, nil).Position(tc.pod, "db"); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
		})
	}
}

var advanced = workload.Owner{Kind: schema.GroupKind{Group: "apps.kruise.io", Kind: "StatefulSet"}, Name: "db", UID: "db-uid"}

// advancedSet is an advanced StatefulSet with this spec.
func advancedSet(spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "db", "uid": "db-uid"}, "spec": spec}}
}

// The pods that exist have the positions 1, 2, 3 and so on, whatever is reserved between them.
func TestReservedOrdinalsHaveNoPosition(t *testing.T) {
	largest := int64(math.MaxInt32)
	for name, tc := range map[string]struct {
		start    any
		reserved []any
		// want are the first ordinals with a pod, in order. Nil if none has a position.
		want []int32
	}{
		"nothing is reserved":                       {want: []int32{0, 1, 2, 3}},
		"numbers":                                   {reserved: []any{int64(1), int64(3)}, want: []int32{0, 2, 4, 5}},
		"numbers as another decoder has them":       {reserved: []any{float64(1), float64(3)}, want: []int32{0, 2, 4, 5}},
		"ranges":                                    {reserved: []any{"1-3", "5-5"}, want: []int32{0, 4, 6, 7}},
		"the first ordinals":                        {reserved: []any{int64(0), "1-2"}, want: []int32{3, 4, 5}},
		"in any order, twice, and within ranges":    {reserved: []any{int64(7), "2-5", int64(3), "0-2", int64(7), "4-4"}, want: []int32{6, 8, 9}},
		"a range that holds a later one":            {reserved: []any{"1-9", "2-3", int64(11)}, want: []int32{0, 10, 12}},
		"from another start on":                     {start: int64(5), reserved: []any{int64(1), int64(6), "3-5"}, want: []int32{7, 8, 9}},
		"everything below the start":                {start: int64(5), reserved: []any{"0-4"}, want: []int32{5, 6}},
		"far above all pods":                        {reserved: []any{"1000000-2147483647"}, want: []int32{0, 1, 2}},
		"negative numbers, which no pod has":        {reserved: []any{int64(-3), int64(1)}, want: []int32{0, 2, 3}},
		"numbers that no pod has":                   {reserved: []any{largest * 4, fmt.Sprint("5-", largest*4)}, want: []int32{0, 1, 2, 3, 4}},
		"all but the last ordinal":                  {reserved: []any{fmt.Sprint("0-", largest-2)}, want: []int32{math.MaxInt32 - 1}},
		"every ordinal":                             {reserved: []any{fmt.Sprint("0-", largest)}},
		"no list":                                   {reserved: nil, want: []int32{0, 1}},
		"a range that goes down":                    {reserved: []any{"5-3"}},
		"a range without an end":                    {reserved: []any{"3-"}},
		"a range of three numbers":                  {reserved: []any{"1-2-3"}},
		"a range with spaces":                       {reserved: []any{"1 - 2"}},
		"a number in a string, which is no range":   {reserved: []any{"12"}},
		"a range of negative numbers":               {reserved: []any{"-3--1"}},
		"a range of numbers that nobody can count":  {reserved: []any{"1-99999999999999999999"}},
		"garbage after numbers":                     {reserved: []any{int64(1), map[string]any{"a": "b"}}},
		"null":                                      {reserved: []any{nil}},
		"a fraction":                                {reserved: []any{1.5}},
		"a start that is a string":                  {start: "5"},
		"a negative start":                          {start: int64(-1)},
		"a start that is too large for any ordinal": {start: largest + 1},
	} {
		t.Run(name, func(t *testing.T) {
			spec := map[string]any{"reserveOrdinals": tc.reserved}
			if tc.start != nil {
				spec["ordinals"] = map[string]any{"start": tc.start}
			}
			read := workload.ReadOrdinals(advancedSet(spec))
			var found []int32
			candidates := []int32{math.MaxInt32 - 1}
			for ordinal := range int32(20) {
				candidates = append(candidates, ordinal)
			}
			for _, ordinal := range candidates {
				if position := workload.OrdinalsOf(advanced, nil, read).Position(fmt.Sprintf("db-%d", ordinal), "db"); position > 0 && int(position) <= max(len(tc.want), 1) {
					found = append(found, ordinal)
					if want := tc.want[position-1]; ordinal != want {
						t.Errorf("position %d is of ordinal %d, want %d", position, ordinal, want)
					}
				}
			}
			if len(found) != len(tc.want) {
				t.Errorf("ordinals %v have the first positions, want %v", found, tc.want)
			}
			if !read.Known() {
				return
			}
			next := int32(-1)
			for _, want := range tc.want {
				if next = read.Next(next + 1); next != want {
					t.Errorf("the next ordinal is %d, want %d", next, want)
				}
			}
		})
	}
	for name, spec := range map[string]map[string]any{
		"a list that is none":        {"reserveOrdinals": "1-3"},
		"ordinals that are a number": {"ordinals": int64(3)},
	} {
		if read := workload.ReadOrdinals(advancedSet(spec)); read.Known() {
			t.Errorf("%s: pods have positions", name)
		}
	}
	if read := workload.ReadOrdinals(&unstructured.Unstructured{Object: map[string]any{"spec": "none"}}); read.Known() {
		t.Error("a spec that is none: pods have positions")
	}
}

// Ordinals that were read are those of one object: a StatefulSet of the same name that replaces it may reserve others.
func TestReservedOrdinalsAreOfOneObject(t *testing.T) {
	read := workload.ReadOrdinals(advancedSet(map[string]any{}))
	other := advanced
	other.UID = "another"
	for name, got := range map[string]*workload.Ordinals{
		"not read":         workload.OrdinalsOf(advanced, nil, nil),
		"of another":       workload.OrdinalsOf(other, nil, read),
		"of another kind":  workload.OrdinalsOf(workload.Owner{Kind: schema.GroupKind{Group: "apps.kruise.io", Kind: "CloneSet"}, UID: "db-uid"}, nil, read),
		"of another group": workload.OrdinalsOf(workload.Owner{Kind: schema.GroupKind{Group: "example.com", Kind: "StatefulSet"}, UID: "db-uid"}, nil, read),
	} {
		if position := got.Position("db-0", "db"); position != 0 || got.Known() {
			t.Errorf("%s: position %d, want none", name, position)
		}
	}
}

// Anybody may reserve as many ordinals as fit into an object, and each position is asked for again and again.
func TestManyReservedOrdinalsCostNothing(t *testing.T) {
	var singles, ranges []any
	for i := range 100_000 {
		singles = append(singles, int64(2*i))
		if i < 10_000 {
			ranges = append(ranges, fmt.Sprintf("%d-%d", 2*i, 2*i))
		}
	}
	slices.Reverse(ranges)
	began := time.Now()
	if workload.ReadOrdinals(advancedSet(map[string]any{"reserveOrdinals": singles})).Known() {
		t.Error("100,000 entries are remembered")
	}
	many := workload.ReadOrdinals(advancedSet(map[string]any{"reserveOrdinals": ranges}))
	for _, read := range []*workload.Ordinals{many, workload.ReadOrdinals(advancedSet(map[string]any{"reserveOrdinals": []any{"0-2147483647"}}))} {
		for range 100_000 {
			read.Position("db-19999", "db")
		}
	}
	if got := many.Position("db-19999", "db"); got != 10_000 {
		t.Errorf("got position %d, want 10,000", got)
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("took %s", took)
	}
}
