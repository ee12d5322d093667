// Package united is the controller of UnitedDeployments. It gathers the children and their pods, asks the model in pkg/united once, and writes the
// children and the status. It never decides by itself how many replicas a child gets.
//
// It watches through the cache, and plans from it. If that plan needs a write, it reads everything again from the API server and plans once more: only
// the second plan is carried out. Each write carries the resourceVersion that was read, so that it fails if somebody was faster.
//
// A child may be in another cluster, a member of the federation. Everything is the same there but what is in clusters.go: who owns a child, and that a cluster may not answer.
//
// Begin reading at Setup, then reconciler.Reconcile.
package united
