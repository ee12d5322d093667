// Package workloadspread is the scheduler plugin that gives every pod of a WorkloadSpread its subset when the scheduler picks the node.
//
// It connects the scheduler to package ledger, which holds the slots, and to package subset, which holds the rules. At each extension point it
// gathers what the ledger needs, applies one event, and acts on the effects: PreFilter takes a slot, Filter keeps the pod inside its subset, Reserve
// makes the slot final, Bind writes node and subset in one request. The package holds no placement rule.
//
// Read in this order: plugin.go lists the extension points. filtering.go, spilling.go and binding.go follow a pod through a cycle. book.go runs the
// ledger; watch.go and custom.go feed it from informers. memo.go and nodesets.go know the nodes. takeover.go says when a new process may trust its
// ledger, and lease.go what leader election tells about earlier processes.
package workloadspread
