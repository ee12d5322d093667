package workload

import (
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
)

// Position is the place of a pod among the pods of its StatefulSet, from 1: its ordinal less the first ordinal, plus one. It is 0 for a pod that has
// none: its controller is of another kind, or its name is not one that the controller gives, or its ordinal is below the first.
//
// The position comes from the name, because nobody can change the name of a pod. Object is the controller, or nil if it is not known. Ordinals then
// count from 0.
func Position(pod string, controller Owner, object any) int32 {
	ordinal, found := OrdinalOf(pod, controller.Name)
	if kind, _ := BuiltIn(controller.Kind); !found || !kind.ByOrdinal {
		return 0
	}
	position := int64(ordinal) + 1
	if set, is := object.(*appsv1.StatefulSet); is {
		position -= int64(FirstOrdinal(set))
	}
	return int32(max(position, 0))
}

// OrdinalOf is the ordinal in the name of a pod of a StatefulSet. It is false for a name that the StatefulSet does not give to its pods.
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
	if set.Spec.Ordinals == nil {
		return 0
	}
	return set.Spec.Ordinals.Start
}
