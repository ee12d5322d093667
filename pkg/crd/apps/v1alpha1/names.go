package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

const (
	// MatchedAnnotation records on a bound pod which spread and subset it was bound for, as JSON of MatchedSubset.
	// Berth writes it in the Binding, so it appears together with spec.nodeName or not at all. Clients of the
	// WorkloadSpread kind read it under this name.
	MatchedAnnotation = "apps.kruise.io/matched-workloadspread"

	// AdmittedAnnotation says which subset admission picked for an early-bound pod, whose patch it carries since then, as JSON of
	// AdmittedSubset.
	AdmittedAnnotation = "berth.dev/admitted-subset"

	// SubsetLabel carries the name of the subset for selectors and dashboards. Berth never decides by it.
	SubsetLabel = "berth.dev/subset"

	// ConstraintsAnnotation notes on a pod what admission added to its tolerations and required node affinity, as JSON with the fields
	// tolerations, terms and own. The scheduler tells by it which tolerations are the pod's own.
	ConstraintsAnnotation = "berth.dev/constraints"

	// AdmissionLabel on a namespace, with the value "disabled", keeps Berth's webhook away from the namespace's pods. Pods that name
	// Berth's scheduler themselves are still placed by it. With the value "required", pods that a spread may divide are not created while no webhook
	// says whether one does; their controllers try again.
	AdmissionLabel = "berth.dev/admission"

	// IgnoreExistingPodsAnnotation on a spread, set to "true", keeps the metadata patches of its subsets from pods that Berth did not bind.
	IgnoreExistingPodsAnnotation = "workloadspread.kruise.io/ignore-patch-existing-pods-metadata"

	// PausedAnnotation on a spread, set to "true", keeps deschedulers from evicting its pods by Berth's strategies.
	PausedAnnotation = "berth.dev/paused"

	// PodGroupLabel names the pod group of a pod, as the coscheduling plugin of sigs.k8s.io/scheduler-plugins reads it.
	PodGroupLabel = "scheduling.x-k8s.io/pod-group"

	// PodDeletionCostAnnotation is read by the ReplicaSet controller: of two pods it deletes the cheaper one first.
	PodDeletionCostAnnotation = "controller.kubernetes.io/pod-deletion-cost"

	// SchedulerName is the default name under which pods choose Berth's scheduler.
	SchedulerName = "berth-scheduler"
)

// MatchedSubset is the value of MatchedAnnotation.
type MatchedSubset struct {
	// Name of the WorkloadSpread, in the pod's namespace.
	Name string `json:"name"`
	// Subset is the name of the subset. Empty for a pod that was let go because every subset was full.
	Subset string `json:"subset"`
	// UID is the pod's own UID. A record with any other UID was copied from another pod or written by hand and counts
	// for nothing.
	UID string `json:"uid,omitempty"`
}

// AdmittedSubset is the value of AdmittedAnnotation.
type AdmittedSubset struct {
	// Name of the WorkloadSpread, in the pod's namespace.
	Name string `json:"name"`
	// Subset is the name of the subset. Empty if every subset was full and the spread lets such pods go.
	Subset string `json:"subset"`
	// Pick tells the pod from others that admission has picked a subset for, before it has a name and a UID.
	Pick string `json:"pick"`
	// Time of the pick. Admission is asked again for a pod that others change after it, and keeps to its pick. A pick of long before was copied
	// from another pod, and another is made.
	Time metav1.Time `json:"time,omitempty"`
}

// Reason says why a pod was or was not given a subset, in one word that every surface repeats: scheduler status, event,
// condition, metric and command line.
type Reason string

