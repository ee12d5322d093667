// Package united is the model of UnitedDeployments: how many replicas each child gets, which template, and when replicas move from one child to another.
//
// It takes plain data and returns plain data. It has no client, no clock, no logger and no goroutine. Every number comes from pkg/allocation. The adapter in
// pkg/controller/united gathers what is known of the children, calls Policy.Plan once, and does what the plan says.
//
// Children may be in several clusters, some of which may not answer: see clusters.go.
//
// Begin reading at Compile, then Policy.Plan.
package united
