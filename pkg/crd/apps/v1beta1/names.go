package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

const (
	// MatchedAnnotation records on a bound pod which spread and subset it was bound for, as JSON of MatchedSubset.
	// Berth writes it in the Binding, so it appears together with spec.nodeName or not at all. Clients of the
	// WorkloadSpread kind read it under this name.
	MatchedAnnotation = "apps.kruise.io/matched-workloadspread"

	// SubsetGate is the scheduling gate of pods of spreads with binding: Gated. Berth's scheduler tries a pod that has no other gate. It opens the gate
	// when it knows the subset of the pod.
	SubsetGate = "berth.dev/subset"

	// AdmittedAnnotation says which subset was picked for a pod before its bind, as JSON of AdmittedSubset: by admission for an early-bound pod, which
	// carries the patch of that subset, and by the scheduler for a pod whose gate it has opened.
	AdmittedAnnotation = "berth.dev/admitted-subset"

	// SubsetLabel carries the name of the subset, for selectors and dashboards. Berth never reads it.
	SubsetLabel = "berth.dev/subset"

	// ConstraintsAnnotation records what admission added to the tolerations and the required node affinity of a pod, as JSON with the fields
	// tolerations, terms and own. The scheduler reads it to know which tolerations are the pod's own.
	ConstraintsAnnotation = "berth.dev/constraints"

	// AdmissionLabel on a namespace, with the value "disabled", keeps Berth's webhook away from the namespace's pods. The scheduler still places pods
	// that name it. With the value "required", a pod that a spread may divide is refused while no webhook replica answers; the pod's controller tries
	// again.
	AdmissionLabel = "berth.dev/admission"

	// IgnoreExistingPodsAnnotation on a spread, set to "true", keeps the metadata patches of its subsets from pods that Berth did not bind.
	IgnoreExistingPodsAnnotation = "workloadspread.kruise.io/ignore-patch-existing-pods-metadata"

	// PausedAnnotation on a spread, set to "true", keeps deschedulers from evicting its pods by Berth's strategies.
	PausedAnnotation = "berth.dev/paused"

	// CompatibilityAnnotation on a spread is the Compatibility of this spread. Without it, that of the installation counts.
	CompatibilityAnnotation = "berth.dev/compatibility"

	// RuleLabel and ClusterRuleLabel on a spread are the name of the SpreadRule or the ClusterSpreadRule that has made it. Any other spread of the workload wins.
	RuleLabel        = "berth.dev/spread-rule"
	ClusterRuleLabel = "berth.dev/cluster-spread-rule"

	// AwaitsAnnotation on a pod names the spread that a rule makes for its workload. Admission writes it if the spread was not there yet. The scheduler waits for the spread for some time.
	AwaitsAnnotation = "berth.dev/awaits-spread"

	// PodDeletionCostAnnotation is read by the ReplicaSet controller: it deletes pods with a lower cost first.
	PodDeletionCostAnnotation = "controller.kubernetes.io/pod-deletion-cost"

	// AskedCostAnnotation is the deletion cost that the application of a pod has written into PodDeletionCostAnnotation, where Berth has replaced it. 0 means none.
	AskedCostAnnotation = "berth.dev/asked-deletion-cost"

	// HourlyPriceLabel on a node is what it costs an hour, as a decimal number. It decides nothing: it is for people, and for a metric.
	HourlyPriceLabel = "berth.dev/hourly-price"

	// SchedulerName is the default name under which pods choose Berth's scheduler.
	SchedulerName = "berth-scheduler"
)

// Compatibility says as which controller's spread a spread behaves. It changes what clients can observe; quotas are as exact as without.
//
// +enum
type Compatibility string

const (
	// CompatibleWithKruise: annotations, labels, deletion costs, status and events are as OpenKruise's.
	CompatibleWithKruise Compatibility = "kruise"
	// NoCompatibility is the default of an installation. On a spread it overrides the installation.
	NoCompatibility Compatibility = "none"
)

// MatchedSubset is the value of MatchedAnnotation.
type MatchedSubset struct {
	// Name of the WorkloadSpread, in the pod's namespace.
	Name string `json:"name"`
	// Subset is the name of the subset. Empty for a pod that was bound outside of all subsets because every subset was full.
	Subset string `json:"subset"`
	// UID is the pod's own UID. A record with another UID was copied from another pod or written by hand, and is ignored.
	UID string `json:"uid,omitempty"`
	// Adopted is true if another scheduler bound the pod, and the controller wrote the record afterwards.
	Adopted bool `json:"adopted,omitempty"`
}

