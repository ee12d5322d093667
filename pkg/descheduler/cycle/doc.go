// Package cycle is what descheduling strategies share: one look at the cluster, taken once in a cycle, and one way to act on what package moves
// decides about it.
//
// A cycle lists everything from the API server itself, spreads first. What a strategy decides is written into the spread's status before the
// first pod is evicted, on condition that no other descheduler has written there since; so of several that look at the same time one acts, and
// one that dies in between leaves what it was about to do. Budgets are asked before, as far as their status tells, with what the cycle has
// taken of them; whether a pod may go is decided by the API server.
//
// It decides nothing itself. Begin reading at World, then Cycle.Run.
package cycle
