package v1alpha1

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
// The rules are written so that the API server reports every violation of them at once: value rules are patterns and CEL,
// and not enums or required fields, whose violation would stop it from looking further.
//
// +kubebuilder:validation:XValidation:rule="!has(self.scheduleStrategy) || !has(self.scheduleStrategy.adaptive) || (has(self.scheduleStrategy.type) && self.scheduleStrategy.type == 'Adaptive')",message="adaptive is only used with type: Adaptive; set the type or remove adaptive",fieldPath=".scheduleStrategy.adaptive"
// +kubebuilder:validation:XValidation:rule="self.subsets.all(s, !has(s.maxReplicas) || type(s.maxReplicas) == int) || self.subsets.all(s, !has(s.maxReplicas) || type(s.maxReplicas) == string)",message="maxReplicas must be a count in every subset or a percentage in every subset, not both",fieldPath=".subsets"
// +kubebuilder:validation:XValidation:rule="self.subsets.all(s, has(s.maxReplicas) && type(s.maxReplicas) == string && string(s.maxReplicas).matches('^(100|[0-9]{1,2})%$')) ? self.subsets.map(s, int(string(s.maxReplicas).split('%')[0])).sum() == 100 : true",message="percentages of all subsets must add up to 100%, or leave maxReplicas of the last subset out",fieldPath=".subsets"
// +kubebuilder:validation:XValidation:rule="self.subsets.map(s, has(s.maxReplicas) && type(s.maxReplicas) == string && string(s.maxReplicas).matches('^(100|[0-9]{1,2})%$') ? int(string(s.maxReplicas).split('%')[0]) : 0).sum() <= 100",message="percentages of the subsets must not add up to more than 100%",fieldPath=".subsets"
type WorkloadSpreadSpec struct {
	// TargetReference names the workload, in the spread's own namespace. It cannot be changed (the version of its
	// apiVersion can).
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

	// Subsets are tried in order; the order is also the order of preference on scale-down, read backwards.
	//
	// +required
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:rule="self.all(s, self.exists_one(o, has(o.name) == has(s.name) && (!has(s.name) || o.name == s.name)))",message="subset names must be unique"
	Subsets []Subset `json:"subsets"`

	// ScheduleStrategy says what happens when a subset has quota but no node for the pod, and a few choices beside.
	//
	// +optional
	// +kubebuilder:default={type: Fixed}
	ScheduleStrategy ScheduleStrategy `json:"scheduleStrategy,omitempty"`
}

// TargetReference identifies a workload: any kind with a scale subresource, or any kind at all with
// targetFilter.replicasPathList.
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
	// ReplicasPathList are dotted paths in the workload to the integers whose sum is its number of pods that the selector
	// picks, for instance spec.replicaSpecs.worker.replicas; a numeric segment indexes a list. Empty means the workload's scale
	// subresource.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=512
	// +kubebuilder:validation:items:Pattern=`^[^.]+(\.[^.]+)*$`
	ReplicasPathList []string `json:"replicasPathList,omitempty"`
}

// Subset is one place for pods of the workload.
//
// +kubebuilder:validation:XValidation:rule="has(self.name) && self.name.matches('^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$')",message="must be a valid label value that is not empty: at most 63 letters, digits, '-', '_' or '.', with a letter or digit at both ends",fieldPath=".name"
// +kubebuilder:validation:XValidation:rule="!has(self.maxReplicas) || type(self.maxReplicas) != int || int(self.maxReplicas) >= 0",message="must not be negative",fieldPath=".maxReplicas"
// +kubebuilder:validation:XValidation:rule="!has(self.maxReplicas) || type(self.maxReplicas) != string || string(self.maxReplicas).matches('^(100|[0-9]{1,2})%$')",message="must be a count or a percentage from 0% to 100%",fieldPath=".maxReplicas"
type Subset struct {
	// Name is unique within the spread and valid as a label value.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`

	// RequiredNodeSelectorTerm selects the nodes of the subset. It is ANDed into the pod's own required node affinity. Nil
	// selects every node.
	//
	// +optional
	RequiredNodeSelectorTerm *corev1.NodeSelectorTerm `json:"requiredNodeSelectorTerm,omitempty"`

	// PreferredNodeSelectorTerms rank the nodes of the subset, in addition to the pod's own preferences.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=64
	PreferredNodeSelectorTerms []corev1.PreferredSchedulingTerm `json:"preferredNodeSelectorTerms,omitempty"`

	// Tolerations are what the subset's pods tolerate in addition to their own.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`

	// MaxReplicas is the quota: how many pods the subset holds at most, as a count or as a percentage of the workload's
	// replicas, rounded up. Nil means no limit; 0 closes the subset.
	//
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	MaxReplicas *intstr.IntOrString `json:"maxReplicas,omitempty"`

	// Patch is a strategic merge patch for the pods of the subset. Labels and annotations are applied when the pod is bound.
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
	// FixedScheduleStrategy keeps a pod in the first subset with quota and waits there for a node.
	FixedScheduleStrategy ScheduleStrategyType = "Fixed"
	// AdaptiveScheduleStrategy goes on to the next subset when no node of the first fits the pod.
	AdaptiveScheduleStrategy ScheduleStrategyType = "Adaptive"
)

