package workloadspread

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/schedulinggates"

	"github.com/berth-project/berth/pkg/subset"
)

// GateName of the plugin in scheduler configurations.
const GateName = "WorkloadSpreadGate"

// gate keeps pods that wait for a slot out of the scheduling queue's way until the ledger wakes them.
//
// The queue looks at every unschedulable pod when any pod of the cluster ends, and asks the plugins that rejected it. With thousands of waiting pods
// that takes longer than scheduling the woken ones. For a pod that a gate holds, the queue asks about the gate's events only, and this gate, a plugin
// of its own for this reason, has almost none. It holds only pods that had a cycle and were told that there is no slot.
//
// It also stands in for the stock plugin SchedulingGates, which profiles must disable: a pod whose only gate is Berth's is tried like any other pod, and
// the gate is opened when the pod has its subset; see opening.go.
type gate struct {
	family *Family
	stock  *schedulinggates.SchedulingGates
}

var (
	_ fwk.PreEnqueuePlugin  = &gate{}
	_ fwk.EnqueueExtensions = &gate{}
)

// Name of the plugin.
func (g *gate) Name() string { return GateName }

// EventsToRegister are those of the stock plugin SchedulingGates: the pod has lost its last gate. Without this method the plugin would be asked about all
// events.
func (g *gate) EventsToRegister(ctx context.Context) ([]fwk.ClusterEventWithHint, error) {
	return g.stock.EventsToRegister(ctx)
}

// PreEnqueue holds a pod with scheduling gates of others, and a pod that waits for a slot.
func (g *gate) PreEnqueue(ctx context.Context, pod *corev1.Pod) *fwk.Status {
	c := g.family.core.Load()
	if gates := subset.OtherGates(pod); len(gates) > 0 {
		if c != nil {
			pod = c.latest(pod)
		}
		without := *pod
		without.Spec.SchedulingGates = subset.OtherGates(pod)
		if status := g.stock.PreEnqueue(ctx, &without); !status.IsSuccess() {
			return status
		}
	}
	if c != nil && c.book.holds(pod, c.groupVersion(pod)) {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "waiting for a slot")
	}
	return nil
}
