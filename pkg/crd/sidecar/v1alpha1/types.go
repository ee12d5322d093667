package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
)

// SidecarSet injects containers into new pods, and updates them in running ones.
//
// +kubebuilder:object:root=true
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
	Spec   v1beta1.SidecarSetSpec   `json:"spec,omitempty"`
	Status v1beta1.SidecarSetStatus `json:"status,omitempty"`
}

// SidecarSetList is a list of SidecarSets.
//
// +kubebuilder:object:root=true
type SidecarSetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SidecarSet `json:"items"`
}
