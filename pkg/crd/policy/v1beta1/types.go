package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// PodUnavailableBudget keeps a number of pods available during voluntary disruptions: deletions, evictions and in-place changes of the pods.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
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
	TargetReference *TargetReference `json:"targetRef,omitempty"`

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
	UnhealthyPodPolicy UnhealthyPodPolicy `json:"unhealthyPodPolicy,omitempty"`

	// PerSubset limits also what may be unavailable in each subset of the pods, such as a zone. Nil does not. With it, maxUnavailable and minAvailable may
	// both be left out. This field is an addition of Berth.
	//
	// +optional
	PerSubset *PerSubset `json:"perSubset,omitempty"`

	// KeepPodDisruptionBudget makes Berth keep a PodDisruptionBudget of the same name beside the budget, with the same pods and numbers, so that node
	// autoscalers plan by it. Berth keeps none beside another one with the same name or for the same pods, because the API server evicts no pod that has two;
	// condition PodDisruptionBudgetKept says so. It is deleted with the budget. This field is an addition of Berth.
	//
	// +optional
	KeepPodDisruptionBudget bool `json:"keepPodDisruptionBudget,omitempty"`

	// ProtectOperations are the operations that the budget protects pods from: DELETE, EVICT, UPDATE, RESIZE. Empty means all of them. The budget neither
	// refuses nor counts operations that the list leaves out. In v1alpha1, the annotation kruise.io/pub-protect-operations lists them.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=4
	// +kubebuilder:validation:items:MaxLength=32
	// +kubebuilder:validation:items:Pattern=`^(DELETE|EVICT|UPDATE|RESIZE)$`
	ProtectOperations []Operation `json:"protectOperations,omitempty"`

	// ProtectTotalReplicas is the number of replicas, for pods whose workload does not tell it. Nil means that the workloads' numbers count. In v1alpha1,
	// the annotation pub.kruise.io/protect-total-replicas says it.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	ProtectTotalReplicas *int32 `json:"protectTotalReplicas,omitempty"`

	// IgnoredPodSelector selects pods that the budget does not protect, although selector or targetRef covers them. The budget neither refuses an operation
	// on them nor counts them as available. Nil selects none. It must not be empty. In v1alpha1, the annotation policy.berth.dev/ignored-pod-selector
	// holds it as JSON.
	//
	// +optional
	IgnoredPodSelector *metav1.LabelSelector `json:"ignoredPodSelector,omitempty"`

	// ReplaceFirst makes a new pod before an available pod goes for whose eviction or deletion there is no room. The refusal says so, and the pod is evicted
	// once the budget allows it, whether somebody asks again or not. It is for pods of Deployments whose volume claims, if there are any, many pods may write.
	// Nil makes none. This field is an addition of Berth.
	//
	// +optional
	ReplaceFirst *ReplaceFirst `json:"replaceFirst,omitempty"`
}

