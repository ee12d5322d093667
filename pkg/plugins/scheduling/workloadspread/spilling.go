package workloadspread

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-project/berth/pkg/ledger"
	"github.com/berth-project/berth/pkg/subset"
)

// PostFilter runs when no node of the pod's subset fits. A pod of strategy Adaptive goes on to the next subset, in a cycle of its own that follows at
// once. When it has tried all subsets, it may preempt, in the order of the subsets. A pod of strategy Fixed, and a pod without a spread, preempts
// where it is, as DefaultPreemption does. If another plugin refused the pod before it could ask for a subset, the next pod gets the slot for which it
// was woken. The gate of a pod that waits for a node is opened.
func (s *Spread) PostFilter(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, statuses fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	defer s.opener.openLater(pod)
	d := decisionIn(state)
	if !wasRuled(state) {
		s.book.apply(ledger.PodRefused{UID: pod.UID})
	}
	if d == nil {
		return s.preempt(ctx, state, pod, statuses)
	}
	if d.Subset == subset.None {
		return s.preemptBy(ctx, state, pod, statuses, d)
	}
	verdict, err := s.verdictOn(d, statuses)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	fx := s.book.apply(ledger.NoNodeFound{UID: pod.UID, Decision: d.Decision})
	subsetAttempts.WithLabelValues(stepNames[fx.Next]).Inc()
	explain := func() string {
		if fx.Answer.Policy == nil {
			return "" // the spread has changed meanwhile
		}
		return fx.Answer.Describe(func(index int) string {
			if index == d.Subset {
				return verdict.why
			}
			return s.finder.why(d.Policy, pod, index)
		})
	}
	switch fx.Next {
	case ledger.GoOn:
		s.finder.keep(d.Policy, s.finder.keyOf(pod, d.Subset), verdict)
		// Unresolvable keeps other PostFilter plugins from preempting while there are subsets to try.
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("no node in subset %q, going on to the next", d.Name()))
	default:
		result, status := s.preemptBy(ctx, state, pod, statuses, d)
		if status.IsRejected() {
			status = fwk.NewStatus(status.Code(), append([]string{explain()}, status.Reasons()...)...)
		}
		return result, status
	}
}

// preemptBy preempts, and tells the ledger whether the pod of a decision waits for victims.
func (s *Spread) preemptBy(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, statuses fwk.NodeToStatusReader, d *decision) (*fwk.PostFilterResult, *fwk.Status) {
	result, status := s.preempt(ctx, state, pod, statuses)
	nominated := status.IsSuccess() && result != nil && result.NominatingInfo != nil && result.NominatedNodeName != ""
	if result == nil && status.Code() == fwk.Unschedulable && s.preemption != nil {
		nominated = s.waitsForVictims(ctx, pod, statuses)
	}
	s.book.apply(ledger.Preempted{UID: pod.UID, Decision: d.Decision, Nominated: nominated})
	return result, status
}

func (s *Spread) preempt(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, statuses fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	if s.preemption == nil {
		return nil, fwk.NewStatus(fwk.Unschedulable)
	}
	result, status := s.preemption.PostFilter(ctx, state, pod, statuses)
	if status.IsRejected() && s.refused.hold(pod) {
		status = fwk.NewStatus(status.Code(), append(slices.Clone(status.Reasons()), "a PodUnavailableBudget protects pods that it would preempt")...)
	}
	return result, status
}

var stepNames = map[ledger.Step]string{ledger.GoOn: "spilled", ledger.Preempt: "preempting"}

// waitsForVictims is true if the pod is nominated to a node that victims of a preemption are still leaving. DefaultPreemption returns the same status
// for that and for a refusal.
func (s *Spread) waitsForVictims(ctx context.Context, pod *corev1.Pod, statuses fwk.NodeToStatusReader) bool {
	latest, err := s.preemption.Evaluator.PodLister.Pods(pod.Namespace).Get(pod.Name)
	if err != nil {
		return false // it is gone
	}
	may, _ := s.preemption.PodEligibleToPreemptOthers(ctx, latest, statuses.Get(latest.Status.NominatedNodeName))
	return !may
}

// PreEnqueue holds a pod while the API calls of its preemption are under way. It also holds a pod that was woken during its cycle, until it is
// activated.
func (s *Spread) PreEnqueue(ctx context.Context, pod *corev1.Pod) *fwk.Status {
	if status := s.preemption.PreEnqueue(ctx, pod); !status.IsSuccess() {
		return status
	}
	if s.book.wokenInCycle(pod) {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "about to be tried again at once")
	}
	return nil
}

// verdictOn sums up why the nodes of a subset were refused.
func (s *Spread) verdictOn(d *decision, statuses fwk.NodeToStatusReader) (memoEntry, error) {
	proven, members := true, 0
	reasons := map[string]int{}
	take := func(name string) {
		members++
		status := statuses.Get(name)
		for _, reason := range status.Reasons() {
			reasons[reason]++
		}
		// A pod that is nominated to a node counts there without being on it, so the generation of the node does not show it.
		proven = proven && nodeLocal[status.Plugin()] && len(s.handle.NominatedPodsForNode(name)) == 0
	}
	if d.members != nil {
		for name := range d.members {
			take(name)
		}
	} else {
		nodes, err := s.handle.SnapshotSharedLister().NodeInfos().List()
		if err != nil {
			return memoEntry{}, fmt.Errorf("listing the nodes of the snapshot: %w", err)
		}
		for _, info := range nodes {
			if d.holds(info.Node()) {
				take(info.Node().Name)
			}
		}
	}
	judged := memoEntry{generation: d.newest, why: verdict(members, s.finder.nodeSets.set(&d.Policy.Subsets[d.Subset]).ending, reasons)}
	if !proven {
		judged.generation = unproven
	}
	return judged, nil
}

// verdict says why none of a subset's nodes takes a pod: "0/42 nodes fit: 38 Insufficient cpu, 2 untolerated taint, 2 announced their end". Those that end
// are not among the nodes.
func verdict(nodes, ending int, reasons map[string]int) string {
	if nodes+ending == 0 {
		return "no node belongs to it"
	}
	if ending > 0 {
		reasons["announced their end"] = ending
	}
	text := fmt.Sprintf("0/%d nodes fit", nodes+ending)
	if len(reasons) > 0 {
		text += ": " + subset.FormatReasons(reasons)
	}
	return text
}
