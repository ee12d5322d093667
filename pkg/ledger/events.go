package ledger

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	"github.com/berth-project/berth/pkg/subset"
)

// Event is something that happened. Every event may come twice, late, or with an object that is older than what is known.
type Event interface{ apply(l *Ledger) }

// What the cluster shows.
type (
	// PodSeen is a pod as an event of a watch shows it.
	PodSeen struct{ Pod *corev1.Pod }
	// PodRead is a pod that was read by itself. It is ignored if the pod is unknown: its end has been reported, and nothing would end it again.
	PodRead struct{ Pod *corev1.Pod }
	// PodListed is a pod from a list that was begun after ListBegins. It may be one that no watch event has shown yet.
	PodListed struct{ Pod *corev1.Pod }
	// PodGone says that a pod was deleted or has ended.
	PodGone struct{ UID types.UID }
	// ListBegins has the ledger remember which pods end until ListEnds, so that no list brings them back.
	ListBegins struct{}
	// ListEnds ends what ListBegins began.
	ListEnds struct{}

	// OwnerSeen is an object that may own pods, directly or through others. Object is a built-in workload or the metadata of any other.
	OwnerSeen struct {
		Kind   schema.GroupKind
		Object metav1.Object
	}
	// OwnerGone says that an owner was deleted.
	OwnerGone struct {
		Kind   schema.GroupKind
		Object metav1.Object
	}
	// KindEndsChain says whether owners of a kind end the chain of owners, unless they were seen. Those of kinds that are cluster-scoped, or that must
	// not be listed, do.
	KindEndsChain struct {
		Kind schema.GroupKind
		Ends bool
	}
	// ReplicasRead are the replicas of a workload whose spread has them read; see Effects.Follow. Known is false if there is no such workload.
	ReplicasRead struct {
		Workload Workload
		// Version and Paths are those of the spread that asked. An answer to another question is ignored.
		Version  string
		Paths    []string
		Replicas int32
		Known    bool
	}

	// SpreadSeen is a new or changed spread.
	SpreadSeen struct{ Spread *v1alpha1.WorkloadSpread }
	// SpreadGone says that a spread was deleted.
	SpreadGone struct{ Key types.NamespacedName }

	// NodeSeen is a new node, or one with new labels.
	NodeSeen struct{ Node *corev1.Node }
	// NodeGone says that a node was deleted.
	NodeGone struct{ Name string }
)

// What the scheduler does with a pod.
type (
	// PodAsks is a pod that asks which subset it may use. If Effects.Look is set, the pod has no answer yet: the caller looks at the nodes of that
	// subset, adds what it saw to Seen, and applies the event again.
	PodAsks struct {
		Pod     *corev1.Pod
		Results CheckResults
	}
	// NodeFound is a pod that has found a node in the subset of its decision. Effects.OK is false if the decision no longer holds.
	NodeFound struct {
		UID      types.UID
		Decision *Decision
	}
	// NodeLost is a pod that gives its node back before its bind was sent. The pod keeps its claim. It has no effect after BindSent.
	NodeLost struct{ UID types.UID }
	// NoNodeFound is a pod for which no node of the subset of its decision fits. Effects.Next is what the pod does.
	NoNodeFound struct {
		UID      types.UID
		Decision *Decision
	}
	// Preempted ends a cycle in which NoNodeFound had the pod preempt. Nominated is true if the pod waits for victims to leave.
	Preempted struct {
		UID       types.UID
		Decision  *Decision
		Nominated bool
	}
	// PodRefused is a pod that another plugin refused before it could ask.
	PodRefused struct{ UID types.UID }
	// ClusterChanged asks whether a pod that waits for any node should be tried because of a change. Effects.OK is the answer: yes for one pod of
	// each kind and for each change.
	ClusterChanged struct {
		UID types.UID
		// Change identifies the change. It is comparable.
		Change any
		// Node is where something changed. Nil with OnNode is a node that is gone; nil without it is a change on no node.
		Node   *corev1.Node
		OnNode bool
	}

	// BindSent is a bind that is about to be sent. Effects.OK is false if it must not be sent: the pod is gone, or its spread has changed.
	BindSent struct {
		UID      types.UID
		Decision *Decision
	}
	// BindRefused says that the API server certainly did not bind the pod. The pod keeps its claim.
	BindRefused struct{ UID types.UID }
	// BindUnknown is a bind that may or may not have happened, and may yet happen until a time. Its slot stays taken until the pod is seen on a node
	// or gone, or BindDisproved.
	BindUnknown struct {
		UID   types.UID
		Until time.Time
	}
	// BindDisproved is a pod that was read without a node. The binds that could no longer happen when the read began did not happen.
	BindDisproved struct {
		UID    types.UID
		ReadAt time.Time
	}
)

