package federation

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/berth-project/berth/pkg/allocation"
	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
)

func TestAnotherReplicaSetIsLeftAlone(t *testing.T) {
	w := newWorld(t, nil, policyOf(50, true, map[string]bounds{"*": weight(1)}), 100, 100, 100)
	in := w.observe()
	in.Members[2].Taken = true
	plan := w.policy.Plan(in)
	for _, wanted := range plan.Clusters {
		w.write(wanted)
	}
	w.expect("25 25 0")
	if c := statusOf(&plan.Status, "c"); c.State != v1alpha1.ClusterNameTaken || c.Message == "" {
		t.Errorf("got %+v", c)
	}
}

// TestARefusalCountsOnce until the cluster is to be tried again: otherwise the status would change with each one, and the hub would write at once.
func TestARefusalCountsOnce(t *testing.T) {
	w := newWorld(t, nil, policyOf(50, true, map[string]bounds{"*": weight(1)}), 100, 100, 100)
	w.status = w.policy.Plan(w.observe()).Status
	for _, tc := range []struct {
		after time.Duration
		want  bool
	}{{0, true}, {time.Second, false}, {w.policy.Retry, true}, {w.policy.Retry, false}, {w.policy.Retry, true}} {
		w.now = w.now.Add(tc.after)
		if got := w.policy.Refuse(&w.status, "c", fmt.Sprint("refusal at ", w.now), w.now); got != tc.want {
			t.Errorf("after %s more: it counts: %v", tc.after, got)
		}
	}
	if c := statusOf(&w.status, "c"); c.Capacity.Failures != 3 {
		t.Errorf("got %+v", c)
	}
}

// TestARefusedReplicaSet: the API server of c does not accept the ReplicaSet. Others run its replicas, and it is tried again.
func TestARefusedReplicaSet(t *testing.T) {
	w := newWorld(t, nil, policyOf(50, true, map[string]bounds{"*": weight(1)}), 100, 100, 100)
	plan := w.policy.Plan(w.observe())
	w.status = plan.Status
	w.policy.Refuse(&w.status, "c", "quota", w.now)
	for range 30 {
		w.reconcile(false)
		w.live(5 * time.Second)
	}
	w.expect("25 25 0")
	if c := statusOf(&w.status, "c"); c.State != v1alpha1.ClusterFull || c.Message != "quota" || c.Capacity.Source != v1alpha1.CapacityRefused {
		t.Errorf("got %+v", c)
	}
	w.until(4 * time.Minute)
	w.expect("16 17 17")
}

// TestPodsThatCannotBeCreated count as pods that find no node.
func TestPodsThatCannotBeCreated(t *testing.T) {
	w := newWorld(t, nil, policyOf(50, true, map[string]bounds{"*": weight(1)}), 100, 100, 100)
	w.reconcile(false)
	w.live(time.Second)
	w.live(time.Second)
	c := w.clusters[2]
	c.local.Pods, c.local.FailingSince = c.local.Pods[:6], w.now
	w.now = w.now.Add(time.Minute)
	w.reconcile(false)
	w.expect("22 22 6")
}

func TestNamesThatNoClusterHas(t *testing.T) {
	w := newWorld(t, nil, policyOf(5, true, map[string]bounds{"a": weight(1), "east": weight(1), "z": weight(1), "*": weight(1)}), 100)
	plan := w.policy.Plan(w.observe())
	if diff := cmp.Diff([]string{"east", "z"}, plan.Unknown); diff != "" {
		t.Error(diff)
	}
}

