// Package v1alpha1 is the vocabulary of federated workloads: the API type FederatedReplicaSet and the names of the labels, annotations, conditions and reasons
// that Berth writes where users and other tools read them.
//
// The package decides nothing: pkg/federation answers what a FederatedReplicaSet means.
//
// +kubebuilder:object:generate=true
// +groupName=federation.berth.dev
package v1alpha1
