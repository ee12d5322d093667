// Package ledger knows which pod holds which slot of which subset, and whom to wake when a slot comes free.
//
// It is a state machine. Apply takes one event and returns the effects that the caller must carry out: an answer, pods to wake, an
// event to write, a time to ask again. It has no client, clock, lister, logger or goroutine, and calls nobody. The same events in the same
// order always give the same effects. So every order of events can be tried in a test.
//
// The caller serializes the calls of Apply and of the queries. It must not change an object after it has put it into an event.
//
// Slots belong to a workload and the name of a subset, not to a WorkloadSpread object. So a bind that is on its way keeps its slot while its spread
// is edited, invalid, or deleted and created again. Which subsets a pod may use is decided by package subset alone.
//
// Read in this order: events.go lists what may happen and what follows; ledger.go holds the state; entry.go follows one pod through its
// stages; asking.go and binding.go are its way from the first question to the node; waiting.go wakes others when it leaves a slot.
package ledger