// AdmittedSubset is the value of AdmittedAnnotation.
type AdmittedSubset struct {
	// Name of the WorkloadSpread, in the pod's namespace.
	Name string `json:"name"`
	// Subset is the name of the subset. Empty if every subset was full and the spread says whenFull: Schedule.
	Subset string `json:"subset"`
	// Pick identifies the pick. A pod at admission has no UID yet, and often no name. A pick of the scheduler has the UID of the pod.
	Pick string `json:"pick"`
	// Lent is true if the subset was at its quota, and the pod takes the share of another subset, which had no node. Such a pod is bound as long as
	// there are no more pods than replicas.
	Lent bool `json:"lent,omitempty"`
	// Time of the pick. The API server may ask admission again after other webhooks changed the pod, and admission then keeps its pick. An old pick
	// was copied from another pod, so admission picks again.
	Time metav1.Time `json:"time,omitzero"`
}

// Reason says why a pod was or was not given a subset, in one word that every surface repeats: scheduler status, event,
// condition, metric and command line.
type Reason string

const (
	// ReasonAdmitted: the pod may use the subset.
	ReasonAdmitted Reason = "Admitted"
	// ReasonSubsetsFull: every subset is full, and the spread says whenFull: Wait.
	ReasonSubsetsFull Reason = "SubsetsFull"
	// ReasonNoNodeFits: no subset with quota left has a node for the pod.
	ReasonNoNodeFits Reason = "NoNodeFits"
	// ReasonAdmittedSubsetFull: admission picked a subset for the pod and others have filled it since. The pod is replaced.
	ReasonAdmittedSubsetFull Reason = "AdmittedSubsetFull"
	// ReasonUnplaced: every subset is full, and the spread says whenFull: Schedule.
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
	// ReasonKindListUnreadable: OpenKruise's list of custom kinds cannot be read, and the spread works as without it.
	ReasonKindListUnreadable Reason = "KindListUnreadable"
	// ReasonWorkloadNotObserved: the pod's owner or workload is not in the cache yet. The pod is held until it is.
	ReasonWorkloadNotObserved Reason = "WorkloadNotObserved"
	// ReasonSpreadConflict: another, older spread already names the same workload.
	ReasonSpreadConflict Reason = "SpreadConflict"
	// ReasonSpecPatchNotApplied: a subset patches the pod's spec, and the pod was not admitted by the webhook. Only admission can apply such a patch.
	ReasonSpecPatchNotApplied Reason = "SpecPatchNotApplied"
	// ReasonLabelsNotApplied: a patch sets labels by which the workload selects its pods. These labels are left out.
	ReasonLabelsNotApplied Reason = "LabelsNotApplied"
	// ReasonRolloutBlocked: a rolling update of the workload can never go on, because its surge pod gets no slot.
	ReasonRolloutBlocked Reason = "RolloutBlocked"
	// ReasonPodsNotWritten: the API server refuses what the controller writes to pods, such as deletion costs. Everything else goes on.
	ReasonPodsNotWritten Reason = "PodsNotWritten"
	// ReasonNodesOverfull: kubelets refused pods of the spread for lack of room, because another scheduler binds to their nodes too.
	ReasonNodesOverfull Reason = "NodesOverfull"
	// ReasonTwoControllers: another program writes the status of the spread too.
	ReasonTwoControllers Reason = "TwoControllers"
	// ReasonSpreadWarning: the spread is valid, but probably not what was meant.
	ReasonSpreadWarning Reason = "SpreadWarning"
	// ReasonSufficient: nothing keeps pods from the subset.
	ReasonSufficient Reason = "Sufficient"
	// ReasonPodUnschedulable: a pod of the subset finds no node in it.
	ReasonPodUnschedulable Reason = "PodUnschedulable"
	// ReasonRecoverSchedulable is an event on a spread that behaves as OpenKruise's: a subset is schedulable again.
	ReasonRecoverSchedulable Reason = "RecoverSchedulable"
	// ReasonSpreadReady: the spread is valid and its workload was found.
	ReasonSpreadReady Reason = "SpreadReady"
	// ReasonPodsNotAdmitted: the default scheduler bound pods that admission should have given to Berth's scheduler.
	ReasonPodsNotAdmitted Reason = "PodsNotAdmitted"
	// ReasonOtherScheduler: pods name a scheduler that does not apply the spread.
	ReasonOtherScheduler Reason = "OtherScheduler"
	// ReasonPodsAdmitted: there are no such pods any more.
	ReasonPodsAdmitted Reason = "PodsAdmitted"
)

