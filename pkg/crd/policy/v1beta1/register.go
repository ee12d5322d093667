package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	// GroupVersion is the group and version of the types in this package.
	GroupVersion = schema.GroupVersion{Group: "policy.kruise.io", Version: "v1beta1"}

	// Resource is the resource under which the API server serves PodUnavailableBudgets.
	Resource = GroupVersion.WithResource("podunavailablebudgets")

	// Kind is the kind of object that Berth's events on budgets are about.
	Kind = GroupVersion.WithKind("PodUnavailableBudget")
)

// AddToScheme registers the types of this package.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &PodUnavailableBudget{}, &PodUnavailableBudgetList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
