// Package scenario runs a scenario through the model in milliseconds. A scenario is one txtar file: a cluster, objects, steps, and the table that is
// expected after a step. The same file can be played against a real control plane. This package has what both ways share: the parser, and the table,
// which is made from API objects only.
//
// It decides no placement. It asks pkg/subset for quotas, rounding, admission and classification. The rest imitates what surrounds the model in a
// cluster, as simply as possible: the controllers of the workloads, a scheduler that knows only requests, node selectors, taints and cordons, and
// kubelets that run every pod at once. Everything happens in order of creation, so a scenario has one outcome. A real cluster must reach the same
// outcome, where the order is not known.
//
// Read in this order: Parse and Scenario say what a file may contain; Observe and Layout.Table make the table; Run plays a scenario.
package scenario
