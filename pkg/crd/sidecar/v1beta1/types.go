package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// SidecarSet injects containers into new pods, and updates them in running ones.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=sidecarsets,scope=Cluster,categories=all
// +kubebuilder:printcolumn:name="Matched",type=integer,JSONPath=".status.matchedPods"
// +kubebuilder:printcolumn:name="Updated",type=integer,JSONPath=".status.updatedPods"
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=".status.readyPods"
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=".status.conditions[?(@.type=='Ready')].reason"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=".metadata.creationTimestamp"
type SidecarSet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec   SidecarSetSpec   `json:"spec,omitempty"`
	Status SidecarSetStatus `json:"status,omitempty"`
}

// SidecarSetList is a list of SidecarSets.
//
// +kubebuilder:object:root=true
type SidecarSetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SidecarSet `json:"items"`
}

// SidecarSetSpec says which pods get which containers.
type SidecarSetSpec struct {
	// Selector picks pods by their labels. It must not be empty.
	//
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// Namespace is the only namespace with pods of the set. Empty means all that namespaceSelector selects.
	//
	// +optional
	Namespace string `json:"namespace,omitempty"`

	// NamespaceSelector picks namespaces by their labels. Nil and an empty one pick all.
	//
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`

	// InitContainers are injected after the pod's own, sorted by name. Each item is a SidecarContainer. With restartPolicy Always it is a native sidecar, which is
	// updated in place too.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:Type=object
	// +kubebuilder:validation:items:XPreserveUnknownFields
	InitContainers []runtime.RawExtension `json:"initContainers,omitempty"`

	// Containers are injected before or after the pod's own. Each item is a SidecarContainer.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:Type=object
	// +kubebuilder:validation:items:XPreserveUnknownFields
	Containers []runtime.RawExtension `json:"containers,omitempty"`

	// Volumes are those that containers of the set mount. A volume of the pod with the same name wins. Each item is a volume of a pod.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:Type=object
	// +kubebuilder:validation:items:XPreserveUnknownFields
	Volumes []runtime.RawExtension `json:"volumes,omitempty"`

	// ImagePullSecrets are added to those of the pod.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=64
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`

	// PatchPodMetadata is annotations for the pods.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=64
	PatchPodMetadata []PatchPodMetadata `json:"patchPodMetadata,omitempty"`

	// InjectionStrategy says what new pods get.
	//
	// +optional
	InjectionStrategy InjectionStrategy `json:"injectionStrategy,omitempty"`

	// UpdateStrategy says how running pods get a new version.
	//
	// +optional
	UpdateStrategy UpdateStrategy `json:"updateStrategy,omitempty"`

	// RevisionHistoryLimit is how many old ControllerRevisions are kept. Nil means 10.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	RevisionHistoryLimit *int32 `json:"revisionHistoryLimit,omitempty"`
}

// SidecarContainer is a container, and how it is injected and updated. It is the type of the items of containers and initContainers. It has these fields, and all those of a
// container of a pod (https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#Container), such as name and image.
//
// +apiref:render
type SidecarContainer struct {
	corev1.Container `json:",inline"`

	// PodInjectPolicy is BeforeAppContainer (default) or AfterAppContainer: where the container stands among those of the pod. Not for initContainers.
	PodInjectPolicy PodInjectPolicy `json:"podInjectPolicy,omitempty"`

	// UpgradeStrategy says how a running container gets a new image.
	UpgradeStrategy UpgradeStrategy `json:"upgradeStrategy,omitempty,omitzero"`

	// ShareVolumePolicy of type enabled mounts all that the pod's own containers mount, too.
	ShareVolumePolicy SharePolicy `json:"shareVolumePolicy,omitempty,omitzero"`

	// ShareVolumeDevicePolicy of type enabled does the same for block devices.
	ShareVolumeDevicePolicy SharePolicy `json:"shareVolumeDevicePolicy,omitempty,omitzero"`

	// TransferEnv copies environment variables of the pod's own containers.
	TransferEnv []TransferEnv `json:"transferEnv,omitempty"`
}

// PodInjectPolicy is a place among the containers of a pod.
type PodInjectPolicy string

const (
	// BeforeAppContainer is before the pod's own containers.
	BeforeAppContainer PodInjectPolicy = "BeforeAppContainer"
	// AfterAppContainer is after the pod's own containers.
	AfterAppContainer PodInjectPolicy = "AfterAppContainer"
)

// UpgradeType is how a running container gets a new image.
type UpgradeType string

const (
	// ColdUpgrade restarts the container.
	ColdUpgrade UpgradeType = "ColdUpgrade"
	// HotUpgrade has two containers, and starts the new version in the idle one before it ends the old one.
	HotUpgrade UpgradeType = "HotUpgrade"
)

