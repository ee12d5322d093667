// Package federation divides FederatedReplicaSets over three real member clusters.
package federation
