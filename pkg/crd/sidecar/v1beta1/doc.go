// Package v1beta1 is the vocabulary of SidecarSet: its API types and the names of the labels, annotations, conditions and reasons that Berth writes where
// users and other tools read them.
//
// The group, version, kind and field names are those of the SidecarSet kind that users already have manifests for. Fields marked "Berth" are additions;
// leaving them out gives the behaviour that the kind always promised. Version v1alpha1 has the same fields.
//
// The package decides nothing: pkg/sidecar answers what a SidecarSet means.
//
// +kubebuilder:object:generate=true
// +groupName=apps.kruise.io
package v1beta1