// UpgradeStrategy says how a running container gets a new image.
type UpgradeStrategy struct {
	// UpgradeType is ColdUpgrade (default) or HotUpgrade. It cannot be changed.
	UpgradeType UpgradeType `json:"upgradeType,omitempty"`
	// HotUpgradeEmptyImage is the image of the container that does not work, with type HotUpgrade.
	HotUpgradeEmptyImage string `json:"hotUpgradeEmptyImage,omitempty"`
}

// SharePolicyType is enabled or disabled.
type SharePolicyType string

const (
	// ShareEnabled shares.
	ShareEnabled SharePolicyType = "enabled"
	// ShareDisabled does not share.
	ShareDisabled SharePolicyType = "disabled"
)

// SharePolicy says whether something of the pod's own containers is shared.
type SharePolicy struct {
	// Type is enabled or disabled (default).
	Type SharePolicyType `json:"type,omitempty"`
}

// TransferEnv copies environment variables of a container of the pod. Those that it does not have are left out.
type TransferEnv struct {
	// SourceContainerName is the container.
	SourceContainerName string `json:"sourceContainerName,omitempty"`
	// SourceContainerNameFrom reads the name of the container from a label or annotation of the pod. It wins over SourceContainerName.
	SourceContainerNameFrom *SourceContainerNameFrom `json:"sourceContainerNameFrom,omitempty"`
	// EnvName is a variable to copy, and EnvNames are more of them.
	EnvName  string   `json:"envName,omitempty"`
	EnvNames []string `json:"envNames,omitempty"`
}

// SourceContainerNameFrom reads the name of a container from a field of the pod.
type SourceContainerNameFrom struct {
	// FieldRef is metadata.labels['KEY'] or metadata.annotations['KEY'].
	FieldRef *corev1.ObjectFieldSelector `json:"fieldRef,omitempty"`
}

// PatchPolicy says what happens with an annotation that a pod has already.
type PatchPolicy string

const (
	// RetainPolicy keeps it.
	RetainPolicy PatchPolicy = "Retain"
	// OverwritePolicy replaces it.
	OverwritePolicy PatchPolicy = "Overwrite"
	// MergePatchJSONPolicy merges the two values, which are JSON objects.
	MergePatchJSONPolicy PatchPolicy = "MergePatchJson"
)

// PatchPodMetadata is annotations for pods.
type PatchPodMetadata struct {
	// Annotations to set.
	//
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`

	// PatchPolicy is Retain (default), Overwrite or MergePatchJson. With Retain, only new pods get the annotations.
	//
	// +optional
	// +kubebuilder:validation:Pattern=`^(Retain|Overwrite|MergePatchJson)?$`
	PatchPolicy PatchPolicy `json:"patchPolicy,omitempty"`
}

// InjectionStrategy says what new pods get.
type InjectionStrategy struct {
	// Paused gives nothing to new pods. Others are still updated.
	//
	// +optional
	Paused bool `json:"paused,omitempty"`

	// Revision gives an older version to new pods.
	//
	// +optional
	Revision *InjectionRevision `json:"revision,omitempty"`
}

// InjectionPolicy says which new pods get the revision.
type InjectionPolicy string

const (
	// AlwaysPolicy gives the revision to all new pods.
	AlwaysPolicy InjectionPolicy = "Always"
	// PartialPolicy gives it to new pods that the update strategy would leave at an older version.
	PartialPolicy InjectionPolicy = "Partial"
)

// InjectionRevision names a version.
type InjectionRevision struct {
	// RevisionName is the name of a ControllerRevision.
	//
	// +optional
	RevisionName *string `json:"revisionName,omitempty"`

	// CustomVersion is the value of label apps.kruise.io/sidecarset-custom-version that the SidecarSet had.
	//
	// +optional
	CustomVersion *string `json:"customVersion,omitempty"`

	// Policy is Always (default) or Partial.
	//
	// +optional
	// +kubebuilder:validation:Pattern=`^(Always|Partial)?$`
	Policy InjectionPolicy `json:"policy,omitempty"`
}

// UpdateStrategyType is RollingUpdate or NotUpdate.
type UpdateStrategyType string

const (
	// RollingUpdateType updates running pods.
	RollingUpdateType UpdateStrategyType = "RollingUpdate"
	// NotUpdateType leaves running pods as they are.
	NotUpdateType UpdateStrategyType = "NotUpdate"
)

// UpdateStrategy says how running pods get a new version.
//
// +kubebuilder:validation:XValidation:rule="!has(self.selector) || !has(self.partition)",message="excludes selector; keep one",fieldPath=".partition"
// +kubebuilder:validation:XValidation:rule="!has(self.maxUnavailable) || (type(self.maxUnavailable) == int ? int(self.maxUnavailable) > 0 : string(self.maxUnavailable).matches('^(100|[1-9][0-9]?)%$'))",message="must be a count above 0, or a percentage from 1% to 100%",fieldPath=".maxUnavailable"
// +kubebuilder:validation:XValidation:rule="!has(self.partition) || (type(self.partition) == int ? int(self.partition) >= 0 : string(self.partition).matches('^(100|[0-9]{1,2})%$'))",message="must be a count, or a percentage from 0% to 100%",fieldPath=".partition"
type UpdateStrategy struct {
	// Type is RollingUpdate (default) or NotUpdate.
	//
	// +optional
	// +kubebuilder:validation:Pattern=`^(RollingUpdate|NotUpdate)?$`
	Type UpdateStrategyType `json:"type,omitempty"`

	// Paused updates no more pods. Updates that have begun end.
	//
	// +optional
	Paused bool `json:"paused,omitempty"`

	// Selector picks the pods that are updated. Nil means all. It excludes partition.
	//
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// Partition is how many pods keep an older version: a count, or a percentage of the pods, rounded up. A percentage below 100% lets at least one pod be updated. Nil
	// means 0.
	//
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	Partition *intstr.IntOrString `json:"partition,omitempty"`

	// MaxUnavailable is how many pods may be unavailable because of updates: a count, or a percentage of the pods, rounded up. Pods that are not ready are updated in
	// addition. Nil means 1.
	//
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`

	// PriorityStrategy says which pods come first.
	//
	// +optional
	PriorityStrategy *PriorityStrategy `json:"priorityStrategy,omitempty"`

	// ScatterStrategy spreads pods with a label over the whole update. It comes after priorityStrategy.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=64
	ScatterStrategy []ScatterTerm `json:"scatterStrategy,omitempty"`

	// Recreate has no effect. Earlier versions evicted pods that cannot be updated in place if it was IfNeeded. Remove it from your manifests. (Berth)
	//
	// +optional
	Recreate string `json:"recreate,omitempty"`
}

