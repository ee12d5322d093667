// Package v1alpha1 is the vocabulary of rules: the API types SpreadRule and ClusterSpreadRule, and the conditions and reasons that Berth writes into them.
//
// The package decides nothing: pkg/rules answers which workloads a rule picks, and what spread each of them gets.
//
// +kubebuilder:object:generate=true
// +groupName=rules.berth.dev
package v1alpha1
