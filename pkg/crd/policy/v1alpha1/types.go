package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// PodUnavailableBudget keeps a number of pods available through everything that is done to them on purpose: deletion, eviction and changes
// in place.
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
	Spec   PodUnavailableBudgetSpec   `json:"spec"`
	Status PodUnavailableBudgetStatus `json:"status,omitempty"`
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
// +kubebuilder:validation:XValidation:rule="has(self.maxUnavailable) || has(self.minAvailable)",message="needs maxUnavailable or minAvailable"
// +kubebuilder:validation:XValidation:rule="!has(self.maxUnavailable) || type(self.maxUnavailable) != int || int(self.maxUnavailable) >= 0",message="must not be negative",fieldPath=".maxUnavailable"
// +kubebuilder:validation:XValidation:rule="!has(self.maxUnavailable) || type(self.maxUnavailable) != string || string(self.maxUnavailable).matches('^(100|[0-9]{1,2})%$')",message="must be a count or a percentage from 0% to 100%",fieldPath=".maxUnavailable"
// +kubebuilder:validation:XValidation:rule="!has(self.minAvailable) || type(self.minAvailable) != int || int(self.minAvailable) >= 0",message="must not be negative",fieldPath=".minAvailable"
// +kubebuilder:validation:XValidation:rule="!has(self.minAvailable) || type(self.minAvailable) != string || string(self.minAvailable).matches('^(100|[0-9]{1,2})%$')",message="must be a count or a percentage from 0% to 100%",fieldPath=".minAvailable"
// +kubebuilder:validation:XValidation:rule="!has(self.unhealthyPodPolicy) || size(self.unhealthyPodPolicy) == 0 || self.unhealthyPodPolicy in ['AlwaysAllow', 'IfHealthyBudget']",message="must be AlwaysAllow or IfHealthyBudget",fieldPath=".unhealthyPodPolicy"
type PodUnavailableBudgetSpec struct {
	// Selector picks the pods, in the budget's own namespace. It must not be empty. Exactly one of selector and targetRef is given, and neither can be
	// changed. In budgets that are older than these rules an empty selector picks all pods, and targetRef takes precedence over selector.
	//
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// TargetReference names the workload whose pods are protected, in the budget's own namespace.
	//
	// +optional
	TargetReference *TargetReference `json:"targetRef,omitempty"`

	// MaxUnavailable is how many pods may be unavailable, as a count or as a percentage of the replicas, rounded up. It takes precedence over
	// minAvailable.
	//
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`

	// MinAvailable is how many pods must stay available, as a count or as a percentage of the replicas, rounded up.
	//
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	MinAvailable *intstr.IntOrString `json:"minAvailable,omitempty"`

	// UnhealthyPodPolicy says what may be done to pods that are not available anyway. Berth.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=32
	UnhealthyPodPolicy UnhealthyPodPolicy `json:"unhealthyPodPolicy,omitempty"`
}

// TargetReference identifies a workload.
type TargetReference struct {
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9.-]+/)?v[a-z0-9]+$')",message="must be the group and version of the workload, for instance apps/v1"
	APIVersion string `json:"apiVersion,omitempty"`
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind,omitempty"`
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
}

// UnhealthyPodPolicy is AlwaysAllow or IfHealthyBudget.
type UnhealthyPodPolicy string

const (
	// AlwaysAllowUnhealthy lets everything be done to a pod that is not available, so that broken pods can be replaced. The default.
	AlwaysAllowUnhealthy UnhealthyPodPolicy = "AlwaysAllow"
	// IfHealthyBudget holds a running pod that is not available as well, until enough others are, for pods that keep data while not ready.
	IfHealthyBudget UnhealthyPodPolicy = "IfHealthyBudget"
)

// PodUnavailableBudgetStatus is what was observed of a budget, and the ledger of what was let through.
//
// The webhook and the controller write it, each with the resourceVersion of the budget that it computed from, so that every write is a step
// in one order.
type PodUnavailableBudgetStatus struct {
	// ObservedGeneration is the generation of the spec that the numbers belong to.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration"`

	// DisruptedPods are the pods in the ledger that are about to be deleted, by name, with the time of the approval. For readers.
	//
	// +optional
	DisruptedPods map[string]metav1.Time `json:"disruptedPods,omitempty"`

	// UnavailablePods are the pods in the ledger that are being changed in place or made unready, by name, with the time of the approval. For readers.
	//
	// +optional
	UnavailablePods map[string]metav1.Time `json:"unavailablePods,omitempty"`

	// UnavailableAllowed is how many more pods may become unavailable. The webhook counts anew for every decision; this number informs.
	//
	// +optional
	UnavailableAllowed int32 `json:"unavailableAllowed"`

	// CurrentAvailable is how many pods are available.
	//
	// +optional
	CurrentAvailable int32 `json:"currentAvailable"`

	// DesiredAvailable is how many pods must stay available.
	//
	// +optional
	DesiredAvailable int32 `json:"desiredAvailable"`

	// TotalReplicas is how many pods there should be.
	//
	// +optional
	TotalReplicas int32 `json:"totalReplicas"`

	// Ledger is the record of operations that were let through and whose outcome is not proven yet. Its pods count as unavailable. Berth.
	//
	// +optional
	// +listType=map
	// +listMapKey=uid
	Ledger []LedgerEntry `json:"ledger,omitempty"`

	// LedgerRevision is the resourceVersion of the pods by which entries were last struck out of the ledger. Pods of an older one are not
	// judged by: they would show as available what the ledger does not know any more. Berth.
	//
	// +optional
	LedgerRevision string `json:"ledgerRevision,omitempty"`

	// Conditions are DisruptionAllowed, Enforcing and ReplicasKnown. Berth.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// LedgerEntry is one operation that was let through.
type LedgerEntry struct {
	// UID of the pod.
	//
	// +required
	UID types.UID `json:"uid"`
	// Name of the pod.
	//
	// +optional
	Name string `json:"name,omitempty"`
	// Operation that was let through. One that removes the pod replaces one that changes it.
	//
	// +optional
	Operation Operation `json:"operation,omitempty"`
	// Generation of the pod once the operation is done, as far as it is known.
	//
	// +optional
	Generation int64 `json:"generation,omitempty"`
	// Revision is the resourceVersion of the pod that was judged when it was to be made unready, empty for other operations. The API server
	// makes the change to this revision or asks again, so that it is over when the pod has another one.
	//
	// +optional
	Revision string `json:"revision,omitempty"`
	// Time of the last approval by the clock of whoever wrote it. For readers; nothing is decided by it.
	//
	// +optional
	Time metav1.Time `json:"time,omitempty"`
	// Renewals is how often the approval was given again. A change restarts the time after which the entry expires.
	//
	// +optional
	Renewals int32 `json:"renewals,omitempty"`
}
