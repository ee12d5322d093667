package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// UnitedDeployment divides its replicas over subsets, and has a workload of its own, a child, in each of them.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.labelSelector
// +kubebuilder:resource:path=uniteddeployments,shortName=ud,categories=all
// +kubebuilder:printcolumn:name="Desired",type=integer,JSONPath=".spec.replicas"
// +kubebuilder:printcolumn:name="Current",type=integer,JSONPath=".status.replicas"
// +kubebuilder:printcolumn:name="Updated",type=integer,JSONPath=".status.updatedReplicas"
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=".status.readyReplicas"
// +kubebuilder:printcolumn:name="Subsets",type=string,JSONPath=".status.summary",description="ready/replicas of each subset, in order"
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=".status.conditions[?(@.type=='Ready')].reason"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=".metadata.creationTimestamp"
type UnitedDeployment struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec   UnitedDeploymentSpec   `json:"spec"`
	Status UnitedDeploymentStatus `json:"status,omitempty"`
}

// UnitedDeploymentList is a list of UnitedDeployments.
//
// +kubebuilder:object:root=true
type UnitedDeploymentList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []UnitedDeployment `json:"items"`
}

// UnitedDeploymentSpec says how many pods run, in which subsets, and from which template.
type UnitedDeploymentSpec struct {
	// Replicas is how many pods run in all subsets together.
	//
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	Replicas *int32 `json:"replicas,omitempty"`

	// Selector picks the pods of all children. It must match the labels of the pod template. It cannot be changed.
	//
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// Template of the children: exactly one kind. To switch to another kind, first set an empty template, which leaves the children alone, and
	// then the new one: its children become ready before the old ones go.
	//
	// +optional
	Template SubsetTemplate `json:"template,omitempty"`

	// Topology is the subsets, and how replicas get theirs.
	//
	// +optional
	Topology Topology `json:"topology,omitempty"`

	// UpdateStrategy says how a changed template is rolled out.
	//
	// +optional
	UpdateStrategy UpdateStrategy `json:"updateStrategy,omitempty"`

	// RevisionHistoryLimit is how many old ControllerRevisions are kept. Nil means 10.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	RevisionHistoryLimit *int32 `json:"revisionHistoryLimit,omitempty"`
}

// SubsetTemplate is the template of the children, of one kind.
//
// +kubebuilder:validation:XValidation:rule="[has(self.statefulSetTemplate), has(self.advancedStatefulSetTemplate), has(self.cloneSetTemplate), has(self.deploymentTemplate)].filter(given, given).size() <= 1",message="children have one kind; keep one of statefulSetTemplate, advancedStatefulSetTemplate, cloneSetTemplate and deploymentTemplate"
type SubsetTemplate struct {
	// StatefulSetTemplate makes children of kind StatefulSet in apps/v1.
	//
	// +optional
	StatefulSetTemplate *WorkloadTemplate `json:"statefulSetTemplate,omitempty"`
	// AdvancedStatefulSetTemplate makes children of kind StatefulSet in apps.kruise.io, in the version that the cluster prefers. Berth passes the spec on.
	//
	// +optional
	AdvancedStatefulSetTemplate *WorkloadTemplate `json:"advancedStatefulSetTemplate,omitempty"`
	// CloneSetTemplate makes children of kind CloneSet in apps.kruise.io, in the version that the cluster prefers. Berth passes the spec on.
	//
	// +optional
	CloneSetTemplate *WorkloadTemplate `json:"cloneSetTemplate,omitempty"`
	// DeploymentTemplate makes children of kind Deployment in apps/v1.
	//
	// +optional
	DeploymentTemplate *WorkloadTemplate `json:"deploymentTemplate,omitempty"`
}

// WorkloadTemplate is the metadata and spec of a child. Berth sets replicas, selector and partition in it, and adds labels.
type WorkloadTemplate struct {
	// Metadata is labels and annotations of the children. Other fields have no effect.
	//
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Type=object
	Metadata *runtime.RawExtension `json:"metadata,omitempty"`
	// Spec of the children.
	//
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Type=object
	Spec *runtime.RawExtension `json:"spec,omitempty"`
}

