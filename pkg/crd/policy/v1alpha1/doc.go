// Package v1alpha1 has PodUnavailableBudget as clients of policy.kruise.io/v1alpha1 write and read it. Three fields of v1beta1, which the API server
// stores, are annotations in it. The package holds what differs, and the conversion. Everything else is in package v1beta1, and all of Berth's programs
// use that one.
//
// +kubebuilder:object:generate=true
// +groupName=policy.kruise.io
package v1alpha1