// BindingMode says when a pod gets its subset.
type BindingMode string

const (
	// AutoBinding is Early if a patch touches the pod's spec and Late otherwise.
	AutoBinding BindingMode = "Auto"
	// LateBinding gives a pod its subset together with its node.
	LateBinding BindingMode = "Late"
	// EarlyBinding gives a pod its subset at admission, which patches of the pod's spec need.
	EarlyBinding BindingMode = "Early"
)

// QuotaScope says which pods share a quota.
type QuotaScope string

const (
	// RevisionQuotaScope counts each rollout revision of the workload by itself.
	RevisionQuotaScope QuotaScope = "Revision"
	// WorkloadQuotaScope counts all pods of the workload together.
	WorkloadQuotaScope QuotaScope = "Workload"
)

// PodGroupsMode says whether the pods of a pod group may be divided over subsets.
type PodGroupsMode string

const (
	// PodGroupsTogether keeps the pods of a pod group in one subset.
	PodGroupsTogether PodGroupsMode = "Together"
	// PodGroupsDivided divides them like all other pods.
	PodGroupsDivided PodGroupsMode = "Divided"
)

// WhenFull says what happens to a pod when every subset is full.
type WhenFull string

const (
	// WhenFullSchedule lets the pod go to any node, outside of every quota.
	WhenFullSchedule WhenFull = "Schedule"
	// WhenFullWait holds the pod until a slot is free.
	WhenFullWait WhenFull = "Wait"
)

// ScheduleStrategy says how pods get their subset.
type ScheduleStrategy struct {
	// Type is Fixed (default): a pod waits for a node in the first subset with quota; or Adaptive: it goes on to the next.
	//
	// +optional
	// +kubebuilder:default=Fixed
	// +kubebuilder:validation:Pattern=`^(Fixed|Adaptive)$`
	Type ScheduleStrategyType `json:"type,omitempty"`

	// Adaptive refines type Adaptive.
	//
	// +optional
	Adaptive *AdaptiveStrategy `json:"adaptive,omitempty"`

	// Binding says when a pod gets its subset: Late with its node, Early at admission, or Auto (default), which is Early only if
	// a patch touches the pod's spec. (Berth)
	//
	// +optional
	// +kubebuilder:validation:Pattern=`^(Auto|Late|Early)$`
	Binding BindingMode `json:"binding,omitempty"`

	// QuotaScope is Revision (default): each rollout revision is counted by itself, so that a rolling update ends in the same
	// layout; or Workload: a hard total over all revisions, for licences, addresses or bandwidth. (Berth)
	//
	// +optional
	// +kubebuilder:validation:Pattern=`^(Revision|Workload)$`
	QuotaScope QuotaScope `json:"quotaScope,omitempty"`

	// WhenFull is Schedule (default): a pod that finds every subset full goes to any node; or Wait: it waits for a slot. (Berth)
	//
	// +optional
	// +kubebuilder:validation:Pattern=`^(Schedule|Wait)$`
	WhenFull WhenFull `json:"whenFull,omitempty"`

	// PodGroups is Together (default): the pods of a pod group, in one revision, are bound in one subset, which needs free quota for all of them;
	// or Divided: they are divided like all other pods. The label scheduling.x-k8s.io/pod-group names a pod's group. (Berth)
	//
	// +optional
	// +kubebuilder:validation:Pattern=`^(Together|Divided)$`
	PodGroups PodGroupsMode `json:"podGroups,omitempty"`
}

// AdaptiveStrategy refines the strategy Adaptive.
type AdaptiveStrategy struct {
	// DisableSimulationSchedule makes a pod wait RescheduleCriticalSeconds in a subset before it goes on to the next, instead of
	// going on as soon as the scheduler's filters refuse every node.
	//
	// +optional
	DisableSimulationSchedule bool `json:"disableSimulationSchedule,omitempty"`

	// RescheduleCriticalSeconds is how long, in seconds, a pod may stay unschedulable in a subset before it goes on to the next. Nil and
	// 0 mean that waiting alone never moves it.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	RescheduleCriticalSeconds *int32 `json:"rescheduleCriticalSeconds,omitempty"`

	// UnschedulableLastSeconds is how long, in seconds, a subset is skipped after a wait in it ran out. Nil means 300. (Berth)
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	UnschedulableLastSeconds *int32 `json:"unschedulableLastSeconds,omitempty"`
}

