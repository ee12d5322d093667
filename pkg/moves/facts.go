package moves

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
)

// Facts are what is known about one spread at one moment.
type Facts struct {
	// Name of the spread.
	Name string
	// Policy of the spread.
	Policy *subset.Policy
	// Replicas that the workload asks for. Quotas in percent are of this number.
	Replicas int32
	// Pods that the spread divides, in any order.
	Pods []Pod
	// Paused is true if nothing may be moved.
	Paused bool
	// Moves and Misplaced are what the spread's status records of earlier cycles. They are not changed.
	Moves     []v1beta1.Move
	Misplaced *v1beta1.Misplaced
	// Subsets are the subset statuses. Admission reads them.
	Subsets []v1beta1.SubsetStatus
	// SchedulableSince is since when no pod of each subset has waited for a node. Zero if a pod waits. Subsets beyond
	// its length count as schedulable all the time.
	SchedulableSince []time.Time
	// Moved are the directions in which pods of the spread were already moved in this cycle.
	Moved Direction
	// Now is the time of the decision.
	Now time.Time
}

// Direction of moves. It is a set of flags.
type Direction uint8

const (
	// Away from a subset that has no node, or no quota, for a pod.
	Away Direction = 1 << iota
	// Home to an earlier subset.
	Home
)

// Pod is a pod of a spread with what matters for moves.
type Pod struct {
	subset.Pod
	// UnschedulableSince is since when the scheduler has found no node for the pod. Zero if it has a node, was not
	// tried, is gated, waits for a slot, or waits for preemption victims.
	UnschedulableSince time.Time
	// BoundSince is since when the pod has a node. Zero if it has none.
	BoundSince time.Time
	// Sole is true if the workload asks for no other pod, and no budget covers this one.
	Sole bool
}

// Move is one eviction.
type Move struct {
	Pod *Pod
	// From is the subset of the pod, and To the one that its replacement will use. If the spread binds early, admission
	// decides about To. Each is subset.None for no subset.
	From, To int
	// Room is what the cluster said about subset To. Without HasRoom the pod is moved in any case, and its replacement
	// may have to wait.
	Room   Room
	Reason v1beta1.Reason
}

// Held is a pod that should be elsewhere and is not moved.
type Held struct {
	// Pod is nil if all pods of the spread are held for the same reason.
	Pod *Pod
	// From is the subset of the pod.
	From   int
	Reason v1beta1.Reason
	// Until is when to check again. Zero if that is not known.
	Until time.Time
}

// Decision is what to do about a spread in one cycle.
type Decision struct {
	// Moves in the order in which to make them.
	Moves []Move
	Held  []Held
	// Misplaced is what the status should record, if Remembers is true. Only Trim decides that.
	Misplaced *v1beta1.Misplaced
	Remembers bool
	// could are the pods that could have been moved, by their subset.
	could map[int][]*Pod
	// cameBack are the subsets to which pods have come back since they were last moved, with the subset that they were
	// moved to.
	cameBack map[pair]bool
	pace     Pace
}

// decide begins a decision about pods that should be elsewhere.
func decide(pace Pace, about []Move) Decision {
	d := Decision{could: map[int][]*Pod{}, cameBack: map[pair]bool{}, pace: pace}
	for _, move := range about {
		d.could[move.From] = append(d.could[move.From], move.Pod)
	}
	return d
}

// Room is the answer of the scheduler's filters.
type Room uint8

const (
	// NoRoom: no node takes the pod.
	NoRoom Room = iota
	// RoomUnknown: the filters alone cannot tell.
	RoomUnknown
	// HasRoom: a node takes the pod.
	HasRoom
)

