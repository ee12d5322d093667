// Package v1alpha1 has WorkloadSpread as clients of apps.kruise.io/v1alpha1 write and read it. It differs from v1beta1, which the API server stores, in
// the names of two fields of a subset. The package holds what differs, and the conversion. Everything else is in package v1beta1, and all of Berth's
// programs use that one.
//
// +kubebuilder:object:generate=true
// +groupName=apps.kruise.io
package v1alpha1
