package federation

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berth-project/berth/pkg/allocation"
	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	"github.com/berth-project/berth/test/testkit/worlds"
)

func TestSeatsAreHeld(t *testing.T) {
	room := &Room{At: start, Seats: map[string]int32{"small": 10, "big": 5, "huge": 0}, Bound: map[string]int32{"x": 1, "running": 2}}
	type has struct {
		workload, shape string
		asked           int32
	}
	for name, tc := range map[string]struct {
		has  []has
		want int32
	}{
		"nobody holds seats":                        {nil, 10},
		"replicas without a node hold seats":        {[]has{{"y", "small", 3}}, 7},
		"pods that are in the figure do not":        {[]has{{"running", "small", 3}}, 9},
		"pods that are to end hold nothing":         {[]has{{"running", "small", 1}}, 10},
		"big replicas take the room of two":         {[]has{{"y", "big", 2}}, 6},
		"what the figure has no room for takes all": {[]has{{"y", "huge", 7}}, 0},
		"more than there is room for takes all":     {[]has{{"y", "small", 30}, {"z", "big", 30}}, 0},
		"own replicas are no loss":                  {[]has{{"x", "small", 4}, {"y", "small", 2}}, 9},
		"own replicas of another shape are no loss": {[]has{{"x", "big", 4}, {"y", "small", 2}}, 9},
		"what is about to be asked for is held":     {[]has{{"y", "small", 1}, {"y+", "small", 6}}, 4},
		"so does a shape that it does not know":     {[]has{{"y", "unknown", 6}}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			for _, before := range []bool{true, false} { // held before and after the figure is known
				var s Seats
				if before {
					s.Set("a", "first", "small", 0)
					s.Left("a", "first", "small", room)
				}
				for _, h := range tc.has {
					if h.workload == "y+" {
						s.Raise("a", "y", h.shape, h.asked)
						continue
					}
					s.Set("a", h.workload, h.shape, h.asked)
				}
				got, known := s.Left("a", "x", "small", room)
				if again, _ := s.Left("a", "x", "small", room); !known || got != tc.want || again != got {
					t.Errorf("got %d, then %d, want %d", got, again, tc.want)
				}
			}
		})
	}
	if _, known := (&Seats{}).Left("a", "x", "other", room); known {
		t.Error("a figure of another shape is used")
	}
	var s Seats
	s.Set("a", "y", "small", 3)
	s.Left("a", "x", "small", room)
	s.Forget("y")
	if got, _ := s.Left("a", "x", "small", room); got != 10 {
		t.Errorf("got %d after the workload is gone", got)
	}
}

// TestWorkloadsDoNotCountTheSameRoom plans FederatedReplicaSets of several shapes at the same time, over clusters that report their room late. Writes arrive late and in any order. A cluster
// is never asked for more than it has reported.
func TestWorkloadsDoNotCountTheSameRoom(t *testing.T) {
	worlds.Check(t, "seats", 300, workloadsShareRoom)
}

