// Package budget answers three questions about a PodUnavailableBudget: how many pods must be available, how many are available, and whether an
// operation on a pod is allowed.
//
// The answer is exact under any concurrency because of the way callers use it. They record every allowed operation in the budget's ledger by
// compare-and-swap. A recorded pod counts as unavailable until the outcome of its operation is proven. So all approvals of one budget have one
// order, and each decision counts all earlier ones. This package guarantees each single step: if a verdict allows an operation on an available pod
// because of the numbers, at least Desired other pods are available and in no entry.
//
// The package takes plain data and returns plain data. It has no client, clock, logger or goroutine. Begin reading at Policy.Decide.
package budget
