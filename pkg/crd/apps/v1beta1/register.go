package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	// GroupVersion is the group and version of the types in this package.
	GroupVersion = schema.GroupVersion{Group: "apps.kruise.io", Version: "v1beta1"}

	// Resource is where the API server serves WorkloadSpreads.
	Resource = GroupVersion.WithResource("workloadspreads")

	// Kind is the kind that owns the events and references Berth writes.
	Kind = GroupVersion.WithKind("WorkloadSpread")
)

// AddToScheme registers the types of this package.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &WorkloadSpread{}, &WorkloadSpreadList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