// Topology is the subsets in order.
//
// +kubebuilder:validation:XValidation:rule="!has(self.subsets) || self.subsets.all(s, !has(s.replicas)) || self.subsets.all(s, !has(s.minReplicas) && !has(s.maxReplicas))",message="replicas exclude minReplicas and maxReplicas in all subsets; use either replicas or the others",fieldPath=".subsets"
// +kubebuilder:validation:XValidation:rule="!has(self.subsets) || !has(self.scheduleStrategy) || !has(self.scheduleStrategy.type) || self.scheduleStrategy.type != 'Adaptive' || self.subsets.all(s, !has(s.replicas))",message="with type: Adaptive subsets take over from each other; use minReplicas and maxReplicas",fieldPath=".subsets"
// +kubebuilder:validation:XValidation:rule="!has(self.subsets) || self.subsets.map(s, has(s.replicas) && type(s.replicas) == string && string(s.replicas).matches('^(100|[0-9]{1,2})%$') ? int(string(s.replicas).split('%')[0]) : 0).sum() <= 100",message="percentages of the subsets must not add up to more than 100%",fieldPath=".subsets"
type Topology struct {
	// ClusterRegistry says which clusters of a federation the subsets may name in targetCluster. Nil means every member of the federation.
	//
	// +optional
	ClusterRegistry *ClusterRegistryQuery `json:"clusterRegistry,omitempty"`

	// Subsets of the replicas. Each has a child.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	Subsets []Subset `json:"subsets,omitempty"`

	// ScheduleStrategy says what happens when pods of a subset find no node.
	//
	// +optional
	ScheduleStrategy ScheduleStrategy `json:"scheduleStrategy,omitempty"`
}

// ClusterRegistryQuery selects clusters by the objects that stand for them: ClusterProfiles, which are the members of the federation.
type ClusterRegistryQuery struct {
	// Namespaces of the objects. Empty means the namespace of the members, which is the only one that can have any.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	Namespaces []string `json:"namespaces,omitempty"`
	// Selector is labels that the objects must have. Empty selects all. A cluster that is not selected any more keeps its replicas and gets no more.
	//
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Selector map[string]string `json:"selector,omitempty"`
	// ClusterType is the kind and apiVersion of the objects. Only ClusterProfile in multicluster.x-k8s.io is served, and it is the default.
	//
	// +optional
	ClusterType metav1.TypeMeta `json:"clusterType,omitempty"`
}

