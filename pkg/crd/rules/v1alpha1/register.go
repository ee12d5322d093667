package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	// GroupVersion is the group and version of the types in this package.
	GroupVersion = schema.GroupVersion{Group: "rules.berth.dev", Version: "v1alpha1"}

	// Kind is the kind of SpreadRule, and ClusterKind that of ClusterSpreadRule.
	Kind        = GroupVersion.WithKind("SpreadRule")
	ClusterKind = GroupVersion.WithKind("ClusterSpreadRule")
)

// AddToScheme registers the types of this package.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &SpreadRule{}, &SpreadRuleList{}, &ClusterSpreadRule{}, &ClusterSpreadRuleList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
