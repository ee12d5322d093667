package whatif

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
)

// outcome is what the scheduler would do with a pending pod now.
type outcome struct {
	// Bound is the pod with its node and its record. Nil if it has to wait.
	Bound *corev1.Pod
	// Waits is the subset in which it waits for a node. Nil if it waits in none.
	Waits *subset.Subset
	// Reason why it got no subset. Empty if it waits in one.
	Reason v1beta1.Reason
}

// Try is the outcome for a pending pod of a spread, after the pods of the spread that came before it. It is empty for a
// pod that Berth's scheduler does not schedule, and for one that other plugins refuse.
func (e *Engine) Try(ctx context.Context, d *Divided, pod *corev1.Pod) (outcome, error) {
	p, err := e.begin(ctx, d, d.Replicas, nil)
	if err != nil {
		return outcome{}, err
	}
	for _, pending := range slices.SortedStableFunc(slices.Values(d.Pods), byAge) {
		if isScheduled(pending) {
			p.enqueue(pending)
		}
	}
	if err := p.run(ctx, 0); err != nil {
		return outcome{}, err
	}
	return outcome{Bound: p.bound[pod.UID], Waits: e.plugin.ClaimOf(pod), Reason: p.refused[pod.UID]}, nil
}
