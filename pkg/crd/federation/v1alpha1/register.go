package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	// GroupVersion is the group and version of the types in this package.
	GroupVersion = schema.GroupVersion{Group: "federation.berth.dev", Version: "v1alpha1"}

	// Resource is where the API server serves FederatedReplicaSets.
	Resource = GroupVersion.WithResource("federatedreplicasets")

	// Kind is the kind of FederatedReplicaSet.
	Kind = GroupVersion.WithKind("FederatedReplicaSet")
)

// AddToScheme registers the types of this package.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &FederatedReplicaSet{}, &FederatedReplicaSetList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