// Reasons for which a descheduler evicts a pod, besides ReasonOverQuota and ReasonNodeOutsideSubset.
const (
	// ReasonUnschedulableTooLong: the pod can use its subset only, and found no node there for rescheduleCriticalSeconds.
	ReasonUnschedulableTooLong Reason = "UnschedulableTooLong"
	// ReasonEarlierSubsetHasRoom: an earlier subset has quota left and a node for a replacement of the pod. For a pod of a StatefulSet it is the subset
	// of its ordinal.
	ReasonEarlierSubsetHasRoom Reason = "EarlierSubsetHasRoom"
)

// Reasons for which a descheduler leaves a misplaced pod where it is.
const (
	// ReasonPaused: PausedAnnotation is set on the spread.
	ReasonPaused Reason = "Paused"
	// ReasonRollingOut: the workload has pods of several revisions.
	ReasonRollingOut Reason = "RollingOut"
	// ReasonNotAtRest: the workload has more or fewer pods than it asks for, or some that are not ready.
	ReasonNotAtRest Reason = "NotAtRest"
	// ReasonSettling: the workload has not been at rest for long enough.
	ReasonSettling Reason = "Settling"
	// ReasonCoolingDown: pods of the spread were moved recently.
	ReasonCoolingDown Reason = "CoolingDown"
	// ReasonBackingOff: pods came back to where they were moved from. The next move waits longer.
	ReasonBackingOff Reason = "BackingOff"
	// ReasonTooYoung: the pod was bound too recently.
	ReasonTooYoung Reason = "TooYoung"
	// ReasonOppositeMove: pods of the spread were moved the other way in the same cycle.
	ReasonOppositeMove Reason = "OppositeMove"
	// ReasonNoRoom: no subset that the spread allows has a node for a replacement of the pod.
	ReasonNoRoom Reason = "NoRoom"
	// ReasonRoomUnknown: only the scheduler can tell whether there is a node.
	ReasonRoomUnknown Reason = "RoomUnknown"
	// ReasonLimitReached: the limit on pods moved in a cycle, or on unavailable pods, is reached.
	ReasonLimitReached Reason = "LimitReached"
	// ReasonOnlyPod: the pod is the only one of its workload, and no budget covers it. The service would be away while the pod moves home.
	ReasonOnlyPod Reason = "OnlyPod"
	// ReasonNotEvictable: the pod must not be evicted: no controller would replace it, or a filter of the profile keeps it.
	ReasonNotEvictable Reason = "NotEvictable"
	// ReasonBudgetExhausted: a PodDisruptionBudget or PodUnavailableBudget has no room for the pod.
	ReasonBudgetExhausted Reason = "BudgetExhausted"
	// ReasonSeveralBudgets: more than one PodDisruptionBudget covers the pod, and the API server refuses to evict such pods.
	ReasonSeveralBudgets Reason = "SeveralBudgets"
	// ReasonMovedByOther: another descheduler moved pods of the spread while this one decided.
	ReasonMovedByOther Reason = "MovedByOther"
	// ReasonSpreadChanged: the spread was changed or deleted while the descheduler decided.
	ReasonSpreadChanged Reason = "SpreadChanged"
)

const (
	// ConditionReady on a spread: the spread is valid, its workload exists and its rules are applied.
	ConditionReady = "Ready"
	// ConditionAdmitted on a spread is False while pods run on nodes that Berth did not choose, although the spread existed when the pods were
	// created, or because the pods name another scheduler. A spread that never had such pods has no such condition.
	ConditionAdmitted = "Admitted"
	// ConditionSchedulable on a subset: no pod of it waits for a node.
	ConditionSchedulable = "Schedulable"
)
