// Package ledger knows which pod holds which slot of which subset, and which pods to wake when a slot comes free.
//
// It is a state machine. Apply takes one event and returns the effects that the caller must carry out: an answer, pods to wake, a time for the next
// call. It has no client, clock, lister, logger or goroutine, and calls nobody. The same events in the same order always have the same effects, so a
// test can try every order of events.
//
// The caller serializes the calls of Apply and of the queries. It must not change an object after it passed the object in an event.
//
// Slots belong to a workload and the name of a subset, not to a WorkloadSpread object. So a bind that was sent keeps its slot while its spread is
// edited, invalid, or deleted and created again. Package subset alone decides which subsets a pod may use.
//
// Read in this order: events.go lists the events and effects; ledger.go holds the state; entry.go follows one pod through its stages; asking.go and
// binding.go take it from the first question to the node; waiting.go wakes other pods when it leaves a slot.
package ledger
