package ledger

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// Event is something that happened. Any event may come twice or late, and its object may be older than what the ledger knows.
type Event interface{ apply(l *Ledger) }

// What the cluster shows.
type (
	// PodSeen is a pod as an event of a watch shows it.
	PodSeen struct{ Pod *corev1.Pod }
	// PodRead is a pod that was read by itself. The ledger ignores it if it does not know the pod: the pod's end has been reported already.
	PodRead struct{ Pod *corev1.Pod }
	// PodListed is a pod from a list that began after ListBegins. The watch may not have shown it yet.
	PodListed struct{ Pod *corev1.Pod }
	// PodGone says that a pod was deleted or has ended.
	PodGone struct{ UID types.UID }
	// ListBegins makes the ledger remember which pods end until ListEnds, so that no list brings them back.
	ListBegins struct{}
	// ListEnds ends what ListBegins began.
	ListEnds struct{}

	// SpreadsWatched says that a watch of spreads begins, or with Open false that it has ended. Spreads may be created in between.
	SpreadsWatched struct{ Open bool }

	// OwnersListed are all objects of a kind, when it is listed for the first time. They come in one event: if a pod asked in between, it would not know of those
	// siblings whose owners come later.
	OwnersListed struct {
		Kind    schema.GroupKind
		Objects []metav1.Object
	}
	// OwnerSeen is an object that may own pods, directly or through others. Object is a built-in workload, or the metadata of any other kind.
	OwnerSeen struct {
		Kind   schema.GroupKind
		Object metav1.Object
	}
	// OwnerGone says that an owner was deleted.
	OwnerGone struct {
		Kind   schema.GroupKind
		Object metav1.Object
	}
	// KindEndsChain says whether owners of a kind end the owner chain unless they were seen. Owners do if their kind is cluster-scoped or must not be
	// listed.
	KindEndsChain struct {
		Kind schema.GroupKind
		Ends bool
	}
	// ReplicasRead are the replicas of a workload that the caller reads; see Effects.Follow. Known is false if the workload does not exist. Ordinals
	// are nil if they were not read, or if the kind does not hide them.
	ReplicasRead struct {
		Workload Workload
		// Version and Paths are those of the spread that asked. The ledger ignores an answer to an older question.
		Version  string
		Paths    []string
		Replicas int32
		Known    bool
		Ordinals *workload.Ordinals
		// Question is the number of the Question that this answers. 0 if none was asked.
		Question int64
	}
	// OwnerRead answers a Question about a built-in workload. The ledger ignores it if it does not know the object: its end has been reported already.
	OwnerRead struct {
		Kind     schema.GroupKind
		Object   metav1.Object
		Question int64
	}

	// SpreadSeen is a new or changed spread.
	SpreadSeen struct{ Spread *v1beta1.WorkloadSpread }
	// SpreadGone says that a spread was deleted.
	SpreadGone struct{ Key types.NamespacedName }

	// NodeSeen is a new node, or one with new labels.
	NodeSeen struct{ Node *corev1.Node }
	// NodeGone says that a node was deleted.
	NodeGone struct{ Name string }
)

