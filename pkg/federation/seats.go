package federation

import (
	"sort"
	"time"
)

// Room is how many more pods find a node in a cluster, at one time.
type Room struct {
	// Seats by the shape of pods. A shape that is not in it is not known.
	Seats map[string]int32
	At    time.Time
}

// Seats are the replicas that FederatedReplicaSets have been given in clusters, and that are not part of a figure yet. The adapter keeps one for all of them, and holds a lock while
// it plans and calls Hold, so that two plans do not count the same room. After a restart, Set makes it again from the clusters.
//
// The zero value is empty.
type Seats struct{ clusters map[string]*seated }

// seated are the seats of one cluster.
type seated struct {
	workloads map[string]*holding
	// room is what the following is computed for.
	room *Room
	// shapes are how many seats are held, by shape.
	shapes map[string]int64
	// used is the part of the room that they are, in units of 1/whole.
	used uint64
}

// whole is all of the room of a cluster.
const whole = 1 << 31

type holding struct {
	shape string
	asked int32
	// bound is when its pods got their nodes, in order.
	bound []time.Time
	// held is how many of its replicas are not in the room of the cluster yet.
	held int64
}

// Set says what a FederatedReplicaSet has in a cluster: how many replicas it asks for, and when pods of it got their nodes.
func (s *Seats) Set(cluster, workload, shape string, asked int32, boundAt []time.Time) {
	sort.Slice(boundAt, func(i, j int) bool { return boundAt[i].Before(boundAt[j]) })
	s.put(cluster, workload, &holding{shape: shape, asked: asked, bound: boundAt})
}

// Raise says that a FederatedReplicaSet is about to ask for so many replicas in a cluster. It lowers nothing.
func (s *Seats) Raise(cluster, workload, shape string, asked int32) {
	next := &holding{shape: shape, asked: asked}
	if in := s.clusters[cluster]; in != nil {
		if h := in.workloads[workload]; h != nil {
			next.asked, next.bound = max(asked, h.asked), h.bound
		}
	}
	s.put(cluster, workload, next)
}

// Forget drops all seats of a FederatedReplicaSet.
func (s *Seats) Forget(workload string) {
	for _, in := range s.clusters {
		in.drop(workload)
	}
}

func (s *Seats) put(cluster, workload string, h *holding) {
	if s.clusters == nil {
		s.clusters = map[string]*seated{}
	}
	in := s.clusters[cluster]
	if in == nil {
		in = &seated{workloads: map[string]*holding{}, shapes: map[string]int64{}}
		s.clusters[cluster] = in
	}
	in.drop(workload)
	in.workloads[workload] = h
	h.held = heldOf(h, in.room)
	in.add(h.shape, h.held)
}

// Left is how many replicas of a shape a FederatedReplicaSet may have in a cluster: its pods that are in the figure, and the seats that others do not hold. It is false if the figure does not know
// the shape.
func (s *Seats) Left(cluster, workload, shape string, room *Room) (int32, bool) {
	seats, known := room.Seats[shape]
	if !known {
		return 0, false
	}
	in := s.clusters[cluster]
	if in == nil {
		return seats, true
	}
	in.align(room)
	own := in.workloads[workload]
	if own == nil {
		own = &holding{shape: shape}
	}
	in.add(own.shape, -own.held)
	// Replicas of the same shape count one by one. Of others, what is not a whole seat counts as one.
	same := min(in.shapes[shape], int64(seats))
	others := min(in.used-part(same, seats), whole)
	free := int64(seats)*int64(whole-others)/whole - same
	in.add(own.shape, own.held)
	return int32(max(free, 0) + int64(own.asked) - own.held), true
}

// align computes what is held beside a figure. All figures of a cluster that are used at a time are one.
func (in *seated) align(room *Room) {
	if in.room == room {
		return
	}
	in.room, in.used = room, 0
	clear(in.shapes)
	for _, h := range in.workloads {
		h.held = heldOf(h, room)
		in.add(h.shape, h.held)
	}
}

func (in *seated) drop(workload string) {
	if h := in.workloads[workload]; h != nil {
		in.add(h.shape, -h.held)
		delete(in.workloads, workload)
	}
}

// add changes how many seats of a shape are held.
func (in *seated) add(shape string, n int64) {
	if in.room == nil || n == 0 {
		return
	}
	seats := in.room.Seats[shape]
	in.used -= part(in.shapes[shape], seats)
	in.shapes[shape] += n
	in.used += part(in.shapes[shape], seats)
}

// part is the part of the room that replicas of a shape can take, rounded up. If no more of them find a node, they take nothing.
func part(held int64, seats int32) uint64 {
	if held <= 0 || seats <= 0 {
		return 0
	}
	return uint64((min(held, int64(seats))*whole + int64(seats) - 1) / int64(seats))
}

// heldOf is how many replicas are not in the figure: the figure knows the pods that had a node before its time. Times of pods are whole seconds, rounded down.
func heldOf(h *holding, room *Room) int64 {
	if room == nil {
		return 0
	}
	seen := sort.Search(len(h.bound), func(i int) bool { return h.bound[i].Add(time.Second).After(room.At) })
	return max(int64(h.asked)-int64(seen), 0)
}
