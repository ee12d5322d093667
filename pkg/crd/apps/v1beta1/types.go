package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// WorkloadSpread divides the pods of one workload over an ordered list of subsets, each with a quota.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=workloadspreads,shortName=ws,categories=all
// +kubebuilder:printcolumn:name="Target",type=string,JSONPath=".spec.targetRef.name"
// +kubebuilder:printcolumn:name="Kind",type=string,JSONPath=".spec.targetRef.kind"
// +kubebuilder:printcolumn:name="Strategy",type=string,JSONPath=".spec.scheduleStrategy.type"
// +kubebuilder:printcolumn:name="Subsets",type=string,JSONPath=".status.summary",description="kept/max of each subset, in order"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=".status.conditions[?(@.type=='Ready')].status"
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=".status.conditions[?(@.type=='Ready')].reason"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=".metadata.creationTimestamp"
type WorkloadSpread struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec   WorkloadSpreadSpec   `json:"spec"`
	Status WorkloadSpreadStatus `json:"status,omitempty"`
}

// WorkloadSpreadList is a list of WorkloadSpreads.
//
// +kubebuilder:object:root=true
type WorkloadSpreadList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []WorkloadSpread `json:"items"`
}

// WorkloadSpreadSpec says which workload is divided, over which subsets, and how.
//
// The rules are written so that the API server reports every violation at once. Value rules are patterns and CEL, not enums or required fields: the
// API server stops at a violated enum or required field and checks nothing else.
//
// +kubebuilder:validation:XValidation:rule="!has(self.scheduleStrategy) || !has(self.scheduleStrategy.adaptive) || (has(self.scheduleStrategy.type) && self.scheduleStrategy.type == 'Adaptive')",message="adaptive is only used with type: Adaptive; set the type or remove adaptive",fieldPath=".scheduleStrategy.adaptive"
// +kubebuilder:validation:XValidation:rule="self.subsets.all(s, !has(s.maxReplicas) || type(s.maxReplicas) == int) || self.subsets.all(s, !has(s.maxReplicas) || type(s.maxReplicas) == string)",message="maxReplicas must be a count in every subset or a percentage in every subset, not both",fieldPath=".subsets"
// +kubebuilder:validation:XValidation:rule="self.subsets.all(s, has(s.maxReplicas) && type(s.maxReplicas) == string && string(s.maxReplicas).matches('^(100|[0-9]{1,2})%$')) ? self.subsets.map(s, int(string(s.maxReplicas).split('%')[0])).sum() == 100 : true",message="percentages of all subsets must add up to 100%, or leave maxReplicas of the last subset out",fieldPath=".subsets"
// +kubebuilder:validation:XValidation:rule="self.subsets.map(s, has(s.maxReplicas) && type(s.maxReplicas) == string && string(s.maxReplicas).matches('^(100|[0-9]{1,2})%$') ? int(string(s.maxReplicas).split('%')[0]) : 0).sum() <= 100",message="percentages of the subsets must not add up to more than 100%",fieldPath=".subsets"
// +kubebuilder:validation:XValidation:rule="self.subsets.map(s, has(s.minReplicas) && type(s.minReplicas) == string && string(s.minReplicas).matches('^(100|[0-9]{1,2})%$') ? int(string(s.minReplicas).split('%')[0]) : 0).sum() <= 100",message="percentages in minReplicas must not add up to more than 100%",fieldPath=".subsets"
type WorkloadSpreadSpec struct {
	// TargetReference names the workload, in the namespace of the spread. It cannot be changed, except for the version in its apiVersion.
	//
	// +required
	// +kubebuilder:validation:XValidation:rule="has(self.apiVersion) && self.apiVersion.matches('^([a-z0-9.-]+/)?v[a-z0-9]+$')",message="must be the group and version of the workload, for instance apps/v1",fieldPath=".apiVersion"
	// +kubebuilder:validation:XValidation:rule="has(self.kind) && size(self.kind) > 0",message="must be the kind of the workload, for instance Deployment",fieldPath=".kind"
	// +kubebuilder:validation:XValidation:rule="has(self.name) && size(self.name) > 0",message="must be the name of the workload",fieldPath=".name"
	// +kubebuilder:validation:XValidation:rule="has(self.kind) == has(oldSelf.kind) && (!has(self.kind) || self.kind == oldSelf.kind) && has(self.name) == has(oldSelf.name) && (!has(self.name) || self.name == oldSelf.name) && has(self.apiVersion) == has(oldSelf.apiVersion) && (!has(self.apiVersion) || self.apiVersion.split('/')[0] == oldSelf.apiVersion.split('/')[0])",message="the target cannot be changed; delete the spread and create it for the other workload"
	TargetReference TargetReference `json:"targetRef"`

	// TargetFilter narrows the spread to some pods of the workload, for workloads whose pods have several roles.
	//
	// +optional
	TargetFilter *TargetFilter `json:"targetFilter,omitempty"`

	// Subsets are tried in this order. Several owners may each apply fields of a subset, by its name. On scale-down, pods of the last subset are deleted first.
	//
	// +required
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	Subsets []Subset `json:"subsets"`

	// ScheduleStrategy says what happens when a subset has quota left but no node for the pod. It also sets when pods are bound, which pods share a
	// quota, and what happens when every subset is full.
	//
	// +optional
	// +kubebuilder:default={type: Fixed}
	ScheduleStrategy ScheduleStrategy `json:"scheduleStrategy,omitempty"`
}

