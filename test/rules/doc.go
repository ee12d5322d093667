// Package rules tests SpreadRules and ClusterSpreadRules on a real control plane: new workloads are divided from their first pod on, rules that overlap are refused or said, and nobody but a
// platform team changes what a cluster-wide rule does.
package rules