// WorkloadSpreadStatus says where the pods are.
type WorkloadSpreadStatus struct {
	// ObservedGeneration is the generation of the spec that this status describes.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Summary is kept/max of each subset in order, for the eye: "subset-a 3/3, subset-b 2/-".
	//
	// +optional
	Summary string `json:"summary,omitempty"`

	// ObservedReplicas is the number of pods the workload asks for, against which percentages are taken.
	//
	// +optional
	ObservedReplicas int32 `json:"observedReplicas,omitempty"`

	// PendingPods of the workload have no node yet.
	//
	// +optional
	PendingPods int32 `json:"pendingPods,omitempty"`

	// UnplacedPods of the workload run on a node but in no subset.
	//
	// +optional
	UnplacedPods int32 `json:"unplacedPods,omitempty"`

	// AdoptedPods are counted by the node they run on, because somebody else bound them or did so before the spread existed.
	//
	// +optional
	AdoptedPods int32 `json:"adoptedPods,omitempty"`

	// SurplusPods are above the quota of their subset.
	//
	// +optional
	SurplusPods int32 `json:"surplusPods,omitempty"`

	// Conditions of the spread as a whole; see Ready.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// SubsetStatuses holds one entry for each subset, in order.
	//
	// +optional
	SubsetStatuses []SubsetStatus `json:"subsetStatuses,omitempty"`

	// VersionedSubsetStatuses holds the same for each rollout revision of the workload.
	//
	// +optional
	VersionedSubsetStatuses map[string][]SubsetStatus `json:"versionedSubsetStatuses,omitempty"`

	// Moves are the evictions by which a descheduler had pods of the spread placed anew, by where from and where to. Deschedulers write it,
	// before they evict, so that the next run knows, whatever becomes of this one. (Berth)
	//
	// +optional
	// +listType=map
	// +listMapKey=from
	// +listMapKey=to
	// +kubebuilder:validation:MaxItems=4225
	Moves []Move `json:"moves,omitempty"`

	// Misplaced says since when a descheduler has seen pods above their quota or outside of their subset. (Berth)
	//
	// +optional
	Misplaced *Misplaced `json:"misplaced,omitempty"`
}

// Move is what a descheduler remembers of its evictions from one subset that were meant to end in another. A name is empty for no subset.
type Move struct {
	// From is the subset that the pods left.
	//
	// +required
	From string `json:"from"`

	// To is the subset that the pods made in their place were to go to.
	//
	// +required
	To string `json:"to"`

	// Reason of the last move: UnschedulableTooLong, OverQuota, NodeOutsideSubset or EarlierSubsetHasRoom. A subset that pods have left because no
	// node took them for too long is passed over at admission for a while; one that they have left for no reason that is known is as well. For that
	// while the reason stays, whatever others follow for.
	//
	// +optional
	Reason string `json:"reason,omitempty"`

	// Round counts the moves after each of which pods were back in From. It is 1 after the first move, and again after a long quiet time. The
	// time to the next move doubles with every round.
	//
	// +optional
	Round int32 `json:"round,omitempty"`

	// Remaining is how many pods were left in From that could have gone as well. More of them mean that pods have come back.
	//
	// +optional
	Remaining int32 `json:"remaining,omitempty"`

	// Time of the last move.
	//
	// +optional
	Time metav1.Time `json:"time,omitempty"`

	// InFlight are pods that were to be evicted at once when this was written. They count as gone, for a while, even if they are not yet.
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

	// Name of the pod. For readers.
	//
	// +optional
	Name string `json:"name,omitempty"`

	// Time at which this was written.
	//
	// +required
	Time metav1.Time `json:"time"`
}

// Misplaced is how long there have been pods above their quota or outside of their subset.
type Misplaced struct {
	// Pods is how many there were at Since, or fewer that there have been after it.
	//
	// +required
	Pods int32 `json:"pods"`

	// Since is when a descheduler first saw no fewer.
	//
	// +required
	Since metav1.Time `json:"since"`
}

// SubsetStatus says how many pods a subset holds.
type SubsetStatus struct {
	// Name of the subset.
	Name string `json:"name"`

	// Replicas is the number of active pods bound in the subset.
	Replicas int32 `json:"replicas"`

	// MissingReplicas is how many more pods the subset may take: 0 when it is full, -1 when it has no limit.
	MissingReplicas int32 `json:"missingReplicas"`

	// Conditions of the subset; see Schedulable.
	//
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// CreatingPods are pods given to the subset and not seen since. Always empty: a subset is given to a pod that is there, with its node, or
	// is noted on a pod that is counted among the pending ones.
	//
	// +optional
	CreatingPods map[string]metav1.Time `json:"creatingPods,omitempty"`

	// DeletingPods are pods of the subset that are being deleted, by name, with the time until which they may take; 500 of them at most. They are
	// not counted in replicas.
	//
	// +optional
	DeletingPods map[string]metav1.Time `json:"deletingPods,omitempty"`
}
