package allocation

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berth-project/berth/test/testkit/worlds"
)

func TestApproach(t *testing.T) {
	at := func(running, share int32) Place {
		return Place{Asked: running, Running: running, Ready: running, Share: share, Wanted: share}
	}
	for name, tc := range map[string]struct {
		limit  int32
		places []Place
		want   []int32
	}{
		"new replicas come at once":                         {55, []Place{at(0, 16), at(0, 17), at(0, 17)}, []int32{16, 17, 17}},
		"running replicas stay until others are ready":      {55, []Place{at(50, 16), at(0, 17), at(0, 17)}, []int32{50, 5, 0}},
		"as many go as have come":                           {55, []Place{at(50, 16), at(5, 17), at(0, 17)}, []int32{45, 10, 0}},
		"pods without a node go at once":                    {55, []Place{at(16, 22), at(17, 22), {Asked: 17, Running: 6, Ready: 6, Share: 6, Wanted: 6}}, []int32{22, 22, 6}},
		"a place that has to go keeps what others lack":     {11, []Place{at(0, 10), at(10, 0)}, []int32{1, 10}},
		"replicas that do not run go first":                 {25, []Place{at(24, 14), {Asked: 17, Running: 5, Ready: 5, Share: 6, Wanted: 6}}, []int32{15, 6}},
		"what is above the limit is not raised":             {11, []Place{at(15, 15), at(0, 3)}, []int32{15, 0}},
		"of two that go, the ready one stays":               {3, []Place{{Asked: 1, Running: 1}, at(1, 0), at(1, 2)}, []int32{0, 1, 2}},
		"ready ones stay, and then others":                  {5, []Place{{Asked: 2, Running: 2}, at(1, 0), {Asked: 1, Running: 1, Share: 3, Wanted: 3}}, []int32{2, 1, 2}},
		"pods that are not ready take room as well":         {6, []Place{{Asked: 5, Running: 5, Share: 5, Wanted: 5}, at(5, 0)}, []int32{5, 1}},
		"a trial does not keep replicas of others for long": {11, []Place{at(10, 10), {Asked: 1, Running: 1, Wanted: 1}}, []int32{10, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Approach(tc.limit, tc.places)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestApproachArrives lets random places go to random shares, where replicas get a node and become ready or not. The
// sum never exceeds the limit, ready replicas never become fewer than the total because of a move, and if all get
// ready, every place arrives.
func TestApproachArrives(t *testing.T) { worlds.Check(t, "places", 2000, approach) }

func approach(t rapid.TB, r *worlds.History) {
	t.Helper()
	places := make([]Place, 1+r.IntN(5))
	var total, before int32
	for i := range places {
		n, share := int32(r.IntN(12)), int32(r.IntN(12))
		places[i] = Place{Asked: n, Running: n, Ready: n, Share: share, Wanted: share}
		total += share
		before += n
	}
	limit := total + 1 + int32(r.IntN(4))
	running, mayLose := before, false
	if r.IntN(2) == 0 {
		for i := range places {
			places[i].Ready -= int32(r.IntN(int(places[i].Ready) + 1))
		}
		before = readyIn(places)
		mayLose = running > limit && before < running // the total was lowered just now: pods that are wanted stay, ready or not, and others end because of the limit
	}
	for step := 0; ; step++ {
		next := Approach(limit, places)
		var sum, ready int32
		for i := range places {
			p := &places[i]
			p.Asked = next[i]
			if p.Running, p.Ready = min(p.Running, next[i]), min(p.Ready, next[i]); r.IntN(3) > 0 {
				p.Running = next[i]
			}
			sum += next[i]
			ready += p.Ready
		}
		if sum > limit {
			t.Fatalf("%d of %d: %+v", sum, limit, places)
		}
		if ready < min(total, before) && (step > 0 || !mayLose) {
			t.Fatalf("%d ready of %d, and %d were: %+v", ready, total, before, places)
		}
		arrived := true
		for i := range places {
			p := &places[i]
			if step > 100 || r.IntN(3) > 0 {
				p.Ready = p.Running
			}
			arrived = arrived && p.Asked == p.Share && p.Ready == p.Share
		}
		before = min(total, readyIn(places))
		if arrived {
			break
		}
		if step > 200 {
			t.Fatalf("still on the way: %+v", places)
		}
	}
}

func readyIn(places []Place) (n int32) {
	for i := range places {
		n += places[i].Ready
	}
	return n
}

func TestOverflow(t *testing.T) {
	full := func(n int32) Claim { return Claim{Weight: 1, Max: Unlimited, Capacity: n} }
	claims := ordered(full(16), full(17), full(6))
	for name, tc := range map[string]struct{ has, want []int32 }{
		"where they wait":           {[]int32{22, 22, 6}, []int32{22, 22, 6}},
		"by weight, if nowhere yet": {[]int32{16, 17, 6}, []int32{17, 17, 16}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Overflow(50, claims, []int32{16, 17, 6}, tc.has)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}
