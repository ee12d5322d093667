package moves

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
)

// setIn are the pods of a StatefulSet, by ordinal, in subsets a, b and so on. A - is a pod of no subset.
func setIn(layout string) []Pod {
	pods := make([]Pod, len(layout))
	for i, in := range layout {
		name := fmt.Sprintf("db-%d", i)
		if pods[i] = bound(name, string(in), time.Hour-time.Duration(i)); in == '-' {
			pods[i].Record.Subset, pods[i].Node = "", node("elsewhere")
		}
		pods[i].Position = int32(i) + 1
	}
	return pods
}

func TestPodsOfAStatefulSetReturnToTheirHome(t *testing.T) {
	room := map[int]int{0: 9, 1: 9, 2: 9}
	tests := map[string]struct {
		strategy v1beta1.ScheduleStrategy
		quotas   []int
		pods     string
		places   map[int]int
		want     []string
		wantHeld map[string]v1beta1.Reason
	}{
		"with every pod at home nothing moves":                          {quotas: []int{2, -1}, pods: "aabb", places: room},
		"a pod at home stays there although an earlier subset has room": {quotas: []int{2, -1}, pods: "babb", places: room, want: []string{"db-0 1>0 EarlierSubsetHasRoom"}},
		"a pod in front of its home leaves room for a lower ordinal": {quotas: []int{2, -1}, pods: "bbaa", places: room,
			want: []string{"db-2 0>1 EarlierSubsetHasRoom"}, wantHeld: map[string]v1beta1.Reason{"db-3": v1beta1.ReasonLimitReached}},
		"a home without a slot is waited for":        {quotas: []int{1, 1}, pods: "ba", places: room},
		"a pod beyond all quotas stays":              {quotas: []int{1, 1}, pods: "ab-", places: room},
		"a pod of no subset returns":                 {quotas: []int{1, 2}, pods: "ab-", places: room, want: []string{"db-2 -1>1 EarlierSubsetHasRoom"}},
		"a home without a node is waited for":        {strategy: adaptive, quotas: []int{1, 1, -1}, pods: "acc", places: map[int]int{0: 9, 2: 9}, wantHeld: map[string]v1beta1.Reason{"db-1": v1beta1.ReasonNoRoom}},
		"a spilled pod returns when there is a node": {strategy: adaptive, quotas: []int{1, 1, -1}, pods: "acc", places: room, want: []string{"db-1 2>1 EarlierSubsetHasRoom"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pods := setIn(tc.pods)
			f := &Facts{Name: "web", Policy: policy(t, tc.strategy, tc.quotas...), Replicas: int32(len(pods)), Pods: pods, Now: start}
			check(t, Return(f, returnLimits, &rooms{places: tc.places}), tc.want, tc.wantHeld)
		})
	}
}

// Cycle after cycle the pods return, until each is at home, and then nothing moves.
func TestReturnsEndWhenEachPodIsAtHome(t *testing.T) {
	p := policy(t, v1beta1.ScheduleStrategy{}, 2, 3, -1)
	pods := setIn("ccbbaacc")
	want := "aabbbccc"
	f := &Facts{Name: "web", Policy: p, Replicas: int32(len(pods)), Pods: pods, Now: start}
	layout := func() (s string) {
		for i := range f.Pods {
			s += f.Pods[i].Record.Subset
		}
		return s
	}
	for cycle := 0; layout() != want; cycle++ {
		d := Return(f, returnLimits, &rooms{places: map[int]int{0: 9, 1: 9, 2: 9}})
		if len(d.Moves) != 1 || cycle > len(pods) {
			t.Fatalf("in cycle %d the pods are in %s, and these move: %+v", cycle, layout(), d)
		}
		f.Moves = f.Record(&d)
		for i := range f.Moves {
			f.Moves[i].InFlight = nil
		}
		d.Moves[0].Pod.Record = &subset.Record{Spread: "web", Subset: p.Subsets[d.Moves[0].To].Name}
		f.Now = f.Now.Add(time.Hour)
	}
	if d := Return(f, returnLimits, &rooms{places: map[int]int{0: 9, 1: 9, 2: 9}}); len(d.Moves)+len(d.Held) > 0 {
		t.Errorf("with each pod at home: %+v", d)
	}
}

// After a lowered quota the highest ordinals leave, although a rolling update has made them first.
func TestTrimMovesTheHighestOrdinals(t *testing.T) {
	pods := setIn("aaab")
	for i := range pods {
		pods[i].Created = start.Add(-time.Duration(i) * time.Minute)
	}
	f := &Facts{Name: "web", Policy: policy(t, v1beta1.ScheduleStrategy{}, 2, -1), Replicas: 4, Pods: pods, Misplaced: &v1beta1.Misplaced{Pods: 9, Since: metav1.NewTime(start.Add(-time.Hour))}, Now: start}
	check(t, Trim(f, trimLimits, &rooms{places: map[int]int{0: 9, 1: 9}}), []string{"db-2 0>1 OverQuota"}, nil)
}
