package workload

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

var (
	statefulSet = schema.GroupKind{Group: appsv1.GroupName, Kind: "StatefulSet"}
	// advancedStatefulSet is the StatefulSet of OpenKruise. Some of its ordinals may be reserved: they have no pod.
	advancedStatefulSet = schema.GroupKind{Group: v1beta1.GroupVersion.Group, Kind: "StatefulSet"}
)

// ByOrdinal is true for a kind that gives each pod an ordinal and deletes the highest first.
func ByOrdinal(kind schema.GroupKind) bool { return kind == statefulSet || HidesOrdinals(kind) }

// HidesOrdinals is true for a kind by ordinal of which caches have the metadata only. Whoever needs its ordinals reads
// an object, and calls ReadOrdinals.
func HidesOrdinals(kind schema.GroupKind) bool { return kind == advancedStatefulSet }

// Ordinals are the numbers that a StatefulSet gives to its pods. Nil gives no pod a position.
type Ordinals struct {
	// UID and Generation are those of the object that ReadOrdinals read.
	UID        types.UID
	Generation int64

	// start is the first ordinal.
	start int32
	// reserved are in order and apart. None is below start.
	reserved []reservedOrdinals
	// unusable is true if nobody can say which ordinals are reserved. Then no pod has a position.
	unusable bool
}

// reservedOrdinals are the ordinals from first to last. sum is how many are reserved up to last.
type reservedOrdinals struct{ first, last, sum int32 }

// OrdinalsOf are the ordinals that the controller of a pod gives. They are nil for another kind, and if they are not
// known. Object is the controller, or nil if it is not known; a StatefulSet then counts from 0. Read are the ordinals
// that were read of the workload that the spread names. They count if that is the controller. Nil means that none were
// read.
func OrdinalsOf(controller Owner, object any, read *Ordinals) *Ordinals {
	switch {
	case controller.Kind == statefulSet:
		set, is := object.(*appsv1.StatefulSet)
		if !is {
			return &Ordinals{}
		}
		return &Ordinals{start: FirstOrdinal(set)}
	case HidesOrdinals(controller.Kind) && read != nil && read.UID == controller.UID:
		return read
	default:
		return nil
	}
}

// Position is the place of a pod among the pods of a StatefulSet, from 1: how many ordinals up to its own have a pod.
// It is 0 for a pod that has none: its name is not one that the StatefulSet gives, or its ordinal is below the first,
// or reserved.
//
// The position comes from the name, because nobody can change the name of a pod.
func (o *Ordinals) Position(pod, set string) int32 {
	ordinal, found := OrdinalOf(pod, set)
	if !found || !o.Known() || ordinal < o.start {
		return 0
	}
	below := o.reservedFrom(ordinal)
	if ordinal <= below.last {
		return 0
	}
	return ordinal - o.start + 1 - below.sum
}

// Next is the first ordinal from this one on that has a pod. Known must be true.
func (o *Ordinals) Next(ordinal int32) int32 {
	ordinal = max(ordinal, o.start)
	return max(ordinal, o.reservedFrom(ordinal).last+1)
}

// reservedFrom are the last reserved ordinals that begin at or below an ordinal. Their last one is -1 if there are
// none.
func (o *Ordinals) reservedFrom(ordinal int32) reservedOrdinals {
	if i := sort.Search(len(o.reserved), func(i int) bool { return o.reserved[i].first > ordinal }); i > 0 {
		return o.reserved[i-1]
	}
	return reservedOrdinals{last: -1}
}

// Known is false if pods have no positions, because it is not known which ordinals are reserved.
func (o *Ordinals) Known() bool { return o != nil && !o.unusable }

// mostReserved bounds the entries of spec.reserveOrdinals, because the ordinals are remembered.
const mostReserved = 10_000

// ReadOrdinals are the ordinals of an object of a kind that hides them. An entry of spec.reserveOrdinals is a number,
// or a string with a range as "3-5". With an entry that is neither, or with too many entries, they are unusable.
func ReadOrdinals(object *unstructured.Unstructured) *Ordinals {
	o := &Ordinals{UID: object.GetUID(), Generation: object.GetGeneration()}
	start, hasStart, err := unstructured.NestedFieldNoCopy(object.Object, "spec", "ordinals", "start")
	if hasStart {
		first, is := integer(start)
		o.start, o.unusable = int32(first), !is || first < 0 || first > math.MaxInt32
	}
	list, _, listErr := unstructured.NestedFieldNoCopy(object.Object, "spec", "reserveOrdinals")
	entries, is := list.([]any)
	o.unusable = o.unusable || err != nil || listErr != nil || list != nil && !is || len(entries) > mostReserved
	if o.unusable {
		return o
	}
	var all []reservedOrdinals
	for _, entry := range entries {
		first, last, ok := rangeOf(entry)
		if !ok {
			o.unusable = true
			return o
		}
		// The largest ordinal of a pod is one less than the largest int32; see OrdinalOf.
		if first, last = max(first, int64(o.start)), min(last, math.MaxInt32-1); first <= last {
			all = append(all, reservedOrdinals{first: int32(first), last: int32(last)})
		}
	}
	slices.SortFunc(all, func(a, b reservedOrdinals) int { return cmp.Compare(a.first, b.first) })
	for _, next := range all {
		if n := len(o.reserved); n > 0 && next.first <= o.reserved[n-1].last+1 {
			o.reserved[n-1].last = max(o.reserved[n-1].last, next.last)
		} else {
			o.reserved = append(o.reserved, next)
		}
	}
	var sum int32
	for i := range o.reserved {
		r := &o.reserved[i]
		sum += r.last - r.first + 1
		r.sum = sum
	}
	return o
}

// rangeOf is an entry of spec.reserveOrdinals.
func rangeOf(entry any) (first, last int64, ok bool) {
	if text, is := entry.(string); is {
		from, to, _ := strings.Cut(text, "-")
		first, fromErr := strconv.ParseUint(from, 10, 63)
		last, toErr := strconv.ParseUint(to, 10, 63)
		return int64(first), int64(last), fromErr == nil && toErr == nil && first <= last
	}
	n, ok := integer(entry)
	return n, n, ok
}

// OrdinalOf is the ordinal in the name of a pod of a StatefulSet. It is false for a name that the StatefulSet does not
// give to its pods.
func OrdinalOf(pod, set string) (ordinal int32, found bool) {
	digits, of := strings.CutPrefix(pod, set)
	if !of || len(digits) < 2 || digits[0] != '-' {
		return 0, false
	}
	n, err := strconv.ParseUint(digits[1:], 10, 31)
	return int32(n), err == nil && n < 1<<31-1
}

// FirstOrdinal is spec.ordinals.start; nil means 0.
func FirstOrdinal(set *appsv1.StatefulSet) int32 {
	return ptr.Deref(set.Spec.Ordinals, appsv1.StatefulSetOrdinals{}).Start
}