// What the scheduler does with a pod.
type (
	// PodAsks is a pod that asks which subset it may use. If Effects.Check is set, there is no answer yet: the caller checks the nodes of that
	// subset, adds the result to Results, and applies the event again.
	PodAsks struct {
		Pod     *corev1.Pod
		Results CheckResults
		// Try is true for a pod of a group, in a cycle of the whole group, which may be thrown away. The pod then gets no slot before it has found a node; see
		// SlotTried.
		Try bool
		// Place is the one of Effects.Places that the group tries. Nil if the pod may use any subset.
		Place *Decision
	}
	// GroupAsks are the pods of a group that want their slots in one subset, and at once. Effects.Places are those that the group may try, in this order. If
	// there is none and no Answer, each pod asks by itself: they are not divided by the same spread, or their subsets were picked before.
	GroupAsks struct {
		// Group is its name, and Version changes with its spec. Pods are those that look for a node, and With those that have found one.
		Group   types.NamespacedName
		Version string
		Pods    []*corev1.Pod
		With    []types.UID
		// AtLeast is how many of Pods need a slot, from 1 to all. A subset with room for all of them comes first.
		AtLeast int32
	}
	// GroupWaits are the pods of a group for which the scheduler found no nodes, in any place. Those with Berth's gate claim slots of one subset, at least
	// AtLeast of them or none, so that their gates can be opened there, and nodes be made for them. If each pod asks by itself, each waits by itself.
	GroupWaits GroupAsks
	// GroupChanged says that a group of this name was created, or needs another number of slots than before.
	GroupChanged struct{ Group types.NamespacedName }
	// SlotTried is a pod of a group that has found a node in the subset of its decision, in a cycle that may be thrown away. It takes the slot, so that the
	// other pods of its group find it taken. Effects.OK is false if the decision is no longer valid. If the cycle counts, SlotReturned and NodeFound follow.
	SlotTried struct {
		UID      types.UID
		Decision *Decision
	}
	// SlotReturned takes SlotTried back.
	SlotReturned struct{ UID types.UID }
	// NodeFound is a pod that found a node in the subset of its decision. Effects.OK is false if the decision is no longer valid.
	NodeFound struct {
		UID      types.UID
		Decision *Decision
	}
	// NodeLost is a pod that gives its node back before its bind was sent. It keeps its claim, unless it asked with its group. The event has no effect after BindSent.
	NodeLost struct{ UID types.UID }
	// NoNodeFound is a pod for which no node of its decision's subset fits. Effects.Next says what the pod does.
	NoNodeFound struct {
		UID      types.UID
		Decision *Decision
	}
	// Preempted ends a cycle in which NoNodeFound let the pod preempt. Nominated is true if the pod waits for victims to terminate.
	Preempted struct {
		UID       types.UID
		Decision  *Decision
		Nominated bool
	}
	// PodWaits is a pod with Berth's gate that found no node in any subset. It claims the last subset with room, so that its gate can be opened there,
	// and a node be made for it.
	PodWaits struct{ UID types.UID }
	// PodRefused is a pod that another plugin refused before it could ask.
	PodRefused struct{ UID types.UID }
	// ClusterChanged asks whether a pod that waits for any node should be tried because of a change. Effects.OK is the answer. It is true for one pod
	// of each class for each change.
	ClusterChanged struct {
		UID types.UID
		// Change identifies the change. It is comparable.
		Change any
		// Node is where something changed. Nil with OnNode means a deleted node; nil without it means a change that is not about a node.
		Node   *corev1.Node
		OnNode bool
		// Filters is true if nodes that have not changed may take the pod now, although they refused it for themselves.
		Filters bool
	}

	// BindSent is a bind that is about to be sent. If Effects.OK is false, it must not be sent: the pod is gone, or its spread has changed.
	BindSent struct {
		UID      types.UID
		Decision *Decision
	}
	// BindRefused says that the API server certainly did not bind the pod. The pod keeps its claim, unless it asked with its group.
	BindRefused struct{ UID types.UID }
	// BindUnknown is a bind that may have happened, or may still happen until a time. Its slot stays taken until the pod is seen on a node, until it
	// is gone, or until BindDisproved.
	BindUnknown struct {
		UID   types.UID
		Until time.Time
	}
	// BindDisproved is a pod that was read without a node. Binds that could no longer happen when the read began did not happen.
	BindDisproved struct {
		UID    types.UID
		ReadAt time.Time
	}
)

// Events of time.
type (
	// TimePassed is due at Effects.At.
	TimePassed struct{}
	// Audit looks for pods that were woken and had no cycle, and for free slots for which no pod was woken. The caller applies it every
	// AuditInterval.
	Audit struct{}
)

// AuditInterval bounds how long a woken pod may wait for its cycle before another pod is woken: one to two intervals.
const AuditInterval = 30 * time.Second

// Effects are what the caller must carry out after an event, without holding its mutex.
type Effects struct {
	// Answer is for PodAsks, GroupAsks and NoNodeFound.
	Answer Answer
	// Places are for GroupAsks.
	Places []*Decision
	// Check asks for a check of the nodes of a subset; see PodAsks. Nil if Answer is the answer.
	Check *NodeCheck
	// OK is for NodeFound, SlotTried, BindSent and ClusterChanged.
	OK bool
	// Next is for NoNodeFound.
	Next Step
	// Wake are pods that the scheduling queue should try soon.
	Wake []*corev1.Pod
	// Announce is true if the answer should be published as an event: the pod is the first of its spread that has to wait.
	Announce bool
	// Want are kinds of owners that the caller must watch.
	Want []schema.GroupKind
	// Follow are spreads whose workload's replicas, and ordinals if its kind hides them, the caller must read, now and after each change of the workload, and send as ReplicasRead.
	Follow []*v1beta1.WorkloadSpread
	// Read asks for the replicas of workloads as the API server has them now. The caller must answer the latest question about each workload by OwnerRead or ReplicasRead, unless the workload is
	// gone.
	Read []Question
	// Forget are workloads that no spread divides any more.
	Forget []Workload
	// Missed is how many pods an Audit woke that an event should have woken. Above 0 the ledger has a bug.
	Missed int
	// At is when to apply TimePassed, if no other event comes first. Zero if nothing is due.
	At time.Time
}