// TargetReference identifies a workload: any kind with a scale subresource, or any kind at all if targetFilter.replicasPathList is set.
type TargetReference struct {
	// +optional
	// +kubebuilder:validation:MaxLength=253
	APIVersion string `json:"apiVersion,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
}

// TargetFilter narrows a spread to some pods of its workload.
type TargetFilter struct {
	// Selector picks the pods. Nil picks all of them.
	//
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
	// ReplicasPathList are dotted paths in the workload to integers, for instance spec.replicaSpecs.worker.replicas. Their sum is the number of pods
	// that the selector picks. A numeric segment indexes a list. Empty means the replicas of the whole workload, whatever the selector picks:
	// percentages are of these, and the descheduler goes by the selected pods that exist.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=512
	// +kubebuilder:validation:items:Pattern=`^[^.]+(\.[^.]+)*$`
	ReplicasPathList []string `json:"replicasPathList,omitempty"`
}

// Subset is a set of nodes with a quota, for pods of the workload.
//
// +kubebuilder:validation:XValidation:rule="has(self.name) && self.name.matches('^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$')",message="must be a valid label value that is not empty: at most 63 letters, digits, '-', '_' or '.', with a letter or digit at both ends",fieldPath=".name"
// +kubebuilder:validation:XValidation:rule="!has(self.maxReplicas) || type(self.maxReplicas) != int || int(self.maxReplicas) >= 0",message="must not be negative",fieldPath=".maxReplicas"
// +kubebuilder:validation:XValidation:rule="!has(self.maxReplicas) || type(self.maxReplicas) != string || string(self.maxReplicas).matches('^(100|[0-9]{1,2})%$')",message="must be a count or a percentage from 0% to 100%",fieldPath=".maxReplicas"
// +kubebuilder:validation:XValidation:rule="!has(self.minReplicas) || type(self.minReplicas) != int || int(self.minReplicas) >= 0",message="must not be negative",fieldPath=".minReplicas"
// +kubebuilder:validation:XValidation:rule="!has(self.minReplicas) || type(self.minReplicas) != string || string(self.minReplicas).matches('^(100|[0-9]{1,2})%$')",message="must be a count or a percentage from 0% to 100%",fieldPath=".minReplicas"
// +kubebuilder:validation:XValidation:rule="!has(self.minReplicas) || !has(self.maxReplicas) || type(self.minReplicas) != int || type(self.maxReplicas) != int || int(self.maxReplicas) < 0 || int(self.minReplicas) <= int(self.maxReplicas)",message="must not be greater than maxReplicas",fieldPath=".minReplicas"
// +kubebuilder:validation:XValidation:rule="!has(self.minReplicas) || !has(self.maxReplicas) || type(self.minReplicas) != string || type(self.maxReplicas) != string || !string(self.minReplicas).matches('^(100|[0-9]{1,2})%$') || !string(self.maxReplicas).matches('^(100|[0-9]{1,2})%$') || int(string(self.minReplicas).split('%')[0]) <= int(string(self.maxReplicas).split('%')[0])",message="must not be greater than maxReplicas",fieldPath=".minReplicas"
// +kubebuilder:validation:XValidation:rule="!has(self.weight) || self.weight == 0 || !has(self.maxReplicas) || type(self.maxReplicas) != string",message="weight needs a count in maxReplicas, or no maxReplicas: percentages that add up to 100% are shares already",fieldPath=".weight"
type Subset struct {
	// Name is unique within the spread and a valid label value.
	//
	// +optional
	// +kubebuilder:default=""
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`

	// RequiredNodeSelector selects the nodes of the subset. It is combined (AND) with the pod's own required node affinity. Nil selects every
	// node.
	//
	// +optional
	RequiredNodeSelector *corev1.NodeSelectorTerm `json:"requiredNodeSelector,omitempty"`

	// PreferredNodeSelector rank the nodes of the subset, in addition to the pod's own preferences.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=64
	PreferredNodeSelector []corev1.PreferredSchedulingTerm `json:"preferredNodeSelector,omitempty"`

	// Tolerations are added to the tolerations of the subset's pods.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`

	// MaxReplicas is the quota: the highest number of pods in the subset. It is a count, or a percentage of the workload's replicas, rounded up. Nil
	// means no limit; 0 closes the subset. Percentages of all subsets are shares: they divide the pods like weights.
	//
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	MaxReplicas *intstr.IntOrString `json:"maxReplicas,omitempty"`

	// MinReplicas is how many pods the subset gets before any subset gets more than its own minimum, in the order of the subsets. Scale-down takes them
	// last. It is a count, or a percentage of the workload's replicas, rounded up. Nil and 0 mean no minimum. (Berth)
	//
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	MinReplicas *intstr.IntOrString `json:"minReplicas,omitempty"`

	// Weight is the share of the subset in the pods above the minimums, in proportion to the weights of the other subsets. If any subset has a weight,
	// those without one get their minimum and no more. Nil and 0 mean no weight. (Berth)
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	Weight *int32 `json:"weight,omitempty"`

	// Patch is a strategic merge patch for the pods of the subset. Labels and annotations are applied when the pod is bound, everything else at
	// admission.
	//
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Type=object
	// +nullable
	Patch *runtime.RawExtension `json:"patch,omitempty"`
}

