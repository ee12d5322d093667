package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// FederatedReplicaSet divides its replicas over clusters, and has a ReplicaSet of its own name in each of them.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.labelSelector
// +kubebuilder:resource:path=federatedreplicasets,shortName=frs,categories=all
// +kubebuilder:metadata:annotations="helm.sh/resource-policy=keep"
// +kubebuilder:printcolumn:name="Desired",type=integer,JSONPath=".spec.replicas"
// +kubebuilder:printcolumn:name="Current",type=integer,JSONPath=".status.replicas"
// +kubebuilder:printcolumn:name="Available",type=integer,JSONPath=".status.availableReplicas"
// +kubebuilder:printcolumn:name="Clusters",type=string,JSONPath=".status.summary",description="available/wanted replicas of each cluster, by name"
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=".status.conditions[?(@.type=='Ready')].reason"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=".metadata.creationTimestamp"
type FederatedReplicaSet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec   FederatedReplicaSetSpec   `json:"spec"`
	Status FederatedReplicaSetStatus `json:"status,omitempty"`
}

// FederatedReplicaSetList is a list of FederatedReplicaSets.
//
// +kubebuilder:object:root=true
type FederatedReplicaSetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []FederatedReplicaSet `json:"items"`
}

// FederatedReplicaSetSpec is that of a ReplicaSet, and how replicas are divided over clusters.
type FederatedReplicaSetSpec struct {
	// Replicas is how many pods run in all clusters together.
	//
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	Replicas *int32 `json:"replicas,omitempty"`

	// MinReadySeconds is for how long a new pod must be ready before it is available.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	MinReadySeconds int32 `json:"minReadySeconds,omitempty"`

	// Selector picks the pods in every cluster. It must match the labels of the template. It cannot be changed.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed, because that of a ReplicaSet cannot; create another FederatedReplicaSet, and delete this one when its pods run"
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// Template of the pods. As with a ReplicaSet, a changed template is that of new pods only.
	//
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Type=object
	Template *runtime.RawExtension `json:"template,omitempty"`

	// Preferences say how replicas are divided over clusters. Nil means evenly over all clusters, and that running replicas stay where they are.
	//
	// +optional
	Preferences *Preferences `json:"preferences,omitempty"`

	// Pace says how fast replicas move, and for how long Berth waits before they do.
	//
	// +optional
	Pace Pace `json:"pace,omitempty"`
}

// Preferences say how replicas are divided over clusters.
type Preferences struct {
	// Rebalance moves running replicas to other clusters, if that brings the clusters closer to their shares. Otherwise running replicas stay where they are, and only new
	// ones go where they are missing.
	//
	// +optional
	Rebalance bool `json:"rebalance,omitempty"`

	// Clusters by name. The entry "*" stands for every cluster without an entry of its own. A cluster that has neither gets no replicas. Nil means every cluster with
	// weight 1.
	//
	// +optional
	// +kubebuilder:validation:MaxProperties=2000
	Clusters map[string]ClusterPreferences `json:"clusters,omitempty"`
}

// ClusterPreferences say how many replicas a cluster gets.
//
// +kubebuilder:validation:XValidation:rule="!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",message="must not be greater than maxReplicas",fieldPath=".minReplicas"
type ClusterPreferences struct {
	// MinReplicas is how many replicas the cluster gets before any cluster gets more than its own minimum. A cluster that is lost keeps them.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	MinReplicas int32 `json:"minReplicas,omitempty"`

	// MaxReplicas is the highest number of replicas of the cluster. Nil means no limit.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	MaxReplicas *int32 `json:"maxReplicas,omitempty"`

	// Weight is the share of the cluster, in proportion to the other weights. A minimum is part of the share. With 0, the cluster gets its minimum and no more.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	Weight int32 `json:"weight,omitempty"`
}

// Pace says how fast replicas move, and for how long Berth waits before they do.
type Pace struct {
	// MaxMoving is how many replicas may exist above the total while replicas move from one cluster to another: a count, or a percentage of spec.replicas, rounded up. It is
	// also by how much a cluster that was full grows at a time. At least 1; nil means 25%.
	//
	// +optional
	// +kubebuilder:validation:XIntOrString
	MaxMoving *intstr.IntOrString `json:"maxMoving,omitempty"`

	// UnschedulableSeconds is for how long a pod may find no node before its replica goes to another cluster. Nil means 60.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	UnschedulableSeconds *int32 `json:"unschedulableSeconds,omitempty"`

	// RetrySeconds is when a cluster that was full gets more replicas than it runs, to see whether it has room again. Each time that it has none, the time doubles, up to an hour.
	// Nil means 300.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	RetrySeconds *int32 `json:"retrySeconds,omitempty"`

	// LostSeconds is for how long a cluster may not answer before other clusters run its replicas. Nil means 300.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	LostSeconds *int32 `json:"lostSeconds,omitempty"`
}

