// Package v1beta1 is the vocabulary of WorkloadSpread: its API types and the names of the labels, annotations, conditions
// and reasons that Berth writes where users and other tools read them.
//
// The group, version, kind and field names are those of the WorkloadSpread kind that users already have manifests for.
// Fields marked "Berth" are additions; leaving them out gives the behaviour the kind always promised.
//
// The package decides nothing: what a spread means is answered by pkg/subset.
//
// +kubebuilder:object:generate=true
// +groupName=apps.kruise.io
package v1beta1
