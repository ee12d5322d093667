// Package v1beta1 has the API types of PodUnavailableBudget, and the names of the labels, annotations, conditions and reasons that Berth reads
// and writes for it.
//
// The group, version, kind and field names are those of OpenKruise, because users have manifests for them. Fields that are described as additions of
// Berth do not exist there. They are optional, and their defaults keep the behaviour that OpenKruise documents.
//
// The package decides nothing: pkg/budget says what a budget means.
//
// +kubebuilder:object:generate=true
// +groupName=policy.kruise.io
package v1beta1
