package workloadspread

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/ledger"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

const stateKey = fwk.StateKey("PreFilter" + Name)

// decision is what PreFilter stores for the later steps of the same cycle.
type decision struct {
	*ledger.Decision
	// members are the names of the subset's nodes in the snapshot of this cycle, without those that announce their end. Nil if these are all nodes.
	members sets.Set[string]
	// newest generation of a node in the snapshot of this cycle.
	newest int64
	// outside is the message for nodes outside of the subset.
	outside string
}

// Clone implements fwk.StateData. The scheduler clones the state before Reserve, to try out preemptions, and only reads the clones.
func (d *decision) Clone() fwk.StateData { return d }

// decisionIn is the decision of this cycle. Nil if no spread divides the pod, or if PreFilter refused it.
func decisionIn(state fwk.CycleState) *decision {
	data, err := state.Read(stateKey)
	if err != nil {
		return nil // PreFilter skipped the pod
	}
	return data.(*decision)
}

// wasRuled is true if the ledger decided about the pod in this cycle. It did not if the PreFilter of an earlier plugin refused the pod.
func wasRuled(state fwk.CycleState) bool {
	_, err := state.Read(stateKey)
	return err == nil
}

// PreFilter gives the pod its subset for this cycle, or refuses it. If the subset has at most half of the nodes, PreFilter returns their names, so
// that the scheduler looks at no other node. For larger subsets copying the names costs more than it saves.
func (s *Spread) PreFilter(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	if owner := workload.ControllerOf(pod); owner == nil || workload.EndsChain(owner.Kind) {
		return nil, fwk.NewStatus(fwk.Skip) // no spread can divide it
	}
	question, status := s.questionIn(state, pod)
	if !status.IsSuccess() {
		return nil, status
	}
	d, refusal, err := s.rule(ctx, question, nodes)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	if d == nil && refusal == nil {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	state.Write(stateKey, d) // nil for a refusal; see wasRuled
	if refusal != nil {
		return nil, refusal
	}
	klog.FromContext(ctx).V(4).Info("Chose a subset", "pod", klog.KObj(pod), "spread", klog.KRef(pod.Namespace, d.Spread.Name), "subset", d.Name())
	if d.Subset != subset.None {
		if status := s.recount(ctx, state, pod, d, nodes); !status.IsSuccess() {
			return nil, status
		}
	}
	if d.members != nil && 2*len(d.members) <= len(nodes) {
		return &fwk.PreFilterResult{NodeNames: d.members}, nil
	}
	return nil, nil
}

// rule gives no pod a slot before the take-over is complete. A pod that needs no slot does not wait for it.
func (s *Spread) rule(ctx context.Context, question ledger.PodAsks, nodes []fwk.NodeInfo) (*decision, *fwk.Status, error) {
	if !s.takeover.concerns(question.Pod) {
		if d, refusal := s.ask(question, nodes); d == nil {
			return nil, refusal, nil
		}
		// a spread was created meanwhile
	}
	if err := s.takeover.complete(ctx); err != nil {
		return nil, nil, err
	}
	d, refusal := s.ask(question, nodes)
	return d, refusal, nil
}

// ask lets the ledger choose a subset, and checks the nodes that it asks about. If there is neither a decision nor a refusal, no spread divides the
// pod.
func (s *Spread) ask(question ledger.PodAsks, nodes []fwk.NodeInfo) (*decision, *fwk.Status) {
	pod := question.Pod
	fx := s.book.ask(question)
	if fx.Undivided() {
		return nil, nil // without a look at the nodes
	}
	s.finder.update(nodes)
	finder := s.finder
	if question.Try {
		finder = finder.withoutMemo()
	}
	for fx.Check != nil {
		question.Results.Add(fx.Check, finder.check(pod, fx.Check))
		fx = s.book.ask(question)
	}
	if fx.Undivided() {
		return nil, nil
	}
	answer := &fx.Answer
	subsetAttempts.WithLabelValues(resultOf(answer)).Inc()
	if answer.Decision == nil {
		return nil, s.refuse(&question, answer, fx.Announce)
	}
	d := &decision{Decision: answer.Decision, newest: s.finder.newest()}
	if d.Subset != subset.None {
		d.members, d.outside = s.finder.members(&d.Policy.Subsets[d.Subset]), fmt.Sprintf("node(s) outside of subset %q", d.Name())
	}
	return d, nil
}

// refuse is the status of a pod that the ledger refused.
func (s *Spread) refuse(question *ledger.PodAsks, answer *ledger.Answer, announce bool) *fwk.Status {
	pod, message := question.Pod, answer.Message
	because := func(index int) string { return s.finder.why(answer.Policy, pod, index) }
	if message == "" {
		message = answer.Describe(because)
	}
	if announce {
		s.announce(announcement{answer.Spread, pod, answer.Reason, answer.DescribeSubsets(because)})
	}
	if isFull(answer.Reason) && !question.Try && s.gated(pod) {
		s.book.wake(pod) // so that the queue asks the gate when the cycle has ended; see gate.go
	}
	// Removing other pods from a node would give this one neither a slot nor an owner.
	status, why := fwk.NewStatus(fwk.UnschedulableAndUnresolvable), &refusal{answer.Reason, message}
	if answer.Reason == v1beta1.ReasonNoNodeFits {
		if subset.IsGated(pod) && !question.Try {
			s.book.apply(ledger.PodWaits{UID: pod.UID})
			s.opener.openLater(pod)
		}
		status.AppendReason(why.Error()) // the pod waits for a node
		return status
	}
	return status.WithError(why)
}

func isFull(reason v1beta1.Reason) bool {
	return reason == v1beta1.ReasonSubsetsFull || reason == v1beta1.ReasonAdmittedSubsetFull
}

// resultOf is the answer as a value of the metric.
func resultOf(answer *ledger.Answer) string {
	switch {
	case answer.Decision != nil && answer.Decision.Subset == subset.None:
		return "unplaced"
	case answer.Decision != nil:
		return "chosen"
	case isFull(answer.Reason):
		return "full"
	case answer.Reason == v1beta1.ReasonNoNodeFits:
		return "exhausted"
	default:
		return "held"
	}
}

// PreFilterExtensions implements fwk.PreFilterPlugin. The decision does not depend on the pods of a node.
func (s *Spread) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter keeps the pod inside its subset. A pod that is in none may use every node that its template tolerates. It must not rely on a PreFilterResult: the scheduler tries nominated nodes without it.
func (s *Spread) Filter(_ context.Context, state fwk.CycleState, _ *corev1.Pod, nodeInfo fwk.NodeInfo) *fwk.Status {
	d, node := decisionIn(state), nodeInfo.Node()
	if d == nil {
		return nil
	}
	if d.Subset == subset.None {
		if notice := s.settings.notices.Of(node); notice != "" {
			return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node(s) announced their end by "+notice)
		}
		// Admission added the tolerations of all subsets, and the pod has none of these.
		if !d.Policy.Subset(subset.None).Tolerates(node, d.Own) {
			return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node(s) had taints that the pod only tolerates within a subset")
		}
		return nil
	}
	in := &d.Policy.Subsets[d.Subset]
	switch {
	case !d.holds(node):
		if notice := s.settings.notices.Of(node); notice != "" && in.Holds(node) {
			return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("node(s) of subset %q announced their end by %s", in.Name, notice))
		}
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, d.outside)
	case !in.Tolerates(node, d.Own):
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("node(s) of subset %q had taints that neither it nor the pod tolerates", in.Name))
	}
	return nil
}

// holds is true if the subset has the node. The subset must not be subset.None.
func (d *decision) holds(node *corev1.Node) bool {
	if d.members != nil {
		return d.members.Has(node.Name)
	}
	return d.Policy.Subsets[d.Subset].Holds(node)
}
