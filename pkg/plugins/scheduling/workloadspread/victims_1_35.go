//go:build !kubernetes_1_37

package workloadspread

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
)

// aroundPreemption calls a function for each pod that preemption takes, in place of taking it.
func aroundPreemption(p *defaultpreemption.DefaultPreemption, around func(ctx context.Context, victim *corev1.Pod, take func() error) error) {
	take := p.Evaluator.PreemptPod
	p.Evaluator.PreemptPod = func(ctx context.Context, c preemption.Candidate, preemptor, victim *corev1.Pod, plugin string) error {
		return around(ctx, victim, func() error { return take(ctx, c, preemptor, victim, plugin) })
	}
}

// sparing makes a preemption leave pods alone.
func sparing(p *defaultpreemption.DefaultPreemption, spare func(victim, preemptor *corev1.Pod) bool) {
	may := p.IsEligiblePod
	p.IsEligiblePod = func(node fwk.NodeInfo, victim fwk.PodInfo, preemptor *corev1.Pod) bool {
		return may(node, victim, preemptor) && !spare(victim.GetPod(), preemptor)
	}
}

// takenLast completes the order in which a preemption spares pods.
func takenLast(p *defaultpreemption.DefaultPreemption) {
	more := p.MoreImportantPod
	p.MoreImportantPod = func(a, b *corev1.Pod) bool { return moreImportant(more(a, b), more(b, a), a, b) }
}