// ScheduleStrategyType is Fixed or Adaptive.
type ScheduleStrategyType string

const (
	// FixedScheduleStrategy keeps a pod in the first subset with quota, where it waits for a node.
	FixedScheduleStrategy ScheduleStrategyType = "Fixed"
	// AdaptiveScheduleStrategy moves a pod to the next subset if no node of the first one fits.
	AdaptiveScheduleStrategy ScheduleStrategyType = "Adaptive"
)

// BindingMode says when a pod gets its subset.
type BindingMode string

const (
	// AutoBinding is Early if a patch touches the pod's spec. Otherwise it is Gated in a cluster with a node autoscaler, and Late elsewhere.
	AutoBinding BindingMode = "Auto"
	// LateBinding gives a pod its subset together with its node.
	LateBinding BindingMode = "Late"
	// EarlyBinding gives a pod its subset at admission. Patches of the pod's spec need it.
	EarlyBinding BindingMode = "Early"
	// GatedBinding gives a pod a scheduling gate at admission. Berth's scheduler opens it once it knows the subset, and the pod then requires the nodes
	// of that subset. So node autoscalers see where the pod may go under its quota.
	GatedBinding BindingMode = "Gated"
)

// QuotaScope says which pods share a quota.
type QuotaScope string

const (
	// RevisionQuotaScope counts each rollout revision of the workload by itself.
	RevisionQuotaScope QuotaScope = "Revision"
	// WorkloadQuotaScope counts all pods of the workload together.
	WorkloadQuotaScope QuotaScope = "Workload"
)

// WhenFull says what happens to a pod when every subset is full.
type WhenFull string

