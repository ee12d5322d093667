// Package guard is the admission side of PodUnavailableBudgets: it answers the API server before a pod of a budget is deleted, evicted,
// restarted by an update, made unready while its containers run, or taken out of its budget.
//
// Every answer is computed from the budget as it is committed, pods that are not older than what its ledger relies on, and the replicas their
// workloads ask for; and an operation is let through only once it stands in the budget's ledger, written with the resourceVersion that the answer was
// computed from. Requests for one budget that arrive while another is being decided are decided together. What is read from a cache can cost
// a second look and nothing else, so that any number of processes may answer, with old caches and wrong clocks: a budget from the watch counts only if the
// write proves that it was the latest. docs/decisions/0021-facts-of-a-count.md says which facts may be old, and why.
//
// What it cannot see: a pod that becomes unready by itself between the count and the write, what is done to a pod before it carries the protection label,
// and changes of the owners of ReplicaSets: whoever may make those may scale them down as well, which takes no room either. It believes a status that
// says of a container that it is not ready.
//
// Begin reading at Guard.Decide; the rules are in pkg/budget.
package guard