// TargetCluster names a cluster of the federation.
type TargetCluster struct {
	// Namespace of the object that stands for the cluster. Empty means the namespace of the members.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Namespace string `json:"namespace,omitempty"`
	// Name of the cluster.
	//
	// +required
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// Subset is a set of nodes with a number of replicas.
//
// +kubebuilder:validation:XValidation:rule="has(self.name) && self.name.matches('^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$')",message="must be a DNS label: at most 63 lowercase letters, digits or '-', with a letter or digit at both ends",fieldPath=".name"
// +kubebuilder:validation:XValidation:rule="!has(self.replicas) || type(self.replicas) != int || int(self.replicas) >= 0",message="must not be negative",fieldPath=".replicas"
// +kubebuilder:validation:XValidation:rule="!has(self.replicas) || type(self.replicas) != string || string(self.replicas).matches('^(100|[0-9]{1,2})%$')",message="must be a count or a percentage from 0% to 100%",fieldPath=".replicas"
// +kubebuilder:validation:XValidation:rule="!has(self.minReplicas) || type(self.minReplicas) != int || int(self.minReplicas) >= 0",message="must not be negative",fieldPath=".minReplicas"
// +kubebuilder:validation:XValidation:rule="!has(self.minReplicas) || type(self.minReplicas) != string || string(self.minReplicas).matches('^(100|[0-9]{1,2})%$')",message="must be a count or a percentage from 0% to 100%",fieldPath=".minReplicas"
// +kubebuilder:validation:XValidation:rule="!has(self.maxReplicas) || type(self.maxReplicas) != int || int(self.maxReplicas) >= 0",message="must not be negative",fieldPath=".maxReplicas"
// +kubebuilder:validation:XValidation:rule="!has(self.maxReplicas) || type(self.maxReplicas) != string || string(self.maxReplicas).matches('^(100|[0-9]{1,2})%$')",message="must be a count or a percentage from 0% to 100%",fieldPath=".maxReplicas"
// +kubebuilder:validation:XValidation:rule="!has(self.minReplicas) || !has(self.maxReplicas) || type(self.minReplicas) != int || type(self.maxReplicas) != int || int(self.maxReplicas) < 0 || int(self.minReplicas) <= int(self.maxReplicas)",message="must not be greater than maxReplicas",fieldPath=".minReplicas"
// +kubebuilder:validation:XValidation:rule="!has(self.minReplicas) || !has(self.maxReplicas) || type(self.minReplicas) != string || type(self.maxReplicas) != string || !string(self.minReplicas).matches('^(100|[0-9]{1,2})%$') || !string(self.maxReplicas).matches('^(100|[0-9]{1,2})%$') || int(string(self.minReplicas).split('%')[0]) <= int(string(self.maxReplicas).split('%')[0])",message="must not be greater than maxReplicas",fieldPath=".minReplicas"
type Subset struct {
	// Name is unique in the UnitedDeployment, and a DNS label. The name of the child begins with <name of the UnitedDeployment>-<name of the subset>-.
	//
	// +optional
	// +kubebuilder:default=""
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`

	// TargetCluster is the cluster of the subset, a member of the federation. Its child is there, in the namespace of the same name, and nodeSelectorTerm selects
	// nodes there. Nil means the cluster of the UnitedDeployment. It cannot be changed: create a subset with another name instead, and remove this one. (Berth)
	//
	// +optional
	TargetCluster *TargetCluster `json:"targetCluster,omitempty"`

	// NodeSelectorTerm selects the nodes of the subset. It is combined (AND) with each required node affinity term of the pod template. Nil, and a
	// term without requirements, select every node. It cannot be changed: create a subset with another name instead, and remove this one.
	//
	// +optional
	NodeSelectorTerm *corev1.NodeSelectorTerm `json:"nodeSelectorTerm,omitempty"`

	// Tolerations are added to those of the pod template. They cannot be changed: create a subset with another name instead, and remove this one.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`

	// Replicas of the subset: a count, or a percentage of spec.replicas, rounded to the nearest number. Percentages of all subsets that add up to 100%
	// are shares: they always add up to spec.replicas. Subsets without replicas share the rest evenly. It excludes minReplicas and maxReplicas, in all subsets.
	//
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	Replicas *intstr.IntOrString `json:"replicas,omitempty"`

	// MinReplicas is how many replicas the subset gets before any subset gets more than its own minimum, in the order of the subsets. It is a count, or a
	// percentage of spec.replicas, rounded to the nearest number. Nil means 0.
	//
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	MinReplicas *intstr.IntOrString `json:"minReplicas,omitempty"`

	// MaxReplicas is the highest number of replicas of the subset: a count, or a percentage of spec.replicas, rounded to the nearest number. Above the
	// minimums, subsets fill up to it in order. Nil means no limit.
	//
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	MaxReplicas *intstr.IntOrString `json:"maxReplicas,omitempty"`

	// Patch is a strategic merge patch for the pod template of the child. It wins over all other fields.
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
	// FixedScheduleStrategy leaves pods that find no node where they are.
	FixedScheduleStrategy ScheduleStrategyType = "Fixed"
	// AdaptiveScheduleStrategy gives replicas whose pods find no node to the next subset.
	AdaptiveScheduleStrategy ScheduleStrategyType = "Adaptive"
)

// ScheduleStrategy says what happens when pods of a subset find no node.
//
// +kubebuilder:validation:XValidation:rule="!has(self.adaptive) || has(self.type) && self.type == 'Adaptive'",message="adaptive is only used with type: Adaptive; set the type or remove adaptive",fieldPath=".adaptive"
type ScheduleStrategy struct {
	// Type is Fixed (default): the pods wait. Or Adaptive: the next subset runs them.
	//
	// +optional
	// +kubebuilder:validation:Pattern=`^(Fixed|Adaptive)?$`
	Type ScheduleStrategyType `json:"type,omitempty"`

	// Adaptive refines type Adaptive.
	//
	// +optional
	Adaptive *AdaptiveStrategy `json:"adaptive,omitempty"`
}

// AdaptiveStrategy refines the strategy Adaptive.
//
// +kubebuilder:validation:XValidation:rule="!has(self.unschedulableDuration) || !has(self.unschedulableLastSeconds)",message="is another name of unschedulableDuration, which is given too; keep one",fieldPath=".unschedulableLastSeconds"
type AdaptiveStrategy struct {
	// RescheduleCriticalSeconds is for how many seconds a pod may find no node before its replica goes to another subset. Nil means 30.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	RescheduleCriticalSeconds *int32 `json:"rescheduleCriticalSeconds,omitempty"`

	// UnschedulableDuration is for how many seconds the subset then gets no new replicas. After that a few are tried. Each time that these find no node either, the time doubles, up to an hour. Nil means 300.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	UnschedulableDuration *int32 `json:"unschedulableDuration,omitempty"`

	// UnschedulableLastSeconds is another name of unschedulableDuration. Manifests must not have both.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	UnschedulableLastSeconds *int32 `json:"unschedulableLastSeconds,omitempty"`

	// LostSeconds is for how many seconds a cluster of the federation may not answer before other subsets run its replicas. Nil means 300. (Berth)
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	LostSeconds *int32 `json:"lostSeconds,omitempty"`

	// ReserveUnschedulablePods keeps pods that find no node as reservations of their subset, while another subset runs a pod in the place of each. When
	// a reserved pod becomes ready, the other one goes. Only for Deployments and CloneSets.
	//
	// +optional
	ReserveUnschedulablePods bool `json:"reserveUnschedulablePods,omitempty"`
}

// UpdateStrategyType is Manual.
type UpdateStrategyType string

// ManualUpdateStrategyType is the only UpdateStrategyType.
const ManualUpdateStrategyType UpdateStrategyType = "Manual"

// RolloutOrder says in which order subsets get a new template.
type RolloutOrder string

const (
	// ParallelRollout updates all subsets at once.
	ParallelRollout RolloutOrder = "Parallel"
	// InOrderRollout updates a subset when all earlier ones have been updated and are ready.
	InOrderRollout RolloutOrder = "InOrder"
)

// UpdateStrategy says how a changed template is rolled out.
//
// +kubebuilder:validation:XValidation:rule="!has(self.maxSurge) || type(self.maxSurge) != int || int(self.maxSurge) >= 0",message="must not be negative",fieldPath=".maxSurge"
// +kubebuilder:validation:XValidation:rule="!has(self.maxSurge) || type(self.maxSurge) != string || string(self.maxSurge).matches('^(100|[0-9]{1,2})%$')",message="must be a count or a percentage from 0% to 100%",fieldPath=".maxSurge"
// +kubebuilder:validation:XValidation:rule="!has(self.maxSurge) || (type(self.maxSurge) == int ? int(self.maxSurge) != 0 : !string(self.maxSurge).matches('^0+%$'))",message="must be above 0: replicas move only by starting in their new place before they end in the old one",fieldPath=".maxSurge"
type UpdateStrategy struct {
	// Type is Manual (default).
	//
	// +optional
	// +kubebuilder:validation:Pattern=`^(Manual)?$`
	Type UpdateStrategyType `json:"type,omitempty"`

	// ManualUpdate sets how far each subset is updated.
	//
	// +optional
	ManualUpdate *ManualUpdate `json:"manualUpdate,omitempty"`

	// Paused keeps a changed template or patch from all children. Replicas still change. (Berth)
	//
	// +optional
	Paused bool `json:"paused,omitempty"`

	// Order is Parallel (default): all subsets are updated at once. Or InOrder: a subset is updated when all earlier ones have been updated and are
	// ready, so that a subset whose rollout fails stops those after it. (Berth)
	//
	// +optional
	// +kubebuilder:validation:Pattern=`^(Parallel|InOrder)?$`
	Order RolloutOrder `json:"order,omitempty"`

	// MaxSurge is how many replicas all children together may have above spec.replicas while replicas move from one child to another: because a
	// subset was removed, or the kind of the template was switched, or a subset has room again. It is a count, or a percentage of spec.replicas, rounded up.
	// Nil means 25%. It must be above 0. Surge within a child is a matter of its own strategy. (Berth)
	//
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	MaxSurge *intstr.IntOrString `json:"maxSurge,omitempty"`
}

// ManualUpdate sets how far each subset is updated.
type ManualUpdate struct {
	// Partitions say how many replicas of a subset keep the previous template. A StatefulSet or CloneSet gets the number as its partition. A Deployment
	// cannot keep some replicas: it keeps its template if the partition is not below its replicas, and is updated otherwise.
	//
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Partitions map[string]int32 `json:"partitions,omitempty"`
}

// UnitedDeploymentStatus says what the children are.
type UnitedDeploymentStatus struct {
	// ObservedGeneration is the generation of the spec that this status describes.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Summary is ready/replicas of each subset in order, for people to read: "zone-a 3/3, zone-b 1/2".
	//
	// +optional
	Summary string `json:"summary,omitempty"`

	// Replicas is how many pods the children have. Reserved pods do not count.
	//
	// +optional
	Replicas int32 `json:"replicas"`

	// ReadyReplicas is how many of them are ready.
	//
	// +optional
	ReadyReplicas int32 `json:"readyReplicas,omitempty"`

	// UpdatedReplicas is how many of them have the template of UpdatedRevision.
	//
	// +optional
	UpdatedReplicas int32 `json:"updatedReplicas,omitempty"`

	// UpdatedReadyReplicas is how many of those are ready.
	//
	// +optional
	UpdatedReadyReplicas int32 `json:"updatedReadyReplicas,omitempty"`

	// ReservedPods is how many pods are reservations.
	//
	// +optional
	ReservedPods int32 `json:"reservedPods,omitempty"`

	// CurrentRevision is the ControllerRevision that all pods had last.
	//
	// +optional
	CurrentRevision string `json:"currentRevision,omitempty"`

	// UpdatedRevision is the ControllerRevision of the template.
	//
	// +optional
	UpdatedRevision string `json:"updatedRevision,omitempty"`

	// CollisionCount makes the names of ControllerRevisions unique if hashes collide. Nil means 0.
	//
	// +optional
	CollisionCount *int32 `json:"collisionCount,omitempty"`

	// LabelSelector picks the pods that Replicas counts, for autoscalers.
	//
	// +optional
	LabelSelector string `json:"labelSelector,omitempty"`

	// SubsetReplicas is how many replicas each child asks for. It repeats SubsetStatuses for clients of v1alpha1.
	//
	// +optional
	SubsetReplicas map[string]int32 `json:"subsetReplicas,omitempty"`

	// UpdateStatus repeats UpdatedRevision and the partitions for clients of v1alpha1.
	//
	// +optional
	UpdateStatus *UpdateStatus `json:"updateStatus,omitempty"`

	// SubsetStatuses has one entry for each subset, in order.
	//
	// +optional
	SubsetStatuses []SubsetStatus `json:"subsetStatuses,omitempty"`

	// Conditions of the UnitedDeployment as a whole.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
	// Clusters are those that subsets name, and those where children are left that have to go. (Berth)
	//
	// +optional
	// +listType=map
	// +listMapKey=name
	Clusters []ClusterStatus `json:"clusters,omitempty"`
}

// ClusterStatus says how a cluster takes part.
type ClusterStatus struct {
	// Name of the cluster.
	//
	// +required
	Name string `json:"name"`
	// State is Ready, NotSelected, Cordoned, Drained, Unreachable, Refusing, Unknown or Lost.
	//
	// +required
	State ClusterState `json:"state"`
	// Since is when the cluster ceased to answer, or answered again.
	//
	// +required
	Since metav1.Time `json:"since"`
	// Identity of the cluster: the UID of its namespace kube-system. It tells a cluster whose ClusterProfile got another name from another cluster. Empty if the hub may not read it.
	//
	// +optional
	Identity string `json:"identity,omitempty"`
	// LeavingReplicas is how many replicas children keep for now that have to go.
	//
	// +optional
	LeavingReplicas int32 `json:"leavingReplicas,omitempty"`
	// SeenLeavingReplicas is how many these asked for when the cluster answered last.
	//
	// +optional
	SeenLeavingReplicas int32 `json:"seenLeavingReplicas,omitempty"`
}

// UpdateStatus is how far the rollout is.
type UpdateStatus struct {
	// UpdatedRevision is the ControllerRevision of the template.
	//
	// +optional
	UpdatedRevision string `json:"updatedRevision,omitempty"`
	// CurrentPartitions are the partitions of the children.
	//
	// +optional
	CurrentPartitions map[string]int32 `json:"currentPartitions,omitempty"`
}

// SubsetStatus says what the child of a subset is.
type SubsetStatus struct {
	// Name of the subset.
	Name string `json:"name,omitempty"`
	// Cluster of the subset. Empty means that of the UnitedDeployment. If the cluster does not answer, the numbers are what was known last. (Berth)
	//
	// +optional
	Cluster string `json:"cluster,omitempty"`
	// SeenReplicas is how many pods the child asked for when its cluster answered last. Another number in replicas may not have arrived there. Only with a
	// cluster. (Berth)
	//
	// +optional
	SeenReplicas int32 `json:"seenReplicas,omitempty"`
	// Share is how many replicas the subset is to have in the end. Only if the UnitedDeployment has subsets in other clusters. (Berth)
	//
	// +optional
	Share int32 `json:"share,omitempty"`
	// Replicas is how many pods the child asks for, reserved ones included.
	//
	// +optional
	Replicas int32 `json:"replicas,omitempty"`
	// ReadyReplicas is how many of them are ready.
	//
	// +optional
	ReadyReplicas int32 `json:"readyReplicas,omitempty"`
	// Partition is how many replicas of the child keep the previous template.
	//
	// +optional
	Partition int32 `json:"partition,omitempty"`
	// ReservedPods is how many pods of the child are reservations.
	//
	// +optional
	ReservedPods int32 `json:"reservedPods,omitempty"`
	// FailedTrials is how often in a row replicas were tried in the subset and found no node. Only with strategy Adaptive. (Berth)
	//
	// +optional
	FailedTrials int32 `json:"failedTrials,omitempty"`
	// Conditions of the subset: Schedulable, with strategy Adaptive.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
}

// Condition of a UnitedDeployment or of a subset.
type Condition struct {
	// Type of the condition.
	//
	// +required
	Type ConditionType `json:"type"`
	// Status is True, False or Unknown.
	//
	// +optional
	Status corev1.ConditionStatus `json:"status,omitempty"`
	// LastTransitionTime is when Status last changed.
	//
	// +optional
	LastTransitionTime metav1.Time `json:"lastTransitionTime,omitempty"`
	// Reason of the status, in one word.
	//
	// +optional
	Reason Reason `json:"reason,omitempty"`
	// Message for people.
	//
	// +optional
	Message string `json:"message,omitempty"`
}
