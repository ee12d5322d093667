package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
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
	Spec   WorkloadSpreadSpec           `json:"spec"`
	Status v1beta1.WorkloadSpreadStatus `json:"status,omitempty"`
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
	TargetReference v1beta1.TargetReference `json:"targetRef"`

	// TargetFilter narrows the spread to some pods of the workload, for workloads whose pods have several roles.
	//
	// +optional
	TargetFilter *v1beta1.TargetFilter `json:"targetFilter,omitempty"`

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
	ScheduleStrategy v1beta1.ScheduleStrategy `json:"scheduleStrategy,omitempty"`
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

	// RequiredNodeSelectorTerm selects the nodes of the subset. It is combined (AND) with the pod's own required node affinity. Nil selects every
	// node.
	//
	// +optional
	RequiredNodeSelectorTerm *corev1.NodeSelectorTerm `json:"requiredNodeSelectorTerm,omitempty"`

	// PreferredNodeSelectorTerms rank the nodes of the subset, in addition to the pod's own preferences.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=64
	PreferredNodeSelectorTerms []corev1.PreferredSchedulingTerm `json:"preferredNodeSelectorTerms,omitempty"`

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