const (
	// WhenFullSchedule lets the pod use any node. It then counts against no quota.
	WhenFullSchedule WhenFull = "Schedule"
	// WhenFullWait holds the pod until a slot is free.
	WhenFullWait WhenFull = "Wait"
)

// PodReplacementPolicy says when the slot of a deleted pod is free. The names are those of Deployments and Jobs.
type PodReplacementPolicy string

const (
	// TerminationStarted frees the slot when the deletion begins.
	TerminationStarted PodReplacementPolicy = "TerminationStarted"
	// TerminationComplete frees the slot when the pod is gone, or all of its containers have ended.
	TerminationComplete PodReplacementPolicy = "TerminationComplete"
)

// ScheduleStrategy says how pods get their subset.
type ScheduleStrategy struct {
	// Type is Fixed (default): a pod waits for a node in the first subset with quota. Or Adaptive: a pod that finds no node there goes on to the next
	// subset.
	//
	// +optional
	// +kubebuilder:default=Fixed
	// +kubebuilder:validation:Pattern=`^(Fixed|Adaptive)$`
	Type ScheduleStrategyType `json:"type,omitempty"`

	// Adaptive refines type Adaptive. It is refused with type Fixed.
	//
	// +optional
	Adaptive *AdaptiveStrategy `json:"adaptive,omitempty"`

	// Binding says when a pod gets its subset: Late, together with its node; Early, at admission; Gated, together with its node or, if no node has room
	// for it, when it begins to wait for one; or Auto (default), which means Early if a patch touches the pod's spec, and otherwise Gated in a cluster
	// with a node autoscaler and Late elsewhere; see status.binding. A gated pod requires the nodes of its subset, so an autoscaler makes nodes there and
	// nowhere else. It needs one more write for each pod. (Berth)
	//
	// +optional
	// +kubebuilder:validation:Pattern=`^(Auto|Late|Early|Gated)$`
	Binding BindingMode `json:"binding,omitempty"`

	// QuotaScope is Revision: each rollout revision is counted by itself, so that a rolling update ends in the same layout. Or Workload: a hard total over
	// all revisions, for licences, addresses or bandwidth. The default is Revision for the kinds of Kubernetes and for Rollouts of Argo, and Workload for
	// others, for instance CloneSets: their pods change the revision in place. (Berth)
	//
	// +optional
	// +kubebuilder:validation:Pattern=`^(Revision|Workload)$`
	QuotaScope QuotaScope `json:"quotaScope,omitempty"`

	// WhenFull is Schedule (default): a pod that finds every subset full may use any node. Or Wait: it waits for a slot. (Berth)
	//
	// +optional
	// +kubebuilder:validation:Pattern=`^(Schedule|Wait)$`
	WhenFull WhenFull `json:"whenFull,omitempty"`

	// PodReplacementPolicy says when the slot of a deleted pod is free: TerminationStarted, when its deletion begins, although its containers may run for
	// some time; or TerminationComplete, when the pod is gone or all of its containers have ended. A pod on a lost node then holds its slot until somebody
	// deletes the node. Empty means TerminationComplete if the spread has quotaScope: Workload and whenFull: Wait, and else TerminationStarted. (Berth)
	//
	// +optional
	// +kubebuilder:validation:Pattern=`^(TerminationStarted|TerminationComplete)$`
	PodReplacementPolicy PodReplacementPolicy `json:"podReplacementPolicy,omitempty"`
}

