package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// PodUnavailableBudget keeps a number of pods available during voluntary disruptions: deletions, evictions and in-place changes of the pods.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=podunavailablebudgets,shortName=pub,categories=all
// +kubebuilder:printcolumn:name="Max Unavailable",type=string,JSONPath=".spec.maxUnavailable"
// +kubebuilder:printcolumn:name="Min Available",type=string,JSONPath=".spec.minAvailable"
// +kubebuilder:printcolumn:name="Allowed",type=integer,JSONPath=".status.unavailableAllowed",description="How many more pods may become unavailable now"
// +kubebuilder:printcolumn:name="Available",type=integer,JSONPath=".status.currentAvailable"
// +kubebuilder:printcolumn:name="Desired",type=integer,JSONPath=".status.desiredAvailable"
// +kubebuilder:printcolumn:name="Total",type=integer,JSONPath=".status.totalReplicas"
// +kubebuilder:printcolumn:name="Enforcing",type=string,priority=1,JSONPath=".status.conditions[?(@.type=='Enforcing')].status"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=".metadata.creationTimestamp"
type PodUnavailableBudget struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec   PodUnavailableBudgetSpec           `json:"spec"`
	Status v1beta1.PodUnavailableBudgetStatus `json:"status,omitempty"`
}

// PodUnavailableBudgetList is a list of PodUnavailableBudgets.
//
// +kubebuilder:object:root=true
type PodUnavailableBudgetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PodUnavailableBudget `json:"items"`
}

// PodUnavailableBudgetSpec says which pods are protected and how many of them must stay available.
//
// +kubebuilder:validation:XValidation:rule="has(self.selector) || has(self.targetRef)",message="needs selector or targetRef to know which pods to protect"
// +kubebuilder:validation:XValidation:rule="has(self.maxUnavailable) || has(self.minAvailable) || has(self.perSubset)",message="needs maxUnavailable, minAvailable or perSubset"
// +kubebuilder:validation:XValidation:rule="!has(self.maxUnavailable) || type(self.maxUnavailable) != int || int(self.maxUnavailable) >= 0",message="must not be negative",fieldPath=".maxUnavailable"
// +kubebuilder:validation:XValidation:rule="!has(self.maxUnavailable) || type(self.maxUnavailable) != string || string(self.maxUnavailable).matches('^(100|[0-9]{1,2})%$')",message="must be a count or a percentage from 0% to 100%",fieldPath=".maxUnavailable"
// +kubebuilder:validation:XValidation:rule="!has(self.minAvailable) || type(self.minAvailable) != int || int(self.minAvailable) >= 0",message="must not be negative",fieldPath=".minAvailable"
// +kubebuilder:validation:XValidation:rule="!has(self.minAvailable) || type(self.minAvailable) != string || string(self.minAvailable).matches('^(100|[0-9]{1,2})%$')",message="must be a count or a percentage from 0% to 100%",fieldPath=".minAvailable"
// +kubebuilder:validation:XValidation:rule="!has(self.unhealthyPodPolicy) || size(self.unhealthyPodPolicy) == 0 || self.unhealthyPodPolicy in ['AlwaysAllow', 'IfHealthyBudget']",message="must be AlwaysAllow or IfHealthyBudget",fieldPath=".unhealthyPodPolicy"
// +kubebuilder:validation:XValidation:rule="!has(self.perSubset) || has(self.perSubset.maxUnavailable) || (has(self.perSubset.oneAtATime) && self.perSubset.oneAtATime)",message="needs maxUnavailable or oneAtATime: true",fieldPath=".perSubset"
// +kubebuilder:validation:XValidation:rule="!has(self.perSubset) || !has(self.perSubset.maxUnavailable) || type(self.perSubset.maxUnavailable) != int || int(self.perSubset.maxUnavailable) >= 0",message="must not be negative",fieldPath=".perSubset.maxUnavailable"
// +kubebuilder:validation:XValidation:rule="!has(self.perSubset) || !has(self.perSubset.maxUnavailable) || type(self.perSubset.maxUnavailable) != string || string(self.perSubset.maxUnavailable).matches('^(100|[0-9]{1,2})%$')",message="must be a count or a percentage from 0% to 100%",fieldPath=".perSubset.maxUnavailable"
type PodUnavailableBudgetSpec struct {
	// Selector selects the pods in the budget's own namespace. It must not be empty. A budget has either selector or targetRef, and neither can be
	// changed. In budgets that are older than these rules, an empty selector selects all pods, and targetRef takes precedence over selector.
	//
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// TargetReference names the workload whose pods the budget protects. The workload is in the budget's own namespace.
	//
	// +optional
	TargetReference *v1beta1.TargetReference `json:"targetRef,omitempty"`

	// MaxUnavailable is how many pods may be unavailable: a count, or a percentage of the replicas. A percentage is rounded up to whole pods.
	// It takes precedence over minAvailable.
	//
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`

	// MinAvailable is how many pods must stay available: a count, or a percentage of the replicas. A percentage is rounded up to whole pods.
	//
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	MinAvailable *intstr.IntOrString `json:"minAvailable,omitempty"`

	// UnhealthyPodPolicy says which operations the webhook allows on pods that are unavailable already. AlwaysAllow, the default, allows all of them.
	// IfHealthyBudget allows a running pod only to be deleted while fewer pods are available than the budget needs. This field is an addition of Berth.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=32
	UnhealthyPodPolicy string `json:"unhealthyPodPolicy,omitempty"`

	// ReplaceFirst makes a new pod before an available pod goes for whose eviction or deletion there is no room. The refusal says so, and the pod is evicted
	// once the budget allows it, whether somebody asks again or not. It is for pods of Deployments whose volume claims, if there are any, many pods may write.
	// Nil makes none. This field is an addition of Berth.
	//
	// +optional
	ReplaceFirst *v1beta1.ReplaceFirst `json:"replaceFirst,omitempty"`

	// PerSubset limits also what may be unavailable in each subset of the pods, such as a zone. Nil does not. With it, maxUnavailable and minAvailable may
	// both be left out. This field is an addition of Berth.
	//
	// +optional
	PerSubset *v1beta1.PerSubset `json:"perSubset,omitempty"`

	// KeepPodDisruptionBudget makes Berth keep a PodDisruptionBudget of the same name beside the budget, with the same pods and numbers, so that node
	// autoscalers plan by it. Berth keeps none beside another one with the same name or for the same pods, because the API server evicts no pod that has two;
	// condition PodDisruptionBudgetKept says so. It is deleted with the budget. This field is an addition of Berth.
	//
	// +optional
	KeepPodDisruptionBudget bool `json:"keepPodDisruptionBudget,omitempty"`
}
