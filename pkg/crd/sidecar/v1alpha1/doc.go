// Package v1alpha1 serves SidecarSets to clients of the older version. It has the fields of v1beta1; only the version differs.
//
// +kubebuilder:object:generate=true
// +groupName=apps.kruise.io
package v1alpha1