// AdaptiveStrategy refines the strategy Adaptive.
type AdaptiveStrategy struct {
	// DisableSimulationSchedule has no effect, as in OpenKruise: a pod goes on to the next subset when the scheduler's filters refuse every node.
	//
	// +optional
	DisableSimulationSchedule bool `json:"disableSimulationSchedule,omitempty"`

	// RescheduleCriticalSeconds is how many seconds a pod that can use one subset only, because it is bound early or its gate is open, may stay
	// unschedulable there before it is replaced. Nil and 0 mean that it is not replaced. Pods of Jobs whose gate is open never are.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	RescheduleCriticalSeconds *int32 `json:"rescheduleCriticalSeconds,omitempty"`

	// UnschedulableLastSeconds is for how many seconds a subset is skipped after a pod has waited in it in vain. Nil means 300. (Berth)
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	UnschedulableLastSeconds *int32 `json:"unschedulableLastSeconds,omitempty"`

	// Preemption says when a pod that finds no node may preempt pods of lower priority: AfterLastSubset (default), when all subsets have refused it; or
	// BeforeNextSubset, in each subset before it goes on to the next, for instance if placeholders keep room there. (Berth)
	//
	// +optional
	// +kubebuilder:validation:Pattern=`^(AfterLastSubset|BeforeNextSubset)$`
	Preemption PreemptionOrder `json:"preemption,omitempty"`
}

// PreemptionOrder says when a pod of strategy Adaptive preempts.
type PreemptionOrder string

const (
	// PreemptAfterLastSubset: no pod is preempted as long as another subset has a node.
	PreemptAfterLastSubset PreemptionOrder = "AfterLastSubset"
	// PreemptBeforeNextSubset: pods of lower priority make room in an earlier subset.
	PreemptBeforeNextSubset PreemptionOrder = "BeforeNextSubset"
)

// WorkloadSpreadStatus says where the pods are.
type WorkloadSpreadStatus struct {
	// ObservedGeneration is the generation of the spec that this status describes.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Summary is kept/max of each subset in order, for people to read: "subset-a 3/3, subset-b 2/-".
	//
	// +optional
	Summary string `json:"summary,omitempty"`

	// ObservedReplicas is the number of pods that the workload asks for. Percentages are of this number.
	//
	// +optional
	ObservedReplicas int32 `json:"observedReplicas,omitempty"`

	// PendingPods is how many pods of the workload have no node yet. In a spread with annotation berth.dev/compatibility kruise, those for which
	// admission picked a subset count in the subset instead.
	//
	// +optional
	PendingPods int32 `json:"pendingPods,omitempty"`

	// UnplacedPods is how many pods of the workload run on a node but are in no subset.
	//
	// +optional
	UnplacedPods int32 `json:"unplacedPods,omitempty"`

	// AdoptedPods is how many pods were given their subset by the node they run on: another scheduler bound them, or they were bound before the spread
	// existed.
	//
	// +optional
	AdoptedPods int32 `json:"adoptedPods,omitempty"`

	// SurplusPods is how many pods are above the quota of their subset.
	//
	// +optional
	SurplusPods int32 `json:"surplusPods,omitempty"`

	// Binding is how pods that are created now get their subset: Late, Early or Gated; see spec.scheduleStrategy.binding. (Berth)
	//
	// +optional
	Binding BindingMode `json:"binding,omitempty"`

	// NodeAutoscaler is the one that the controller knows of: karpenter, cluster-autoscaler, or configured if the installation says that it has one.
	// Empty means none. (Berth)
	//
	// +optional
	NodeAutoscaler string `json:"nodeAutoscaler,omitempty"`

	// Conditions of the spread as a whole; see Ready.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// SubsetStatuses has one entry for each subset, in order.
	//
	// +optional
	SubsetStatuses []SubsetStatus `json:"subsetStatuses,omitempty"`

	// VersionedSubsetStatuses has the same for each rollout revision of the workload.
	//
	// +optional
	VersionedSubsetStatuses map[string][]SubsetStatus `json:"versionedSubsetStatuses,omitempty"`

	// Moves record the evictions by which a descheduler moved pods of the spread, one entry for each pair of subsets. A descheduler writes its entry
	// before it evicts, so that the next run knows of the eviction even if this run dies. (Berth)
	//
	// +optional
	// +listType=map
	// +listMapKey=from
	// +listMapKey=to
	// +kubebuilder:validation:MaxItems=4225
	Moves []Move `json:"moves,omitempty"`

	// Compatibility of the installation, for spreads without annotation berth.dev/compatibility. Empty means none. (Berth)
	//
	// +optional
	Compatibility Compatibility `json:"compatibility,omitempty"`

	// ReplicasPathList is where the replicas of the workload are, as OpenKruise's ConfigMap kruise-configuration says for its kind. It counts in a
	// spread that behaves as OpenKruise's and has no targetFilter.replicasPathList. Empty means that the ConfigMap has no path for the kind. (Berth)
	//
	// +optional
	ReplicasPathList []string `json:"replicasPathList,omitempty"`

	// Misplaced says since when a descheduler has seen pods above their quota or outside of their subset. (Berth)
	//
	// +optional
	Misplaced *Misplaced `json:"misplaced,omitempty"`
}

