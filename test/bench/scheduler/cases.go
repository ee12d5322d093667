package main

import (
	"fmt"
	"strings"
)

// These are pools of nodes. Those of a and b are small machines, the others are large.
const (
	poolA     = "a"
	poolB     = "b"
	poolC     = "c"
	poolSmall = "small"
)

// poolSizes distributes the nodes: 37 % each to a and b, 1 % to small, the rest to c.
func poolSizes(nodes int) map[string]int {
	sizes := map[string]int{poolA: nodes * 37 / 100, poolB: nodes * 37 / 100, poolSmall: max(nodes/100, 1)}
	sizes[poolC] = nodes - sizes[poolA] - sizes[poolB] - sizes[poolSmall]
	return sizes
}

// podsPerNode is allowed on every node, so that the small pool takes all pods of a run.
func podsPerNode(nodes, pods int) int { return max(110, 2*pods/max(nodes/100, 1)) }

// benchmark is one comparison of the stock scheduler and Berth's on the same cluster with the same number of pods.
type benchmark struct {
	name, about string
	// floor is the minimum of Berth's throughput divided by the stock scheduler's.
	floor     float64
	workloads int
	// subsets are the subsets of the spread. Empty means no spread. Then stock pods have no constraint either.
	subsets, strategy string
	// affinity are the pools that stock pods require.
	affinity []string
	cpu      string
	// want is the share of the pods in each pool on both sides. Empty if the share is not determined.
	want map[string]int
}

func subsetOf(name, limit string, pools ...string) string {
	return fmt.Sprintf("  - {name: %s%s, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [%s]}]}}\n",
		name, limit, strings.Join(pools, ", "))
}

var benchmarks = []benchmark{
	{
		name: "no-spread", about: "pods of a Deployment without a spread", floor: 0.98,
		workloads: 1, cpu: "10m",
	},
	{
		name: "first-subset-open", about: "a spread whose first subset takes all pods; stock pods have the equal node affinity", floor: 0.97,
		workloads: 1, cpu: "10m", affinity: []string{poolA}, want: map[string]int{poolA: 100},
		subsets: subsetOf("a", "", poolA) + subsetOf("b", "", poolB),
	},
	{
		name: "adaptive-filling", about: "Adaptive, and the nodes of the first two of three subsets fill up; stock pods require any of the three", floor: 0.97,
		workloads: 1, cpu: "2", affinity: []string{poolA, poolB, poolC, poolSmall}, strategy: "Adaptive",
		subsets: subsetOf("a", "", poolA) + subsetOf("b", "", poolB) + subsetOf("c", "", poolC, poolSmall),
	},
	{
		name: "thousand-spreads", about: "a thousand Deployments of ten pods, each with a spread; stock pods have the node affinity of the first subset", floor: 0.95,
		workloads: 1000, cpu: "10m", affinity: []string{poolA}, want: map[string]int{poolA: 100},
		subsets: subsetOf("a", ", maxReplicas: 10", poolA) + subsetOf("c", "", poolC),
	},
	{
		name: "small-tier", about: "a spread whose first subset is one node in a hundred; stock pods have the equal node affinity", floor: 1,
		workloads: 1, cpu: "10m", affinity: []string{poolSmall}, want: map[string]int{poolSmall: 100},
		subsets: subsetOf("small", "", poolSmall) + subsetOf("c", "", poolC),
	},
}
