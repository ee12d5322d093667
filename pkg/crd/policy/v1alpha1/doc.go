// Package v1alpha1 is the vocabulary of PodUnavailableBudget: its API types and the names of the labels, annotations, conditions and reasons
// that Berth reads and writes for it.
//
// The group, version, kind and field names are those of the PodUnavailableBudget kind that users already have manifests for. Fields marked
// "Berth" are additions; leaving them out gives the behaviour the kind always promised.
//
// The package decides nothing: what a budget means is answered by pkg/budget.
//
// +kubebuilder:object:generate=true
// +groupName=policy.kruise.io
package v1alpha1