// FederatedReplicaSetStatus says what runs where.
type FederatedReplicaSetStatus struct {
	// ObservedGeneration is the generation of the spec that this status describes.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Summary is available/wanted replicas of each cluster by name, for people to read: "east 16/16, west 17/17".
	//
	// +optional
	Summary string `json:"summary,omitempty"`

	// Replicas is how many pods the clusters that answer have.
	//
	// +optional
	Replicas int32 `json:"replicas"`

	// ScheduledReplicas is how many of them have a node.
	//
	// +optional
	ScheduledReplicas int32 `json:"scheduledReplicas,omitempty"`

	// AvailableReplicas is how many of them are available.
	//
	// +optional
	AvailableReplicas int32 `json:"availableReplicas,omitempty"`

	// MayExceedBy is how many replicas may run above the total, because clusters that do not answer may still run what others have taken over, or what a lowered total no longer
	// gives them. 0 if all clusters answer.
	//
	// +optional
	MayExceedBy int32 `json:"mayExceedBy,omitempty"`

	// LabelSelector picks the pods that Replicas counts, for autoscalers.
	//
	// +optional
	LabelSelector string `json:"labelSelector,omitempty"`

	// Clusters that have replicas or may get some, by name.
	//
	// +optional
	// +listType=map
	// +listMapKey=name
	Clusters []ClusterStatus `json:"clusters,omitempty"`

	// Conditions of the FederatedReplicaSet as a whole.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ClusterStatus says what a cluster runs.
type ClusterStatus struct {
	// Name of the cluster.
	//
	// +required
	Name string `json:"name"`

	// Identity of the cluster: the UID of its namespace kube-system, and a hash of the authority or server that the hub connects to. It tells a cluster whose ClusterProfile got another name from another cluster. Empty if the hub may not read it.
	//
	// +optional
	Identity string `json:"identity,omitempty"`

	// Share is how many replicas the cluster is to have in the end.
	//
	// +optional
	Share int32 `json:"share"`

	// Wanted is how many replicas its ReplicaSet is to ask for now. It differs from Share while replicas move.
	//
	// +optional
	Wanted int32 `json:"wanted"`

	// Replicas is how many replicas its ReplicaSet asked for when it was seen last.
	//
	// +optional
	Replicas int32 `json:"replicas"`

	// ScheduledReplicas is how many of its pods have a node.
	//
	// +optional
	ScheduledReplicas int32 `json:"scheduledReplicas"`

	// AvailableReplicas is how many of them are available.
	//
	// +optional
	AvailableReplicas int32 `json:"availableReplicas"`

	// Capacity is how many replicas the cluster can run, as far as that is known. Nil means that nothing is known to limit it.
	//
	// +optional
	Capacity *Capacity `json:"capacity,omitempty"`

	// State says how the cluster takes part: Ready, Full, NameTaken, Unreachable, Refusing, Lost, Returned or Leaving.
	//
	// +optional
	State ClusterState `json:"state,omitempty"`

	// Since is when the cluster got its state. For Unreachable, Refusing and Lost it is when the cluster stopped to answer.
	//
	// +optional
	Since metav1.Time `json:"since,omitempty"`

	// Message for people, if there is something to say about the state.
	//
	// +optional
	Message string `json:"message,omitempty"`
}

// Capacity is a figure of how many replicas a cluster can run.
type Capacity struct {
	// Replicas of this FederatedReplicaSet that the cluster can run.
	//
	// +optional
	Replicas int32 `json:"replicas"`

	// Time of the figure.
	//
	// +optional
	Time metav1.Time `json:"time,omitempty"`

	// Source is Observed or Refused.
	//
	// +optional
	Source CapacitySource `json:"source,omitempty"`

	// RetryTime is when the cluster gets replicas above the figure, to see whether it has room again.
	//
	// +optional
	RetryTime *metav1.Time `json:"retryTime,omitempty"`

	// Failures is how often in a row the cluster had no room.
	//
	// +optional
	Failures int32 `json:"failures,omitempty"`
}
