package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

// SpreadRule gives a WorkloadSpread to each workload of its namespace that it picks.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=spreadrules,categories=all
// +kubebuilder:metadata:annotations="helm.sh/resource-policy=keep"
// +kubebuilder:printcolumn:name="Kind",type=string,JSONPath=".spec.target.kind"
// +kubebuilder:printcolumn:name="Workloads",type=integer,JSONPath=".status.workloads",description="workloads that spreads of the rule divide"
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=".status.readyWorkloads",description="those whose spread is ready"
// +kubebuilder:printcolumn:name="Pods",type=string,JSONPath=".status.summary",description="pods in each subset, in order, of all workloads together"
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=".status.conditions[?(@.type=='Ready')].reason"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=".metadata.creationTimestamp"
type SpreadRule struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec   SpreadRuleSpec `json:"spec"`
	Status RuleStatus     `json:"status,omitempty"`
}

// SpreadRuleList is a list of SpreadRules.
//
// +kubebuilder:object:root=true
type SpreadRuleList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SpreadRule `json:"items"`
}

// ClusterSpreadRule gives a WorkloadSpread to each workload that it picks, in all namespaces that it picks. A SpreadRule of the namespace that picks the workload too wins.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=clusterspreadrules,scope=Cluster
// +kubebuilder:metadata:annotations="helm.sh/resource-policy=keep"
// +kubebuilder:printcolumn:name="Kind",type=string,JSONPath=".spec.target.kind"
// +kubebuilder:printcolumn:name="Workloads",type=integer,JSONPath=".status.workloads",description="workloads that spreads of the rule divide"
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=".status.readyWorkloads",description="those whose spread is ready"
// +kubebuilder:printcolumn:name="Pods",type=string,JSONPath=".status.summary",description="pods in each subset, in order, of all workloads together"
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=".status.conditions[?(@.type=='Ready')].reason"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=".metadata.creationTimestamp"
type ClusterSpreadRule struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec   ClusterSpreadRuleSpec `json:"spec"`
	Status RuleStatus            `json:"status,omitempty"`
}

// ClusterSpreadRuleList is a list of ClusterSpreadRules.
//
// +kubebuilder:object:root=true
type ClusterSpreadRuleList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ClusterSpreadRule `json:"items"`
}

// SpreadRuleSpec says which workloads a rule picks, and how each is divided.
type SpreadRuleSpec struct {
	// Target picks the workloads.
	//
	// +required
	Target Target `json:"target"`

	// Spread is what the WorkloadSpread of each workload says.
	//
	// +required
	Spread Spread `json:"spread"`
}

// ClusterSpreadRuleSpec is that of a SpreadRule, and in which namespaces.
type ClusterSpreadRuleSpec struct {
	// NamespaceSelector picks namespaces by their labels. An empty one picks all. kube-system, kube-public, kube-node-lease and berth-system are never picked.
	//
	// +required
	NamespaceSelector metav1.LabelSelector `json:"namespaceSelector"`

	SpreadRuleSpec `json:",inline"`
}

// Target picks workloads of one kind. A workload that another object controls, such as the ReplicaSet of a Deployment, is not picked.
type Target struct {
	// APIVersion is the group and version of the kind, for instance apps/v1. Another version of the same group means the same.
	//
	// +required
	// +kubebuilder:validation:MaxLength=253
	APIVersion string `json:"apiVersion"`

	// Kind of the workloads, for instance Deployment: any kind that a WorkloadSpread may name.
	//
	// +required
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind"`

	// Selector picks workloads by their labels, not by those of their pods. An empty one picks all workloads of the kind.
	//
	// +required
	Selector metav1.LabelSelector `json:"selector"`
}

// Spread has the fields of a WorkloadSpread but the target. They mean the same: percentages are of the replicas of each workload.
type Spread struct {
	// TargetFilter narrows each spread to some pods of its workload.
	//
	// +optional
	TargetFilter *v1beta1.TargetFilter `json:"targetFilter,omitempty"`

	// Subsets are tried in this order.
	//
	// +required
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	Subsets []v1beta1.Subset `json:"subsets"`

	// ScheduleStrategy says when pods are bound, and what happens when a subset has no node or every subset is full.
	//
	// +optional
	// +kubebuilder:default={type: Fixed}
	ScheduleStrategy v1beta1.ScheduleStrategy `json:"scheduleStrategy,omitempty"`
}

// RuleStatus says what a rule does.
type RuleStatus struct {
	// ObservedGeneration is the generation of the rule that the status describes.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Workloads is how many workloads spreads of the rule divide. ReadyWorkloads are those whose spread is ready.
	//
	// +optional
	Workloads int32 `json:"workloads"`
	// +optional
	ReadyWorkloads int32 `json:"readyWorkloads"`

	// Summary is how many pods run in each subset, in order, of all workloads together.
	//
	// +optional
	Summary string `json:"summary,omitempty"`

	// Conditions of the rule; see Ready and Picking.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Problems are workloads for which the rule does not do what it says, by name, at most 10.
	//
	// +optional
	// +listType=atomic
	Problems []Problem `json:"problems,omitempty"`
}

// Problem is what is wrong with one workload.
type Problem struct {
	// Namespace and Name of the workload.
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Reason in one word.
	Reason Reason `json:"reason"`
	// Message says what is wrong, and what to do.
	Message string `json:"message"`
}

// Reason of a condition or a problem.
type Reason string

const (
	// ConditionReady of a rule: it is valid, its kind can be read, and no other rule of its scope picks the same workload.
	ConditionReady = "Ready"
	// ConditionPicking of a rule: it picks a workload.
	ConditionPicking = "Picking"
)

const (
	// ReasonRuleReady: every workload that the rule picks has its spread, or one that wins.
	ReasonRuleReady Reason = "RuleReady"
	// ReasonInvalidRule: the rule cannot be used until it is corrected. The spreads that it has made stay as they are.
	ReasonInvalidRule Reason = "InvalidRule"
	// ReasonKindUnreadable: Berth cannot read workloads of the kind.
	ReasonKindUnreadable Reason = "KindUnreadable"
	// ReasonRulesConflict: another rule of the same scope picks the same workload. The older rule divides it.
	ReasonRulesConflict Reason = "RulesConflict"
	// ReasonNameTaken: a WorkloadSpread that the rule did not make has the name of the one that it would make.
	ReasonNameTaken Reason = "NameTaken"
	// ReasonSpreadRefused: the API server, or a webhook, refuses the spread of a workload.
	ReasonSpreadRefused Reason = "SpreadRefused"
	// ReasonSpreadNotReady: the spread of a workload is not ready, and its own condition says why.
	ReasonSpreadNotReady Reason = "SpreadNotReady"
	// ReasonPercentageOfOnePod: the workload has one replica, and percentages put it into one subset.
	ReasonPercentageOfOnePod Reason = "PercentageOfOnePod"
	// ReasonPicks: the rule picks workloads.
	ReasonPicks Reason = "Picks"
	// ReasonPicksNothing: the rule picks no workload now.
	ReasonPicksNothing Reason = "PicksNothing"
	// ReasonPicksNothingForADay: the rule has picked no workload for a day. Its selectors are probably wrong.
	ReasonPicksNothingForADay Reason = "PicksNothingForADay"
)