// Undivided is true after PodAsks if no spread divides the pod, and after GroupAsks if each pod asks by itself.
func (fx *Effects) Undivided() bool {
	return fx.Check == nil && fx.Places == nil && fx.Answer.Decision == nil && fx.Answer.Reason == ""
}

// Question asks for the replicas of a workload that has more pods than the replicas that the ledger has seen.
type Question struct {
	Workload Workload
	// Number of the question. A later one about the workload takes its place.
	Number int64
}

// Step is what a pod does when it found no node in its subset.
type Step uint8

const (
	// GoOn to the next subset, in a cycle that follows at once.
	GoOn Step = iota
	// Preempt in this subset.
	Preempt
)

// Answer is the answer to PodAsks. If it has neither a decision nor a reason, no spread divides the pod.
type Answer struct {
	// Decision is nil if the pod is refused, or if no spread divides it.
	Decision *Decision
	// Reason of a refusal. Empty if the pod is not refused.
	Reason v1beta1.Reason
	// Message of a refusal that is not about subsets. If it is empty, Describe says why each subset refused the pod.
	Message string

	// Spread and the fields below are set for Describe, in refusals because of subsets and in the answer to NoNodeFound.
	Spread *v1beta1.WorkloadSpread
	Policy *subset.Policy
	Plan   subset.Plan
	// Claim is the subset in which the pod itself holds a slot, or subset.None.
	Claim int
	// Kept are the taken slots of the pod's quota scope.
	Kept subset.Counts

	// retries is true if not only nodes refused the pod, so that it is tried again without an event.
	retries bool
}

// Decision is the subset that a pod may use in this cycle.
type Decision struct {
	Spread *v1beta1.WorkloadSpread
	Policy *subset.Policy
	// Subset by index in the policy; subset.None if the pod may use any node.
	Subset int
	// Metadata that the bind sets.
	Metadata subset.Metadata
	// Own tolerations of the pod, without those that admission added.
	Own []corev1.Toleration
	// Ordinal of the pod in the subset, from 1. NodeFound sets it.
	Ordinal int32

	// preempts is true if the pod may preempt in this cycle.
	preempts bool
	// fresh is true if the pod got its slot in this cycle. No other pod has found the slot taken.
	fresh bool
	// tries is true if the pod has no slot before it has found a node; see PodAsks. lent is then subset.Verdict's.
	tries, lent bool
}

// Name of the subset; empty for subset.None.
func (d *Decision) Name() string {
	if d.Subset == subset.None {
		return ""
	}
	return d.Policy.Subsets[d.Subset].Name
}

// NodeCheck asks about the nodes of one subset, for one pod.
type NodeCheck struct {
	Policy *subset.Policy
	Subset int
	// Own tolerations of the pod, without those that admission added.
	Own []corev1.Toleration
	// Shape of the pod; see Shape.
	Shape string
	// Tried is true if the scheduler's filters refused all nodes of the subset in this round of cycles.
	Tried bool
}

// CheckResult is the result of a NodeCheck.
type CheckResult uint8

const (
	// notChecked is the zero value.
	notChecked CheckResult = iota
	// Feasible: a node may take the pod.
	Feasible
	// Infeasible: no node can take the pod.
	Infeasible
	// FeasibleAgain: no node could take the pod before, and now one may.
	FeasibleAgain
)

// CheckResults are the results of a pod's checks in this cycle. The zero value has none.
type CheckResults struct {
	policy   *subset.Policy
	bySubset []CheckResult
}

// Add records the result of a check.
func (r *CheckResults) Add(check *NodeCheck, result CheckResult) {
	if r.policy != check.Policy {
		*r = CheckResults{policy: check.Policy, bySubset: make([]CheckResult, len(check.Policy.Subsets))}
	}
	r.bySubset[check.Subset] = result
}

func (r *CheckResults) at(policy *subset.Policy, index int) CheckResult {
	if r.policy != policy {
		return notChecked
	}
	return r.bySubset[index]
}