// Move records the evictions of a descheduler that were meant to move pods from one subset to another. An empty name means no subset.
type Move struct {
	// From is the subset that the pods left.
	//
	// +required
	From string `json:"from"`

	// To is the subset that the replacement pods were meant to go to.
	//
	// +required
	To string `json:"to"`

	// Reason of the last move: UnschedulableTooLong, OverQuota, NodeOutsideSubset or EarlierSubsetHasRoom. After UnschedulableTooLong, or without a
	// known reason, admission skips the subset From for a while. During that time later moves do not change the reason.
	//
	// +optional
	Reason string `json:"reason,omitempty"`

	// Round counts the moves after which pods came back to From. It is 1 after the first move, and starts again at 1 after a long quiet time. The
	// wait before the next move doubles with every round.
	//
	// +optional
	Round int32 `json:"round,omitempty"`

	// Remaining is how many pods were left in From that could have been moved as well. If there are more now, pods have come back.
	//
	// +optional
	Remaining int32 `json:"remaining,omitempty"`

	// Time of the last move.
	//
	// +optional
	Time metav1.Time `json:"time,omitempty"`

	// InFlight are the pods that were about to be evicted when this was written. They count as gone for a while, even if they still exist.
	//
	// +optional
	// +listType=map
	// +listMapKey=uid
	InFlight []PodInFlight `json:"inFlight,omitempty"`
}

// PodInFlight is a pod that is about to be evicted, or was.
type PodInFlight struct {
	// UID of the pod.
	//
	// +required
	UID types.UID `json:"uid"`

	// Name of the pod, for people to read.
	//
	// +optional
	Name string `json:"name,omitempty"`

	// Time at which this entry was written.
	//
	// +required
	Time metav1.Time `json:"time"`
}

// Misplaced says how many pods have been above their quota or outside of their subset, and since when.
type Misplaced struct {
	// Pods is the lowest number of misplaced pods that was seen since Since.
	//
	// +required
	Pods int32 `json:"pods"`

	// Since is when a descheduler first saw at least that many.
	//
	// +required
	Since metav1.Time `json:"since"`
}

// SubsetStatus says how many pods a subset holds.
type SubsetStatus struct {
	// Name of the subset.
	Name string `json:"name"`

	// Replicas is the number of active pods bound in the subset. In a spread with annotation berth.dev/compatibility kruise, pending pods for which
	// admission picked the subset count too.
	Replicas int32 `json:"replicas"`

	// TargetReplicas is how many pods the subset holds when every pod is where it should be.
	//
	// +optional
	TargetReplicas int32 `json:"targetReplicas,omitempty"`

	// MissingReplicas is how many more pods the subset may take: 0 when it is full, -1 when it has no limit.
	MissingReplicas int32 `json:"missingReplicas"`

	// Conditions of the subset; see Schedulable.
	//
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// CreatingPods is always empty. The field exists for clients that read it. Berth gives a subset only to a pod that exists: together with its
	// node, or at admission, where the pod counts as pending.
	//
	// +optional
	CreatingPods map[string]metav1.Time `json:"creatingPods,omitempty"`

	// DeletingPods are the pods of the subset that are being deleted, by name, with the time by which they should have ended. At most 500 are listed.
	// They are not counted in replicas.
	//
	// +optional
	DeletingPods map[string]metav1.Time `json:"deletingPods,omitempty"`
}

// Pods is how many active pods the status counts, in subsets, in none, and without a node.
func (s *WorkloadSpreadStatus) Pods() int32 {
	pods := s.PendingPods + s.UnplacedPods
	for i := range s.SubsetStatuses {
		pods += s.SubsetStatuses[i].Replicas
	}
	return pods
}
