// Package soak does everything to a cluster at once, for as long as it is told: it scales, rolls out, updates in place, deletes, evicts, drains, edits quotas, moves nodes, and kills and halts
// components. Meanwhile independent watchers judge every revision. From time to time it lets the cluster come to rest, and checks that all is as it should be. docs/robustness.md says how to run it.
package soak