// PriorityStrategy says which pods come first, by weight or by order.
//
// +kubebuilder:validation:XValidation:rule="!has(self.orderPriority) || !has(self.weightPriority)",message="excludes weightPriority; keep one",fieldPath=".orderPriority"
type PriorityStrategy struct {
	// OrderPriority sorts by the number at the end of a label's value, the highest first. Pods with the label of an earlier term come before others.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=64
	OrderPriority []OrderTerm `json:"orderPriority,omitempty"`

	// WeightPriority sorts by the sum of the weights of all terms that select the pod, the highest first.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=64
	WeightPriority []WeightTerm `json:"weightPriority,omitempty"`
}

// OrderTerm names a label.
type OrderTerm struct {
	// OrderedKey is the label.
	OrderedKey string `json:"orderedKey"`
}

// WeightTerm is the weight of pods with some labels.
type WeightTerm struct {
	// Weight from 1 to 100.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	Weight int32 `json:"weight"`
	// MatchSelector selects the pods.
	MatchSelector metav1.LabelSelector `json:"matchSelector"`
}

// ScatterTerm is a label of pods that are spread over the update.
type ScatterTerm struct {
	// Key of the label.
	Key string `json:"key"`
	// Value of the label. "*" means each value.
	Value string `json:"value"`
}

// SidecarSetStatus says what pods have.
type SidecarSetStatus struct {
	// ObservedGeneration is the generation of the spec that this status describes.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// MatchedPods is how many pods of the selector have the sidecars, in any version.
	//
	// +optional
	MatchedPods int32 `json:"matchedPods"`

	// UpdatedPods is how many of them have the latest version.
	//
	// +optional
	UpdatedPods int32 `json:"updatedPods"`

	// ReadyPods is how many of them are ready.
	//
	// +optional
	ReadyPods int32 `json:"readyPods"`

	// UpdatedReadyPods is how many of those with the latest version are ready, and run it by the report of their kubelet.
	//
	// +optional
	UpdatedReadyPods int32 `json:"updatedReadyPods,omitempty"`

	// NotUpdatablePods is how many of them have an older version and cannot be updated in place. (Berth)
	//
	// +optional
	NotUpdatablePods int32 `json:"notUpdatablePods,omitempty"`

	// NotInjectedPods is how many pods of the selector have no sidecars of this set, because they are older, or were admitted without the webhook. (Berth)
	//
	// +optional
	NotInjectedPods int32 `json:"notInjectedPods,omitempty"`

	// LatestRevision is the ControllerRevision of the latest version.
	//
	// +optional
	LatestRevision string `json:"latestRevision,omitempty"`

	// CollisionCount makes the names of ControllerRevisions unique if hashes collide. Nil means 0.
	//
	// +optional
	CollisionCount *int32 `json:"collisionCount,omitempty"`

	// Conditions of the SidecarSet. (Berth)
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
