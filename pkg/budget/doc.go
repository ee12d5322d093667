// Package budget answers, for a PodUnavailableBudget: how many pods must be available, how many are, and may this operation on this pod go
// through.
//
// The answer is exact under any concurrency because of how it is used, not of how it is computed: every operation that is let through is
// recorded in the budget's ledger by compare-and-swap, and a recorded pod counts as unavailable until there is proof of what became of it.
// So all approvals of one budget stand in one order, and each is judged with all earlier ones counted. What the model promises is the step:
// if a verdict allows, at least Desired other pods remain that are available and in no entry.
//
// The package takes plain data and returns plain data. It has no client, clock, logger or goroutine. Begin reading at Policy.Decide.
package budget
