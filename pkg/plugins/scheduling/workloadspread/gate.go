package workloadspread

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// GateName of the plugin in scheduler configurations.
const GateName = "WorkloadSpreadGate"

// Gate keeps pods that wait for a slot out of the scheduling queue's way until the ledger wakes them.
//
// The queue looks at every unschedulable pod when any pod of the cluster ends, and asks the plugins that rejected it. With thousands of waiting pods
// that takes longer than scheduling the woken ones. For a pod that a gate holds, the queue asks about the gate's events only, and this gate, a plugin
// of its own for this reason, has none. It holds only pods that had a cycle and were told that there is no slot.
type Gate struct{ family *Family }

var (
	_ fwk.PreEnqueuePlugin  = &Gate{}
	_ fwk.EnqueueExtensions = &Gate{}
)

// Name of the plugin.
func (g *Gate) Name() string { return GateName }

// EventsToRegister is empty. Without this method the plugin would be asked about all events.
func (g *Gate) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) { return nil, nil }

// PreEnqueue holds a pod that waits for a slot.
func (g *Gate) PreEnqueue(_ context.Context, pod *corev1.Pod) *fwk.Status {
	if c := g.family.core.Load(); c != nil && c.book.holds(pod) {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "waiting for a slot")
	}
	return nil
}
