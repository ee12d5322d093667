// Package guard is the admission side of PodUnavailableBudgets. It answers the API server before somebody deletes or evicts a pod of a budget, restarts
// it by an update, makes it unready while its containers run, or takes it out of its budget.
//
// The guard computes every answer from the budget as it is committed, from pods that are not older than those of any decision before it, and from the
// replicas that their workloads ask for. It allows an operation only once the operation stands in the budget's ledger, written with the resourceVersion
// that the answer was computed from. The guard decides requests together if they arrive while another request for their budget is being decided. A
// stale cache costs a second read and nothing else: a budget from the watch counts only if the write proves that it was the latest. So any number of
// processes may answer, with stale caches and wrong clocks. docs/decisions/0021-facts-of-a-count.md says which facts may be stale, and why.
//
// The guard cannot see:
//   - a pod that becomes unready by itself between the count and the write;
//   - what happens to a pod before it carries the protection label;
//   - changes of the owners of ReplicaSets. A user who may make them may also scale the ReplicaSets down, which takes no room either.
//
// It believes a pod status that says that a container is not ready.
//
// Begin reading at Guard.Decide. The rules are in pkg/budget.
package guard