// ReplaceFirst limits the pods that are replaced before they go.
type ReplaceFirst struct {
	// MaxPods is how many pods of the budget are replaced at a time. The default is 1.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	MaxPods *int32 `json:"maxPods,omitempty"`
	// TimeoutSeconds is how long the new pod may take to become ready. Then the ReplicaSet takes the old pod back, and removes the new one. The default is 600.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	TimeoutSeconds *int32 `json:"timeoutSeconds,omitempty"`
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

// PerSubset limits what may be unavailable in each subset of a budget's pods. A subset is all pods with the same value of a label.
type PerSubset struct {
	// Label is the key of the label whose value names the subset of a pod. With topology.kubernetes.io/zone it is the zone of the pod's node: the API server
	// copies that label to pods. With apps.kruise.io/subset-name it is the subset of a UnitedDeployment, and with berth.dev/subset that of a WorkloadSpread.
	// If the selector of a workload has the label with one value, the workload says how many pods the subset must have. Otherwise a pod that is missing or
	// has no such label may be of any subset.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$')",message="must be the key of a label"
	Label string `json:"label"`

	// MaxUnavailable is how many pods of one subset may be unavailable: a count, or a percentage of the pods that the subset should have. A percentage is
	// rounded up to whole pods. Nil limits nothing.
	//
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`

	// OneAtATime allows no available pod of a subset to become unavailable while pods of another subset are unavailable. So zones are drained one after the
	// other.
	//
	// +optional
	OneAtATime bool `json:"oneAtATime,omitempty"`
}

// UnhealthyPodPolicy is AlwaysAllow or IfHealthyBudget.
type UnhealthyPodPolicy string

const (
	// AlwaysAllowUnhealthy allows every operation on an unavailable pod, so that broken pods can be replaced. This is the default.
	AlwaysAllowUnhealthy UnhealthyPodPolicy = "AlwaysAllow"
	// IfHealthyBudget also protects a running pod that is unavailable, until enough other pods are available. Use it for pods that hold data
	// while they are not ready. It holds no deletion, because by deletions pods leave lost nodes.
	IfHealthyBudget UnhealthyPodPolicy = "IfHealthyBudget"
)

// PodUnavailableBudgetStatus is the observed state of a budget, and the ledger of allowed operations.
//
// The webhook and the controller write it. Each write carries the resourceVersion of the budget that the writer read. So all writes have one
// order, and none overwrites a change that its writer has not seen.
type PodUnavailableBudgetStatus struct {
	// ObservedGeneration is the generation of the spec from which the numbers were computed.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration"`

	// DisruptedPods are the pods in the ledger that are about to be deleted or to leave the budget. It maps their names to the time of the approval.
	// It only informs.
	//
	// +optional
	DisruptedPods map[string]metav1.Time `json:"disruptedPods,omitempty"`

	// UnavailablePods are the pods in the ledger that are changed in place or made unready. It maps their names to the time of the approval.
	// It only informs.
	//
	// +optional
	UnavailablePods map[string]metav1.Time `json:"unavailablePods,omitempty"`

	// UnavailableAllowed is how many more pods may become unavailable now. It only informs: the webhook counts the pods again for every decision.
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

	// TotalReplicas is how many pods the budget's workloads ask for.
	//
	// +optional
	TotalReplicas int32 `json:"totalReplicas"`

	// Subsets are the counts of the subsets, for a budget with perSubset: at most 50, in order of their names. They only inform.
	//
	// +optional
	// +listType=map
	// +listMapKey=name
	Subsets []SubsetStatus `json:"subsets,omitempty"`

	// SubsetWorkloads are the workloads that say how many pods a subset must have, at most 100. So Berth also knows of a subset that has lost all its pods.
	//
	// +optional
	// +listType=map
	// +listMapKey=uid
	SubsetWorkloads []SubsetWorkload `json:"subsetWorkloads,omitempty"`

	// Ledger records the allowed operations whose outcome is not proven yet. Their pods count as unavailable. This field is an addition of Berth.
	//
	// +optional
	// +listType=map
	// +listMapKey=uid
	Ledger []LedgerEntry `json:"ledger,omitempty"`

	// LedgerRevision is the minimum resourceVersion of the list of pods for the next decision: the newest of the pods by which Berth added entries to the
	// ledger, and of the lists by which it removed some. A pod whose entry was removed could still look available in it. A pod on which a decision relies could look unavailable in it,
	// and then an operation on that pod would need no room. This field is an addition of Berth.
	//
	// +optional
	LedgerRevision string `json:"ledgerRevision,omitempty"`

	// Replacing are the pods that spec.replaceFirst replaces, at most maxPods. This field is an addition of Berth.
	//
	// +optional
	// +listType=map
	// +listMapKey=uid
	Replacing []ReplacedPod `json:"replacing,omitempty"`

	// Conditions are DisruptionAllowed, Enforcing, ReplicasKnown and, with keepPodDisruptionBudget, PodDisruptionBudgetKept. This field is an addition of Berth.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// SubsetStatus is the count of one subset.
type SubsetStatus struct {
	// Name is the value of the label. It is empty for pods without the label.
	//
	// +required
	Name string `json:"name"`
	// TotalReplicas is how many pods the subset should have.
	//
	// +optional
	TotalReplicas int32 `json:"totalReplicas"`
	// CurrentAvailable is how many pods of the subset are available.
	//
	// +optional
	CurrentAvailable int32 `json:"currentAvailable"`
}

// SubsetWorkload is a workload whose pods are all in one subset.
type SubsetWorkload struct {
	// +optional
	APIVersion string `json:"apiVersion,omitempty"`
	// +optional
	Kind string `json:"kind,omitempty"`
	// +optional
	Name string `json:"name,omitempty"`
	// +required
	UID types.UID `json:"uid"`
}

// LedgerEntry is one allowed operation on one pod.
type LedgerEntry struct {
	// UID of the pod.
	//
	// +required
	UID types.UID `json:"uid"`
	// Name of the pod.
	//
	// +optional
	Name string `json:"name,omitempty"`
	// Operation that the webhook allowed. An operation that removes the pod replaces one that changes it.
	//
	// +optional
	Operation Operation `json:"operation,omitempty"`
	// Generation that the pod will have after the operation, if it is known.
	//
	// +optional
	Generation int64 `json:"generation,omitempty"`
	// Revision is the resourceVersion of the pod for which the webhook allowed an UNREADY operation. It is empty for other operations. The API server
	// either applies the change to this revision or calls the webhook again. So the request is over once the pod has another revision.
	//
	// +optional
	Revision string `json:"revision,omitempty"`
	// Time of the last approval, by the clock of the writer. It only informs: Berth decides nothing by it.
	//
	// +optional
	Time metav1.Time `json:"time,omitempty"`
	// Renewals is how often the webhook has renewed the approval. Any change of the entry restarts the time after which it expires.
	//
	// +optional
	Renewals int32 `json:"renewals,omitempty"`
}

// ReplacedPod is a pod that goes once a new one is ready.
type ReplacedPod struct {
	// UID of the pod.
	//
	// +required
	UID types.UID `json:"uid"`
	// Name of the pod.
	//
	// +optional
	Name string `json:"name,omitempty"`
}
