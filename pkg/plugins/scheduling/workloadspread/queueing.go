package workloadspread

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	schedutil "k8s.io/kubernetes/pkg/scheduler/util"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	"github.com/berth-project/berth/pkg/subset"
)

// EventsToRegister names the events after which a pod that the plugin rejected may find a node. Slots, spreads and workloads have no event
// here: the ledger wakes exactly as many pods as there are slots, after it has counted, which a hint cannot do.
func (s *Spread) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{
			Event:          fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeAllocatable | fwk.UpdateNodeLabel | fwk.UpdateNodeTaint},
			QueueingHintFn: s.isSchedulableAfterNodeChange,
		},
		// The other filters register this for the subset that the pod tried last. Room may come free in an earlier one.
		{
			Event:          fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Delete | fwk.UpdatePodScaleDown | fwk.UpdatePodToleration},
			QueueingHintFn: s.isSchedulableAfterPodChange,
		},
	}, nil
}

// isSchedulableAfterNodeChange: the node has become one that the pod's subset may use, or there is more room on it.
func (s *Spread) isSchedulableAfterNodeChange(_ klog.Logger, pod *corev1.Pod, before, after any) (fwk.QueueingHint, error) {
	was, is, err := schedutil.As[*corev1.Node](before, after)
	if err != nil {
		return fwk.Queue, err
	}
	if s.ledger.mayRetry(pod, after, is) {
		return fwk.Queue, nil
	}
	claimed, own := s.ledger.claimOf(pod)
	if claimed == nil {
		return fwk.QueueSkip, nil
	}
	fits := func(node *corev1.Node) bool {
		return claimed.Fits(node, own) == v1alpha1.ReasonAdmitted
	}
	if fits(is) && (was == nil || !fits(was)) {
		return fwk.Queue, nil
	}
	return fwk.QueueSkip, nil
}

// isSchedulableAfterPodChange: a pod has left a node of one of the subsets or needs less of it, or the pod itself has changed.
func (s *Spread) isSchedulableAfterPodChange(_ klog.Logger, pod *corev1.Pod, before, after any) (fwk.QueueingHint, error) {
	was, is, err := schedutil.As[*corev1.Pod](before, after)
	if err != nil {
		return fwk.Queue, err
	}
	if is != nil && is.UID == pod.UID {
		return fwk.Queue, nil
	}
	if was.Spec.NodeName != "" && s.ledger.mayRetry(pod, before, s.ledger.nodes(was.Spec.NodeName)) {
		return fwk.Queue, nil
	}
	return fwk.QueueSkip, nil
}

// mayRetry is true for one exhausted pod of each spread for each event on a node that one of its subsets selects. If that pod finds room, the
// next is woken. Nil is a node that is gone.
func (l *ledger) mayRetry(pod *corev1.Pod, event any, node *corev1.Node) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[pod.UID]
	if node == nil || e == nil || !e.exhausted || e.spread.policy == nil {
		return false
	}
	if l.event != event {
		l.event = event
		clear(l.served)
	}
	if l.served[e.spread] {
		return false
	}
	for i := range e.spread.policy.Subsets {
		if e.spread.policy.Subsets[i].Fits(node, e.own) == v1alpha1.ReasonAdmitted {
			l.served[e.spread] = true
			return true
		}
	}
	return false
}

// claimOf is the subset that a pod without a node looks for one in, or nil, and the tolerations of its own.
func (l *ledger) claimOf(pod *corev1.Pod) (*subset.Subset, []corev1.Toleration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[pod.UID]
	if e == nil || e.subset == subset.None || e.state == bound {
		return nil, nil
	}
	return &e.spread.policy.Subsets[e.subset], e.own
}

// SignPod separates pods of different spreads and revisions: they may be in different subsets, so what was computed for one says nothing of
// the other.
func (s *Spread) SignPod(_ context.Context, pod *corev1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	return []fwk.SignFragment{{Key: Name, Value: s.ledger.signature(pod)}}, nil
}

func (l *ledger) signature(pod *corev1.Pod) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.entries[pod.UID]; e != nil {
		return fmt.Sprintf("%s/%s", e.spread.object.UID, e.scope)
	}
	return ""
}
