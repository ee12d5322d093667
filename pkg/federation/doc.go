// Package federation is the model of FederatedReplicaSets: how many replicas the ReplicaSet in each cluster gets, and when replicas move from one cluster to another.
//
// It takes plain data and returns plain data. It has no client, no clock, no logger and no goroutine. Every number comes from pkg/allocation. The adapter gathers what is known
// of the clusters, calls Policy.Plan once, writes the status, and then does what the plan says.
//
// The model remembers nothing. What it must know of earlier plans is in the status: since when a cluster does not answer, what its ReplicaSet may ask for, and when a cluster
// that was full is tried again.
//
// Begin reading at Compile, then Policy.Plan.
package federation