// TestWritesThatLowerComeFirst: c leaves, and a and b get its replicas when there is room below the total.
func TestWritesThatLowerComeFirst(t *testing.T) {
	p := policyOf(6, true, map[string]bounds{"a": {Max: 2, Weight: 1}, "b": weight(1), "d": weight(1)})
	w := newWorld(t, nil, p, 100, 100, 100, 100)
	for i, n := range []int32{4, 2, 2} {
		w.clusters[i].local = &replicaSet{Replicas: n}
	}
	plan := p.Plan(w.observe())
	var got []string
	for _, wanted := range plan.Clusters {
		got = append(got, fmt.Sprint(wanted.Member, wanted.Replicas, wanted.Lowers(), wanted.Replicas > wanted.Before(), wanted.Leaving))
	}
	want := []string{"a2truefalsefalse", "c0truefalsetrue", "b2falsefalsefalse", "d2falsetruefalse"}
	for i := range got {
		got[i] = string(slices.DeleteFunc([]byte(got[i]), func(b byte) bool { return b == ' ' }))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestAClusterThatLeavesIsEmptiedAndForgotten: its replicas go when others are available, and then its ReplicaSet.
func TestAClusterThatLeavesIsEmptiedAndForgotten(t *testing.T) {
	w := newWorld(t, nil, policyOf(12, false, map[string]bounds{"*": weight(1)}), 100, 100, 100)
	w.until(time.Minute)
	w.expect("4 4 4")
	w.policy.Clusters = map[string]bounds{"a": weight(1), "b": weight(1)}
	for range 20 {
		w.reconcile(false)
		w.live(time.Second)
		if w.available() < 12 {
			w.fail("%d are available", w.available())
		}
	}
	w.expect("6 6 0")
	if w.clusters[2].local != nil || statusOf(&w.status, "c") != nil {
		w.fail("c is left")
	}
}

// TestAClusterThatIsNoMemberAnyMore counts as one that does not answer, until it is lost.
func TestAClusterThatIsNoMemberAnyMore(t *testing.T) {
	w := newWorld(t, nil, policyOf(12, false, map[string]bounds{"*": weight(1)}), 100, 100, 100)
	w.until(time.Minute)
	w.clusters = w.clusters[:2]
	w.until(4 * time.Minute)
	w.expect("4 4")
	if w.until(2 * time.Minute); statusOf(&w.status, "c") != nil || w.status.MayExceedBy != 0 {
		w.fail("c is left")
	}
	w.expect("6 6")
}

func TestConditions(t *testing.T) {
	for name, tc := range map[string]struct {
		clusters map[string]bounds
		rooms    []int32
		away     bool
		want     map[string]string
	}{
		"all is as wanted":  {map[string]bounds{"*": weight(1)}, []int32{100, 100}, false, map[string]string{"Ready": "Ready", "Placed": "Placed", "ClustersReachable": "Reachable"}},
		"maximums":          {map[string]bounds{"*": {Max: 2, Weight: 1}}, []int32{100, 100}, false, map[string]string{"Ready": "Unplaced", "Placed": "Unplaced"}},
		"no room":           {map[string]bounds{"*": weight(1)}, []int32{3, 4}, false, map[string]string{"Placed": "Waiting"}},
		"no cluster":        {map[string]bounds{"east": weight(1)}, []int32{100}, false, map[string]string{"Placed": "Unplaced"}},
		"a cluster is away": {map[string]bounds{"*": weight(1)}, []int32{100, 100}, true, map[string]string{"Ready": "Unreachable", "Placed": "Placed", "ClustersReachable": "Unreachable"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil, policyOf(10, false, tc.clusters), tc.rooms...)
			w.until(3 * time.Minute)
			w.setAway(0, tc.away)
			w.until(time.Second)
			for of, reason := range tc.want {
				if c := meta.FindStatusCondition(w.status.Conditions, of); c == nil || c.Reason != reason {
					t.Errorf("%s is %+v, want %s", of, c, reason)
				}
			}
		})
	}
}

// TestOneReplicaIsNotAlwaysInTheSameCluster: names of FederatedReplicaSets decide.
func TestOneReplicaIsNotAlwaysInTheSameCluster(t *testing.T) {
	got := map[string]int{}
	for i := range 60 {
		p := policyOf(1, false, map[string]bounds{"*": {Max: allocation.Unlimited, Weight: 1}})
		p.Name = fmt.Sprint("job-", i)
		w := newWorld(t, nil, p, 100, 100, 100)
		w.reconcile(false)
		got[w.layout()]++
	}
	for _, layout := range []string{"1 0 0", "0 1 0", "0 0 1"} {
		if got[layout] < 10 {
			t.Errorf("%s: %d of 60", layout, got[layout])
		}
	}
}