const (
	// ReasonAdmitted: the pod may use the subset.
	ReasonAdmitted Reason = "Admitted"
	// ReasonSubsetsFull: every subset holds its quota and the spread says to wait.
	ReasonSubsetsFull Reason = "SubsetsFull"
	// ReasonNoNodeFits: no subset with quota left has a node for the pod.
	ReasonNoNodeFits Reason = "NoNodeFits"
	// ReasonAdmittedSubsetFull: admission picked a subset for the pod and others have filled it since. The pod is replaced.
	ReasonAdmittedSubsetFull Reason = "AdmittedSubsetFull"
	// ReasonUnplaced: every subset holds its quota and the spread lets the pod go anywhere.
	ReasonUnplaced Reason = "Unplaced"
	// ReasonOverQuota: the pod is above the quota of its subset.
	ReasonOverQuota Reason = "OverQuota"
	// ReasonNoSubset: the pod belongs to no subset of the spread.
	ReasonNoSubset Reason = "NoSubset"
	// ReasonNodeOutsideSubset: the node does not carry the labels of the pod's subset.
	ReasonNodeOutsideSubset Reason = "NodeOutsideSubset"
	// ReasonTaintNotTolerated: neither the pod nor its subset tolerates a taint of the node.
	ReasonTaintNotTolerated Reason = "TaintNotTolerated"
	// ReasonInvalidSpread: the spread cannot be used until it is corrected.
	ReasonInvalidSpread Reason = "InvalidSpread"
	// ReasonTargetNotFound: the workload that the spread names does not exist yet.
	ReasonTargetNotFound Reason = "TargetNotFound"
	// ReasonTargetUnreadable: the workload's replicas cannot be read.
	ReasonTargetUnreadable Reason = "TargetUnreadable"
	// ReasonWorkloadNotObserved: the pod is newer than what is known of its owner or workload; it is held until that arrives.
	ReasonWorkloadNotObserved Reason = "WorkloadNotObserved"
	// ReasonSpreadConflict: another, older spread already names the same workload.
	ReasonSpreadConflict Reason = "SpreadConflict"
	// ReasonSpecPatchNotApplied: a subset patches the pod's spec, which only admission can do, before the pod exists.
	ReasonSpecPatchNotApplied Reason = "SpecPatchNotApplied"
	// ReasonLabelsNotApplied: a patch sets labels by which the workload would lose its pods, so that they are left out.
	ReasonLabelsNotApplied Reason = "LabelsNotApplied"
	// ReasonPodsNotWritten: the API server does not take what pods should carry, such as their deletion costs. Everything else goes on.
	ReasonPodsNotWritten Reason = "PodsNotWritten"
	// ReasonSpreadWarning: the spread is legal and probably not what was meant.
	ReasonSpreadWarning Reason = "SpreadWarning"
	// ReasonSufficient: nothing keeps pods from the subset.
	ReasonSufficient Reason = "Sufficient"
	// ReasonPodUnschedulable: a pod of the subset finds no node in it.
	ReasonPodUnschedulable Reason = "PodUnschedulable"
	// ReasonSpreadReady: the spread is valid and its workload was found.
	ReasonSpreadReady Reason = "SpreadReady"
	// ReasonPodsNotAdmitted: the default scheduler placed pods that admission should have given to Berth's.
	ReasonPodsNotAdmitted Reason = "PodsNotAdmitted"
	// ReasonOtherScheduler: pods name a scheduler that does not divide them.
	ReasonOtherScheduler Reason = "OtherScheduler"
	// ReasonPodsAdmitted: there are no such pods any more.
	ReasonPodsAdmitted Reason = "PodsAdmitted"
)

// Reasons for which a descheduler evicts a pod, besides ReasonOverQuota and ReasonNodeOutsideSubset.
const (
	// ReasonUnschedulableTooLong: no node of the subset, whose patch the pod carries, has taken it for rescheduleCriticalSeconds.
	ReasonUnschedulableTooLong Reason = "UnschedulableTooLong"
	// ReasonEarlierSubsetHasRoom: an earlier subset has quota and a node for a pod made in this one's place.
	ReasonEarlierSubsetHasRoom Reason = "EarlierSubsetHasRoom"
)

// Reasons for which a descheduler leaves a pod where it is, although it should be elsewhere.
const (
	// ReasonPaused: PausedAnnotation is set on the spread.
	ReasonPaused Reason = "Paused"
	// ReasonRollingOut: the workload has pods of several revisions.
	ReasonRollingOut Reason = "RollingOut"
	// ReasonNotAtRest: the workload has more or fewer pods than it asks for, or some that are not ready.
	ReasonNotAtRest Reason = "NotAtRest"
	// ReasonSettling: it has not been so for long enough, and may be over soon.
	ReasonSettling Reason = "Settling"
	// ReasonCoolingDown: pods of the spread were moved a moment ago.
	ReasonCoolingDown Reason = "CoolingDown"
	// ReasonBackingOff: pods came back to where they were moved from, so that the next move waits longer.
	ReasonBackingOff Reason = "BackingOff"
	// ReasonTooYoung: the pod has not been where it is for long enough.
	ReasonTooYoung Reason = "TooYoung"
	// ReasonOppositeMove: pods of the spread were moved the other way in the same cycle.
	ReasonOppositeMove Reason = "OppositeMove"
	// ReasonNoRoom: no subset that the spread allows has a node for a pod made in this one's place.
	ReasonNoRoom Reason = "NoRoom"
	// ReasonRoomUnknown: whether there is a node cannot be told without the scheduler.
	ReasonRoomUnknown Reason = "RoomUnknown"
	// ReasonLimitReached: as many pods as allowed are moved in this cycle, or not available.
	ReasonLimitReached Reason = "LimitReached"
	// ReasonNotEvictable: the pod must not be evicted: nothing would make another in its place, or the filters of the profile keep it.
	ReasonNotEvictable Reason = "NotEvictable"
	// ReasonBudgetExhausted: a PodDisruptionBudget or PodUnavailableBudget has no room for the pod.
	ReasonBudgetExhausted Reason = "BudgetExhausted"
	// ReasonSeveralBudgets: more than one PodDisruptionBudget covers the pod, so that the API server cannot evict it.
	ReasonSeveralBudgets Reason = "SeveralBudgets"
	// ReasonMovedByOther: another descheduler has moved pods of the spread since this one looked.
	ReasonMovedByOther Reason = "MovedByOther"
	// ReasonSpreadChanged: the spread was changed or deleted while it was decided on.
	ReasonSpreadChanged Reason = "SpreadChanged"
)

const (
	// ConditionReady on a spread: it is valid, its workload exists and its rules are applied.
	ConditionReady = "Ready"
	// ConditionAdmitted on a spread is False while pods have a node that Berth had no part in, although the spread was there when they were made, or
	// because they name another scheduler. A spread that never had such pods has no such condition.
	ConditionAdmitted = "Admitted"
	// ConditionSchedulable on a subset: no pod of it waits for a node.
	ConditionSchedulable = "Schedulable"
)