func workloadsShareRoom(t rapid.TB, random *worlds.History) {
	t.Helper()
	sizes := map[string]int32{"one": 1, "two": 2, "three": 3}
	now := start
	var seats Seats
	var all []*world
	rooms := map[string]int32{"a": int32(random.IntN(30)), "b": int32(random.IntN(30)), "c": int32(random.IntN(30))}
	reported := map[string]*Room{}
	for i := range 2 + random.IntN(6) {
		p := policyOf(int32(1+random.IntN(25)), random.IntN(2) == 0, map[string]Bounds{"*": {Max: allocation.Unlimited, Weight: 1}})
		p.Namespace, p.Shape = fmt.Sprint("ns", i), []string{"one", "two", "three"}[random.IntN(3)]
		w := newWorld(t, nil, p, 0, 0, 0)
		all = append(all, w)
	}
	used := func(cluster int, bound bool) (n int32) {
		for _, w := range all {
			c := w.clusters[cluster]
			if bound {
				n += c.bound() * sizes[w.policy.Shape]
			} else {
				n += c.asked() * sizes[w.policy.Shape]
			}
		}
		return n
	}
	pending := map[*world][]Wanted{}
	write := func(w *world) {
		for _, wanted := range pending[w] {
			if random.IntN(8) > 0 { // or the hub crashes
				w.write(wanted)
			}
		}
		delete(pending, w)
	}
	for range random.Steps(60) {
		now = now.Add(time.Duration(random.IntN(5000)) * time.Millisecond)
		for i, name := range []string{"a", "b", "c"} {
			if reported[name] == nil || random.IntN(3) == 0 {
				reported[name] = &Room{At: now, Seats: map[string]int32{}, Bound: map[string]int32{}}
				for _, w := range all {
					reported[name].Bound[w.policy.Key()] = w.clusters[i].bound()
				}
				for shape, size := range sizes {
					reported[name].Seats[shape] = max(rooms[name]-used(i, true), 0) / size
				}
			}
			// Schedulers bind some pods of some workloads.
			for _, w := range all {
				c := w.clusters[i]
				if c.local == nil || random.IntN(2) == 0 {
					continue
				}
				for len(c.local.Pods) > int(c.local.Replicas) {
					c.local.Pods = c.local.Pods[1:]
				}
				for len(c.local.Pods) < int(c.local.Replicas) {
					c.local.Pods = append(c.local.Pods, Pod{})
				}
				for j := range c.local.Pods {
					if p := &c.local.Pods[j]; !p.Bound && used(i, true)+sizes[w.policy.Shape] <= rooms[name] && random.IntN(3) > 0 {
						p.Bound, p.Available = true, true
					}
				}
			}
		}
		w := all[random.IntN(len(all))]
		if random.IntN(3) == 0 {
			w.policy.Replicas = int32(1 + random.IntN(25))
		}
		write(w) // one worker plans a workload at a time
		w.now = now
		in := w.observe()
		in.Seats = &seats
		for i := range in.Members {
			m := &in.Members[i]
			m.Room = reported[m.Name]
			seats.Set(m.Name, w.policy.Key(), w.policy.Shape, w.clusters[i].asked())
		}
		plan := w.policy.Plan(in)
		w.policy.Hold(&seats, &plan)
		w.status = plan.Status
		pending[w] = plan.Clusters
		for _, other := range all {
			if random.IntN(2) == 0 {
				write(other)
			}
		}
		for i, name := range []string{"a", "b", "c"} {
			if got := used(i, false); got > rooms[name] {
				t.Fatalf("%s is asked for %d and has room for %d", name, got, rooms[name])
			}
		}
	}
}

func TestFiguresThatAreNotUsed(t *testing.T) {
	p := policyOf(50, true, map[string]Bounds{"*": weight(1)})
	fresh := func(seats int32, age time.Duration) *Room {
		return &Room{At: start.Add(-age), Seats: map[string]int32{"s": seats}}
	}
	for name, tc := range map[string]struct {
		rooms [3]*Room
		want  string
	}{
		"figures bound clusters":                                {[3]*Room{fresh(30, 0), fresh(30, 0), fresh(6, 0)}, "22 22 6"},
		"one without a figure does not drop the others'":        {[3]*Room{nil, fresh(30, 0), fresh(6, 0)}, "22 22 6"},
		"an old figure is not used":                             {[3]*Room{fresh(30, 0), fresh(30, 0), fresh(6, 3*time.Minute)}, "16 17 17"},
		"a figure of the future is not used":                    {[3]*Room{fresh(30, 0), fresh(30, 0), fresh(6, -3*time.Minute)}, "16 17 17"},
		"replicas without room do not wait where it is counted": {[3]*Room{fresh(3, 0), fresh(4, 0), fresh(6, 0)}, "3 4 6"},
		"they wait where it is not counted":                     {[3]*Room{nil, fresh(4, 0), fresh(6, 0)}, "40 4 6"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil, p, 100, 100, 100)
			in := w.observe()
			for i := range in.Members {
				in.Members[i].Room = tc.rooms[i]
			}
			plan := p.Plan(in)
			for _, wanted := range plan.Clusters {
				w.write(wanted)
			}
			w.expect(tc.want)
		})
	}
}

// TestAFigureDoesNotEndWhatRuns: the cluster reports no room, and has pods of the workload.
func TestAFigureDoesNotEndWhatRuns(t *testing.T) {
	w := newWorld(t, nil, policyOf(50, false, map[string]Bounds{"*": weight(1)}), 100, 100, 100)
	w.until(time.Minute)
	in := w.observe()
	in.Members[2].Room = &Room{At: w.now, Seats: map[string]int32{"s": 0}}
	plan := w.policy.Plan(in)
	if c := statusOf(&plan.Status, "c"); c.Wanted != 17 || c.Capacity.Replicas != 17 || c.Capacity.Source != v1alpha1.CapacityReported {
		t.Errorf("got %+v", c)
	}
}
