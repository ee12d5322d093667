// Package federation is the controller of FederatedReplicaSets in the hub. It gathers the ReplicaSets and pods in the clusters, asks the model in pkg/federation once, and writes the
// status and the ReplicaSets. It never decides by itself how many replicas a cluster gets.
//
// It plans from the caches of the clusters. If that plan needs a write, it reads everything again from the API servers and plans once more: only the second plan is carried out. Each
// write carries the resourceVersion that was read, so that it fails if somebody was faster. The status is written first, because the model has no other memory.
//
// Begin reading at Setup, then reconciler.Reconcile.
package federation
