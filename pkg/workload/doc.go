// Package workload reads from workloads how many pods they ask for, and decides which of several spreads divides them.
// It is the only package that reads replicas from objects.
//
// It takes objects that the caller has read, and returns numbers or errors that say what was found instead. It has no
// client and never looks at pods. Placement rules are in package subset. Begin reading at Replicas.
package workload