// Cluster answers questions about a pod that depend on the cluster. What it grants stays taken for the rest of the
// cycle.
type Cluster interface {
	// Room says whether a node of the subset, or any node for subset.None, takes a replacement of the pod once the pod
	// is gone. If one does, Room takes its room. The pod keeps its own room until the end of the cycle, because its
	// eviction may fail.
	Room(pod *Pod, in int) Room
	// Spares is empty if the pod may be evicted now, and otherwise the reason. It takes nothing.
	Spares(pod *Pod) v1beta1.Reason
	// Take counts the pod as evicted for later calls of Spares.
	Take(pod *Pod)
}

// flightTime is how long a pod counts as gone after its eviction was announced. Evictions take less time: if the pod
// still exists then, the eviction has failed.
const flightTime = 2 * time.Minute

// gone are the pods that are being evicted, with the subsets in which their replacements were to be.
func (f *Facts) gone() map[types.UID]int {
	gone := map[types.UID]int{}
	for i := range f.Moves {
		for j := range f.Moves[i].InFlight {
			if pod := &f.Moves[i].InFlight[j]; f.flies(pod) {
				gone[pod.UID] = f.Policy.Index(f.Moves[i].To)
			}
		}
	}
	return gone
}

func (f *Facts) flies(pod *v1beta1.PodInFlight) bool { return f.Now.Sub(pod.Time.Time) < flightTime }

// isActive is true if the pod exists and does not end.
func (f *Facts) isActive(uid types.UID) bool {
	return slices.ContainsFunc(f.Pods, func(pod Pod) bool { return pod.UID == uid && pod.Active })
}

// missing is how many pods the workload has yet to create. It is 0 if only the pods that exist say how many there
// should be.
func (f *Facts) missing() int32 {
	missing := f.asked()
	for i := range f.Pods {
		if f.Pods[i].Active {
			missing--
		}
	}
	return max(missing, 0)
}

// unreplaced is for how many evicted pods the workload may still create replacements in each subset. Nobody knows for
// which of them it has.
func (f *Facts) unreplaced() map[int]int32 {
	missing, of := f.missing(), map[int]int32{}
	for i := range f.Moves {
		to := f.Policy.Index(f.Moves[i].To)
		for j := range f.Moves[i].InFlight {
			if pod := &f.Moves[i].InFlight[j]; f.flies(pod) && !f.isActive(pod.UID) {
				of[to] = min(of[to]+1, missing)
			}
		}
	}
	return of
}

// present are the active pods that are not being evicted, in no particular order.
func (f *Facts) present() []*Pod {
	gone := f.gone()
	var pods []*Pod
	for i := range f.Pods {
		if _, flies := gone[f.Pods[i].UID]; f.Pods[i].Active && !flies {
			pods = append(pods, &f.Pods[i])
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

// asked is how many pods the spread should divide. If the workload does not say it, it is the number of pods that
// exist, with those that are being evicted.
func (f *Facts) asked() (n int32) {
	if !f.Policy.IsPart {
		return f.Replicas
	}
	for i := range f.Pods {
		if f.Pods[i].Active {
			n++
		}
	}
	return n
}

// isRollingOut is true if there are pods of several revisions.
func isRollingOut(pods []*Pod) bool {
	return slices.ContainsFunc(pods, func(pod *Pod) bool { return pod.Revision != pods[0].Revision })
}

// ready is the number of ready pods.
func ready(pods []*Pod) (n int32) {
	for _, pod := range pods {
		if pod.NodeName != "" && pod.Ready {
			n++
		}
	}
	return n
}

// before is the order in which pods of one subset are moved: pods that are not ready first, then those with the lowest
// deletion cost, which is 0 without one, then those that have been bound longest. UIDs break ties.
func before(a, b *Pod) int {
	if a.Ready != b.Ready {
		if b.Ready {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(ptr.Deref(a.Cost, 0), ptr.Deref(b.Cost, 0)), a.BoundSince.Compare(b.BoundSince), a.Created.Compare(b.Created),
		cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
}

// all holds every pod for the same reason.
func all(reason v1beta1.Reason, until time.Time) Decision {
	return Decision{Held: []Held{{From: subset.None, Reason: reason, Until: until}}}
}
