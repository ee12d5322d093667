// Package clientgates brings back the feature gates of client-go, which k8s.io/kubernetes/pkg/features replaces with its own as soon as it is part of a program.
package clientgates

import "k8s.io/client-go/features"

// stock are the gates before they are replaced. Go initializes packages in the order of their import paths, and github.com comes before k8s.io.
var stock = features.FeatureGates()

// Restore has client-go read its gates from the variables KUBE_FEATURE_…, as it does in programs without a flag --feature-gates.
func Restore() { features.ReplaceFeatureGates(stock) }
