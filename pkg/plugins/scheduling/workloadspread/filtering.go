package workloadspread

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-project/berth/pkg/subset"
)

const stateKey = fwk.StateKey("PreFilter" + Name)

// Clone implements fwk.StateData. Clones are made before Reserve, to try out preemptions, and only read.
func (d *decision) Clone() fwk.StateData { return d }

// decisionIn is the decision of this cycle, nil if there is none: no spread divides the pod, or PreFilter has refused it.
func decisionIn(state fwk.CycleState) *decision {
	data, err := state.Read(stateKey)
	if err != nil {
		return nil // PreFilter skipped the pod
	}
	return data.(*decision)
}

// wasRuled is true if the ledger has ruled on the pod in this cycle. It has not if another plugin's PreFilter refused the pod before.
func wasRuled(state fwk.CycleState) bool {
	_, err := state.Read(stateKey)
	return err == nil
}

// PreFilter gives the pod its subset for this cycle, or holds it. If the subset has no more than half of the nodes, it names them, so that the
// scheduler looks at no other. For larger ones copying the names costs more than it saves.
func (s *Spread) PreFilter(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	if err := s.takeover.complete(ctx); err != nil {
		return nil, fwk.AsStatus(err)
	}
	answer := s.ledger.choose(pod, nodes)
	switch {
	case answer.decision != nil:
		state.Write(stateKey, answer.decision)
		klog.FromContext(ctx).V(4).Info("Chose a subset", "pod", klog.KObj(pod), "spread", klog.KRef(pod.Namespace, answer.spread.key.Name), "subset", answer.name())
		if answer.members != nil && 2*len(answer.members) <= len(nodes) {
			return &fwk.PreFilterResult{NodeNames: answer.members}, nil
		}
		return nil, nil
	case answer.reason != "":
		state.Write(stateKey, (*decision)(nil)) // see wasRuled
		// Removing other pods from a node gives this one neither a slot nor an owner.
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("%s: %s", answer.reason, answer.message))
	default:
		return nil, fwk.NewStatus(fwk.Skip)
	}
}

// PreFilterExtensions implements fwk.PreFilterPlugin. The decision depends on no pod of a node.
func (s *Spread) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter keeps the pod inside its subset. It must not rely on a PreFilterResult, which nominated nodes bypass.
func (s *Spread) Filter(_ context.Context, state fwk.CycleState, _ *corev1.Pod, nodeInfo fwk.NodeInfo) *fwk.Status {
	d := decisionIn(state)
	if d == nil || d.subset == subset.None {
		return nil
	}
	in, node := &d.policy.Subsets[d.subset], nodeInfo.Node()
	switch {
	case !d.holds(node):
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, d.outside)
	case !in.Tolerates(node, d.own):
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("node(s) of subset %q had taints that neither it nor the pod tolerates", in.Name))
	}
	return nil
}

// holds is true if the node is one of the subset's, which must not be subset.None.
func (d *decision) holds(node *corev1.Node) bool {
	if d.members != nil {
		return d.members.Has(node.Name)
	}
	return d.policy.Subsets[d.subset].Holds(node)
}

func (d *decision) name() string {
	if d.subset == subset.None {
		return ""
	}
	return d.policy.Subsets[d.subset].Name
}
