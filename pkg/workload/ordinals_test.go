package workload_test

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
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
			if got := workload.Position(tc.pod, owner, tc.set); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
		})
	}
}
