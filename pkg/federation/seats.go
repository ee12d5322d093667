package federation

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
	used int64
}

// whole is all of the room of a cluster.
const whole int64 = 1 << 31

type holding struct {
	shape string
	asked int32
	// held is how many of its replicas are not in the room of the cluster yet.
	held int64
}

// Set says how many replicas a FederatedReplicaSet asks for in a cluster.
func (s *Seats) Set(cluster, workload, shape string, asked int32) {
	if s.clusters == nil {
		s.clusters = map[string]*seated{}
	}
	in := s.clusters[cluster]
	if in == nil {
		in = &seated{workloads: map[string]*holding{}, shapes: map[string]int64{}}
		s.clusters[cluster] = in
	}
	in.drop(workload)
	h := &holding{shape: shape, asked: asked}
	in.workloads[workload] = h
	h.held = in.heldOf(workload)
	in.add(h.shape, h.held)
}

// Raise says that a FederatedReplicaSet is about to ask for so many replicas in a cluster. It lowers nothing.
func (s *Seats) Raise(cluster, workload, shape string, asked int32) {
	if in := s.clusters[cluster]; in != nil && in.workloads[workload] != nil {
		asked = max(asked, in.workloads[workload].asked)
	}
	s.Set(cluster, workload, shape, asked)
}

// Forget drops all seats of a FederatedReplicaSet.
func (s *Seats) Forget(workload string) {
	for _, in := range s.clusters {
		in.drop(workload)
	}
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
	// Replicas of the same shape count one by one. Of others, what is not a whole seat counts as one, but for errors of rounding.
	same := min(in.shapes[shape], int64(seats))
	others := min(in.used-part(same, seats), whole)
	free := int64(seats) - same - (int64(seats)*others+whole-1-whole/1024)/whole
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
	for workload, h := range in.workloads {
		h.held = in.heldOf(workload)
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

// part is the part of the room that replicas of a shape take, rounded up. If the figure has no room for them, that is all of it: they were given room that pods take which are about to end.
func part(held int64, seats int32) int64 {
	if held <= 0 {
		return 0
	}
	if seats <= 0 {
		return whole
	}
	return (min(held, int64(seats))*whole + int64(seats) - 1) / int64(seats)
}

// heldOf is how many replicas of a FederatedReplicaSet had no node when the figure was made.
func (in *seated) heldOf(workload string) int64 {
	if in.room == nil {
		return 0
	}
	return int64(max(in.workloads[workload].asked-in.room.Bound[workload], 0))
}
