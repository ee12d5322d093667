// Package workloadspread is the scheduler plugin that gives every pod of a WorkloadSpread its subset at the moment it picks the node.
//
// It gathers what pkg/subset needs (the spread, the workload's replicas, the pods that hold a slot), asks once per cycle, and acts on
// the answer: PreFilter takes a slot, Filter keeps the pod inside its subset, Reserve makes the slot final, Bind writes node and
// subset in one request. It holds no placement rule.
//
// Read in this order: plugin.go lists the extension points; ledger.go holds the slots and every change of them; resolve.go finds the
// spread of a pod; watch.go feeds both from informers; takeover.go says when a new process may trust them.
package workloadspread
