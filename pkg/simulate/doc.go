// Package simulate runs a scenario through the model in milliseconds. A scenario is one txtar file: a cluster, objects, steps, and
// the table that must be seen after a step. The same file can be played against a real control plane; this package brings what both
// ways share: the parser, and the table that is made from API objects only.
//
// It decides no placement. Quotas, rounding, admission and classification are asked of pkg/subset; what stands here imitates, as
// small as it can be, what surrounds the model in a cluster: the controllers of the workloads, a scheduler that knows of requests, node
// selectors, taints and cordons and of nothing else, and kubelets that run every pod at once. Everything happens in order of creation,
// so a scenario has one outcome. It must be one that a real cluster reaches too, where the order is not known.
//
// Read in this order: Parse and Scenario say what a file may hold; Observe and Layout.Table make the table; Run plays a scenario.
package simulate
