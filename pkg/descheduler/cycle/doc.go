// Package cycle is what descheduling strategies share: one look at the cluster, and one way to do what package moves
// decides about it.
//
// A look takes pods and nodes from the informers of the framework, and lists the rest from the API server, spreads
// first. Each decision is written into the spread's status before the first eviction, on condition that no other
// descheduler has written to it since. So of several deschedulers that look at the same time, one acts. One that dies
// in between leaves what it was about to do. Budgets are checked before, by their status and by what was evicted since.
// The API server decides whether a pod may go.
//
// A Client is the only way by which a descheduler ends a pod (guarded.go). It evicts and never deletes. It evicts the
// very pod that was decided on and no other pod of its name, and a pending pod only as it was then. Each call has a
// deadline, is sent once, and leaves a typed result, which the descheduler framework would turn into a text. Plugins
// get it as the handle's evictor and as its client; see Client.Handle.
//
// The package decides nothing itself. Begin reading at World.
package cycle
