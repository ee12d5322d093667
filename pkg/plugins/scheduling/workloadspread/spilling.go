package workloadspread

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-project/berth/pkg/subset"
)

// PostFilter runs when no node of the pod's subset fits. A pod of strategy Adaptive goes on to the next subset, in a cycle of its own that
// follows at once; when it has tried all of them it may preempt, in the order of the subsets. A pod of strategy Fixed, and one without a
// spread, preempts where it is, as DefaultPreemption does it. One that another plugin refused before it could ask for a subset passes on what it was
// woken for.
func (s *Spread) PostFilter(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, statuses fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	d := decisionIn(state)
	if !wasRuled(state) {
		s.ledger.passOn(pod)
	}
	if d == nil || d.subset == subset.None {
		return s.preemption.PostFilter(ctx, state, pod, statuses)
	}
	verdict, err := s.judge(d, statuses)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	next := s.ledger.noNode(pod, d, verdict)
	subsetAttempts.WithLabelValues(outcomeNames[next]).Inc()
	switch next {
	case goOn:
		// Unresolvable keeps other PostFilter plugins from preempting while there are subsets to try.
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("no node in subset %q, going on to the next", d.name()))
	case stay:
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("waiting in subset %q. %s", d.name(), s.ledger.explainIn(pod, d.subset, verdict.why)))
	default:
		result, status := s.preemption.PostFilter(ctx, state, pod, statuses)
		nominated := status.IsSuccess() && result != nil && result.NominatingInfo != nil && result.NominatedNodeName != ""
		if result == nil && status.Code() == fwk.Unschedulable {
			nominated = s.waitsForVictims(ctx, pod, statuses)
		}
		s.ledger.preempted(pod, nominated)
		if status.IsRejected() {
			reasons := append([]string{s.ledger.explainIn(pod, d.subset, verdict.why)}, status.Reasons()...)
			status = fwk.NewStatus(status.Code(), reasons...)
		}
		return result, status
	}
}

// waitsForVictims is true if the pod is nominated to a node that victims of a preemption are still leaving. DefaultPreemption, which looks at the
// same pod, answers that like a refusal.
func (s *Spread) waitsForVictims(ctx context.Context, pod *corev1.Pod, statuses fwk.NodeToStatusReader) bool {
	latest, err := s.preemption.Evaluator.PodLister.Pods(pod.Namespace).Get(pod.Name)
	if err != nil {
		return false // it is gone
	}
	may, _ := s.preemption.PodEligibleToPreemptOthers(ctx, latest, statuses.Get(latest.Status.NominatedNodeName))
	return !may
}

// PreEnqueue holds a pod while the API calls of its preemption are under way.
func (s *Spread) PreEnqueue(ctx context.Context, pod *corev1.Pod) *fwk.Status {
	return s.preemption.PreEnqueue(ctx, pod)
}

// judge sums up why the nodes of a subset were refused.
func (s *Spread) judge(d *decision, statuses fwk.NodeToStatusReader) (memoEntry, error) {
	proven, members := true, 0
	reasons := map[string]int{}
	take := func(name string) {
		members++
		status := statuses.Get(name)
		for _, reason := range status.Reasons() {
			reasons[reason]++
		}
		// A pod that is nominated to a node counts there without being on it, so it has no part in the generation.
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
	judged := memoEntry{generation: d.newest, why: verdict(members, reasons)}
	if !proven {
		judged.generation = unproven
	}
	return judged, nil
}

// verdict says in words why none of a subset's nodes takes a pod: "0/40 nodes fit: 38 Insufficient cpu, 2 untolerated taint".
func verdict(nodes int, reasons map[string]int) string {
	if nodes == 0 {
		return "no node belongs to it"
	}
	text := fmt.Sprintf("0/%d nodes fit", nodes)
	if len(reasons) > 0 {
		text += ": " + subset.FormatReasons(reasons)
	}
	return text
}

// outcome is what a pod does whose cycle found no node.
type outcome uint8

const (
	stay outcome = iota
	goOn
	preempt
)

var outcomeNames = map[outcome]string{stay: "waiting", goOn: "spilled", preempt: "preempting"}

// noNode takes in that no node of the decision's subset fits the pod.
func (l *ledger) noNode(pod *corev1.Pod, d *decision, verdict memoEntry) (next outcome) {
	l.locked(func() {
		e := l.entries[pod.UID]
		if e == nil || e.state != claimed || e.spread.policy != d.policy || e.subset != d.subset {
			next = goOn // the spread has changed and has woken the pod
			return
		}
		s := e.spread
		if e.preempting || l.isFixed(e) {
			next = preempt
			return
		}
		now := l.clock.Now()
		if e.since == nil {
			e.since = map[int]time.Time{}
		}
		if _, began := e.since[d.subset]; !began {
			e.since[d.subset] = now
		}
		skipped := now.Before(s.skipUntil[d.subset])
		step, again := d.policy.NoNode(now.Sub(e.since[d.subset]), skipped)
		if step == subset.Stay {
			if again > 0 {
				l.wakeAfter(e, again)
			}
			next = stay
			return
		}
		if !d.policy.Patience.Simulate && !skipped {
			s.skipUntil[d.subset] = now.Add(d.policy.Patience.Skip)
		}
		s.remember(e.shapeKey(d.subset), verdict)
		e.tried = e.tried.With(d.subset)
		l.tryNext(e)
		next = goOn
	})
	return next
}

// preempted takes in how the preemption of this cycle went. A pod that is nominated, by this one or one before, keeps its claim while its victims
// leave, or a sibling would take the slot and the pod would take victims in another subset as well.
func (l *ledger) preempted(pod *corev1.Pod, nominated bool) {
	l.locked(func() {
		e := l.entries[pod.UID]
		if e == nil || e.state != claimed || !e.preempting {
			return
		}
		e.preempting = false
		e.nominated = nominated
		if !nominated {
			e.tried, e.preempted = e.tried.With(e.subset), e.preempted.With(e.subset)
			l.tryNext(e)
		}
	})
}

// tryNext gives the claim up and has the pod tried again at once.
func (l *ledger) tryNext(e *entry) {
	l.release(e)
	e.state = waiting
	e.nominated = false
	e.again = true
	l.wake(e)
}

// isFixed is true for a pod that has no subset to go on to.
func (l *ledger) isFixed(e *entry) bool {
	step, _ := e.spread.policy.NoNode(0, true)
	return step == subset.Stay || l.candidate(e).Admitted
}
