// Package workloadspread is the scheduler plugin that gives every pod of a WorkloadSpread its subset at the moment it picks the node.
//
// It adapts the scheduler to package ledger, which holds the slots, and to package subset, which holds the rules. At each extension point it gathers what
// the ledger needs, applies one event, and acts on the effects: PreFilter takes a slot, Filter keeps the pod inside its subset, Reserve makes the slot
// final, Bind writes node and subset in one request. It holds no placement rule.
//
// Read in this order: plugin.go lists the extension points; filtering.go, spilling.go and binding.go are a pod's way through a cycle; book.go keeps the
// ledger; watch.go and custom.go feed it from informers; memo.go and nodesets.go know the nodes; takeover.go says when a new process
// may trust its ledger, and lease.go what the leader election tells of the processes before it.
package workloadspread