// What time does.
type (
	// TimePassed is due at Effects.Next.
	TimePassed struct{}
	// Audit looks for pods that were woken and had no cycle, and for free slots that nobody was woken for. The caller applies it every AuditInterval.
	Audit struct{}
)

// AuditInterval is how long a woken pod may be on its way to a cycle: so long at least, and at most twice as long.
const AuditInterval = 30 * time.Second

// Effects are what the caller must carry out after an event, without holding its mutex.
type Effects struct {
	// Answer is for PodAsks and NoNodeFound.
	Answer Answer
	// Look asks for a look at the nodes of a subset; see PodAsks. Nil if Answer is the answer.
	Check *NodeCheck
	// OK is for NodeFound, BindSent and ClusterChanged.
	OK bool
	// Next is for NoNodeFound.
	Next Step
	// Wake are pods to have tried soon.
	Wake []*corev1.Pod
	// Announce is true if the answer should be announced: it is the first pod of its spread that has to wait.
	Announce bool
	// Want are kinds of owners that must be watched.
	Want []schema.GroupKind
	// Follow are spreads whose workload's replicas must be read, now and after each change of the workload, and sent as ReplicasRead.
	Follow []*v1alpha1.WorkloadSpread
	// Forget are workloads that no spread divides any more.
	Forget []Workload
	// Missed is how many pods an Audit had to wake that some event should have woken. It is 0 unless the ledger has a fault.
	Missed int
	// At is when to apply TimePassed, if no event comes before. Zero if nothing is due.
	At time.Time
}

// Step is what a pod does that found no node in its subset.
type Step uint8

const (
	// Stay and wait for a node in this subset.
	Stay Step = iota
	// GoOn to the next subset, in a cycle that follows at once.
	GoOn
	// Preempt in this subset.
	Preempt
)

// Answer is the answer to a pod that asks for a subset. Without a decision and without a reason, no spread divides the pod.
type Answer struct {
	// Decision is nil if the pod is refused, or no spread divides it.
	Decision *Decision
	// Reason of a refusal, and empty otherwise.
	Reason v1alpha1.Reason
	// Message of a refusal that is not about subsets. If it is empty, Describe says how each subset stands.
	Message string

	// Spread and what follows are set for Describe, in refusals because of subsets and in the answer to NoNodeFound.
	Spread *v1alpha1.WorkloadSpread
	Policy *subset.Policy
	Plan   subset.Plan
	// Claim is the subset in which the pod itself holds a slot, or subset.None.
	Claim int
	// Kept are the slots that are taken in the pod's quota scope.
	Kept subset.Counts

	// retries: the pod was refused by more than its nodes, so it is tried again without an event.
	retries bool
}

// Decision is the subset that a pod may use in this cycle.
type Decision struct {
	Spread *v1alpha1.WorkloadSpread
	Policy *subset.Policy
	// Subset by index in the policy; subset.None if the pod may use any node.
	Subset int
	// Metadata that the bind sets.
	Metadata subset.Metadata
	// Own tolerations of the pod, which admission may have added to.
	Own []corev1.Toleration
	// Ordinal of the pod in the subset, counted from 1. NodeFound sets it.
	Ordinal int32

	// preempts is true if the pod may preempt in this cycle.
	preempts bool
	// fresh is true if the slot was given to the pod in this cycle, so that nobody else has found it taken.
	fresh bool
}

// Name of the subset; empty for subset.None.
func (d *Decision) Name() string {
	if d.Subset == subset.None {
		return ""
	}
	return d.Policy.Subsets[d.Subset].Name
}

// Look is a question about the nodes of one subset, for one pod.
type NodeCheck struct {
	Policy *subset.Policy
	Subset int
	// Own tolerations of the pod, which admission may have added to.
	Own []corev1.Toleration
	// Shape of the pod; see Shape.
	Shape string
	// Tried is true if the scheduler's filters have refused all nodes of the subset in this round of cycles.
	Tried bool
}

// CheckResult is what a look at the nodes of a subset shows.
type CheckResult uint8

const (
	// NotChecked is the zero value.
	NotChecked CheckResult = iota
	// Feasible: a node might take the pod.
	Feasible
	// Infeasible: no node can.
	Infeasible
	// FeasibleAgain: none could, and now one might.
	FeasibleAgain
)

// CheckResults are what a pod's looks have shown in this cycle. The zero value has seen nothing.
type CheckResults struct {
	policy   *subset.Policy
	bySubset []CheckResult
}

// Add notes what a look has shown.
func (r *CheckResults) Add(check *NodeCheck, result CheckResult) {
	if r.policy != check.Policy {
		*r = CheckResults{policy: check.Policy, bySubset: make([]CheckResult, len(check.Policy.Subsets))}
	}
	r.bySubset[check.Subset] = result
}

func (r *CheckResults) at(policy *subset.Policy, index int) CheckResult {
	if r.policy != policy {
		return NotChecked
	}
	return r.bySubset[index]
}
