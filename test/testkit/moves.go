// Package testkit is what the tests of several packages begin with: facts about the pods of a spread, and the answers of a cluster. It is imported by
// tests only.
package testkit

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/moves"
	"github.com/berth-project/berth/pkg/subset"
)

// Now is when decisions are made.
var Now = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// Policy of a spread for a Deployment web; spec is the rest of it as YAML.
func Policy(t *testing.T, spec string) *subset.Policy {
	t.Helper()
	full := v1beta1.WorkloadSpreadSpec{TargetReference: v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}}
	if err := yaml.UnmarshalStrict([]byte(spec), &full); err != nil {
		t.Fatal(err)
	}
	policy, errs := subset.Compile(&v1beta1.WorkloadSpread{Spec: full}, field.NewPath("spec"))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return policy
}

// FactsOf are those of spread web whose workload has as many pods as it asks for.
func FactsOf(policy *subset.Policy, pods ...[]moves.Pod) *moves.Facts {
	all := slices.Concat(pods...)
	return &moves.Facts{Name: "web", Policy: policy, Replicas: int32(len(all)), Pods: all, Now: Now}
}

// Running are ready pods in a subset, such as a-0 and a-1, that were bound so long ago.
func Running(in string, count int, since time.Duration) []moves.Pod {
	pods := make([]moves.Pod, count)
	for i := range pods {
		pods[i] = pod(in, i, since)
		pods[i].Record = &subset.Record{Spread: "web", Subset: in}
		pods[i].NodeName, pods[i].Node = "node-"+in, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-" + in}}
		pods[i].Ready, pods[i].BoundSince = true, Now.Add(-since)
	}
	return pods
}

// Waiting are pending pods that admission picked a subset for and that have been unschedulable for so long.
func Waiting(in string, count int, since time.Duration) []moves.Pod {
	pods := make([]moves.Pod, count)
	for i := range pods {
		pods[i] = pod(in, i, since)
		pods[i].Admitted = &subset.Admitted{Spread: "web", Subset: in}
		pods[i].UnschedulableSince = Now.Add(-since)
	}
	return pods
}

func pod(in string, i int, since time.Duration) moves.Pod {
	name := in + "-" + strconv.Itoa(i)
	return moves.Pod{Pod: subset.Pod{Name: name, UID: types.UID(name), Active: true, Created: Now.Add(-since)}}
}

// MovedAgo is what the status remembers of a move so long ago, of which the pods that are there now have come back.
func MovedAgo(from, to string, ago time.Duration) []v1beta1.Move {
	return []v1beta1.Move{{From: from, To: to, Round: 1, Time: metav1.NewTime(Now.Add(-ago))}}
}

// Rooms is a cluster with so many places in each subset, by index. Every pod may be evicted.
type Rooms map[int]int

var _ moves.Cluster = Rooms{}

// Room implements moves.Cluster.
func (r Rooms) Room(_ *moves.Pod, in int) moves.Room {
	if r[in] == 0 {
		return moves.NoRoom
	}
	r[in]--
	return moves.HasRoom
}

// Spares implements moves.Cluster.
func (Rooms) Spares(*moves.Pod) v1beta1.Reason { return "" }

// Take implements moves.Cluster.
func (Rooms) Take(*moves.Pod) {}

// Summary of a decision, sorted: "a-0>b" for a pod that moves, "a-1 LimitReached" for one that is held, and "* Paused" for all of them.
func Summary(policy *subset.Policy, d moves.Decision) string {
	var words []string
	for _, move := range d.Moves {
		to := "any"
		if move.To != subset.None {
			to = policy.Subsets[move.To].Name
		}
		words = append(words, move.Pod.Name+">"+to)
	}
	for _, held := range d.Held {
		name := "*"
		if held.Pod != nil {
			name = held.Pod.Name
		}
		words = append(words, name+" "+string(held.Reason))
	}
	slices.Sort(words)
	return strings.Join(words, ", ")
}
