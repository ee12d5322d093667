package moves

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	"github.com/berth-project/berth/pkg/subset"
)

// Facts are what is known of one spread at one moment.
type Facts struct {
	// Name of the spread.
	Name string
	// Policy of the spread.
	Policy *subset.Policy
	// Replicas that the workload asks for.
	Replicas int32
	// Pods that the spread divides, in any order.
	Pods []Pod
	// Paused is true if nothing may be moved.
	Paused bool
	// Moves and Misplaced are what the status of the spread remembers of earlier cycles. They are not changed.
	Moves     []v1alpha1.Move
	Misplaced *v1alpha1.Misplaced
	// Subsets are what the status says of each subset, by name. Admission goes by it.
	Subsets []v1alpha1.SubsetStatus
	// SchedulableSince is since when no pod has waited in each subset for a node; zero if one does. A subset that it does not reach counts as
	// schedulable since ever.
	SchedulableSince []time.Time
	// Moved are the directions in which pods of the spread were moved in this cycle.
	Moved Direction
	// Now is the time of the decision.
	Now time.Time
}

// Direction of moves, as a set.
type Direction uint8

const (
	// Away from a subset that has no node, or no quota, for a pod.
	Away Direction = 1 << iota
	// Home to an earlier subset.
	Home
)

// Pod is a pod of a spread, as far as moving it is concerned.
type Pod struct {
	subset.Pod
	// UnschedulableSince is since when the scheduler has found no node for the pod. Zero if it has one, was not tried, is gated, or waits for
	// a slot or for others that it preempts.
	UnschedulableSince time.Time
	// BoundSince is since when it has a node. Zero if it has none.
	BoundSince time.Time
}

// Move is one eviction.
type Move struct {
	Pod *Pod
	// From is the subset that the pod is in, and To the one that a pod made in its place will go to, which admission decides if the spread binds early;
	// each subset.None for none.
	From, To int
	// Room is what was found there. Without HasRoom the pod is moved all the same, and the one made in its place may have to wait.
	Room   Room
	Reason v1alpha1.Reason
}

// Held is a pod that should be elsewhere and stays.
type Held struct {
	// Pod is nil if all pods of the spread are held for the same reason.
	Pod *Pod
	// From is the subset that the pod is in.
	From   int
	Reason v1alpha1.Reason
	// Until is when to ask again; zero if that is not known.
	Until time.Time
}

// Decision is what to do about a spread in one cycle.
type Decision struct {
	// Moves in the order in which to make them.
	Moves []Move
	Held  []Held
	// Misplaced is what the status is to remember from now on, if Remembers is true. Only Trim decides that.
	Misplaced *v1alpha1.Misplaced
	Remembers bool
	// candidates is how many pods could have been moved, by the subset they are in.
	candidates map[int]int32
	// cameBack are the subsets that pods have come back to since they were last moved from there, by where they were to go.
	cameBack map[pair]bool
	pace     Pace
}

// Room is the answer of the scheduler's filters.
type Room uint8

const (
	// NoRoom: no node takes the pod.
	NoRoom Room = iota
	// RoomUnknown: it takes more than the filters to say.
	RoomUnknown
	// HasRoom: a node takes the pod.
	HasRoom
)

// Cluster answers what can be said of a pod only by looking at the cluster. What it grants stays taken for the rest of the cycle.
type Cluster interface {
	// Room says whether a node of the subset, or any node for subset.None, takes a pod made in this one's place when this one is gone. If there
	// is room, it is taken, and the pod's own place is free.
	Room(pod *Pod, in int) Room
	// Spares is empty if the pod may be evicted now, and otherwise why not. It takes nothing.
	Spares(pod *Pod) v1alpha1.Reason
	// Take counts the pod as evicted against what Spares looks at.
	Take(pod *Pod)
}

// flightTime is how long a pod counts as gone that was to be evicted and is still there. An eviction takes no longer than that: whoever was to do
// it has failed.
const flightTime = 2 * time.Minute

// gone are the pods that are being evicted.
func (f *Facts) gone() map[types.UID]bool {
	gone := map[types.UID]bool{}
	for i := range f.Moves {
		for j := range f.Moves[i].InFlight {
			if pod := &f.Moves[i].InFlight[j]; f.flies(pod) {
				gone[pod.UID] = true
			}
		}
	}
	return gone
}

func (f *Facts) flies(pod *v1alpha1.PodInFlight) bool { return f.Now.Sub(pod.Time.Time) < flightTime }

// present are the active pods that nobody is evicting, in no order.
func (f *Facts) present() []*Pod {
	gone := f.gone()
	var pods []*Pod
	for i := range f.Pods {
		if pod := &f.Pods[i]; pod.Active && !gone[pod.UID] {
			pods = append(pods, pod)
		}
	}
	return pods
}

func observed(pods []*Pod) []subset.Pod {
	plain := make([]subset.Pod, len(pods))
	for i, pod := range pods {
		plain[i] = pod.Pod
	}
	return plain
}

// isRollingOut is true if there are pods of several revisions.
func isRollingOut(pods []*Pod) bool {
	return slices.ContainsFunc(pods, func(pod *Pod) bool { return pod.Revision != pods[0].Revision })
}

// ready is how many pods serve.
func ready(pods []*Pod) (n int32) {
	for _, pod := range pods {
		if pod.NodeName != "" && pod.Ready {
			n++
		}
	}
	return n
}

// before is the order in which pods of one subset are moved: those that do not serve, then those that cost less to delete, then those that have been
// there for longest. UIDs make the order total.
func before(a, b *Pod) int {
	if a.Ready != b.Ready {
		if b.Ready {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(costOf(a), costOf(b)), a.BoundSince.Compare(b.BoundSince), a.Created.Compare(b.Created),
		cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
}

// costOf is 0 for a pod without a deletion cost, as it is for the ReplicaSet controller.
func costOf(pod *Pod) int32 {
	if pod.Cost == nil {
		return 0
	}
	return *pod.Cost
}

// all is the decision to hold every pod for one reason.
func all(reason v1alpha1.Reason, until time.Time) Decision {
	return Decision{Held: []Held{{From: subset.None, Reason: reason, Until: until}}}
}
