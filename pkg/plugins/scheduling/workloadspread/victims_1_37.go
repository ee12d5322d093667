//go:build kubernetes_1_37

package workloadspread

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
)

// aroundPreemption calls a function for each pod that preemption takes, in place of taking it. The preemption of a pod group takes its victims in the
// same way.
func aroundPreemption(p *defaultpreemption.DefaultPreemption, around func(ctx context.Context, victim *corev1.Pod, take func() error) error) {
	take := p.Executor.PreemptPod
	p.Executor.PreemptPod = func(ctx context.Context, c preemption.Candidate, preemptor preemption.ExecutorPreemptor, victim *corev1.Pod, plugin string) (inMemory bool, err error) {
		err = around(ctx, victim, func() (err error) {
			inMemory, err = take(ctx, c, preemptor, victim, plugin)
			return err
		})
		return inMemory, err
	}
}

// sparing makes a preemption leave pods alone, and every pod group of which it could only take all pods.
func sparing(p *defaultpreemption.DefaultPreemption, spare func(victim, preemptor *corev1.Pod) bool) {
	may := p.IsEligiblePod
	p.IsEligiblePod = func(node fwk.NodeInfo, victim preemption.Victim, preemptor *corev1.Pod) bool {
		return may(node, victim, preemptor) && !slices.ContainsFunc(victim.Pods(), func(info fwk.PodInfo) bool { return spare(info.GetPod(), preemptor) })
	}
}

// takenLast completes the order in which a preemption spares pods. A group is what its first pod is.
func takenLast(p *defaultpreemption.DefaultPreemption) {
	more := p.MoreImportantVictim
	p.MoreImportantVictim = func(a, b preemption.Victim) bool {
		return moreImportant(more(a, b), more(b, a), a.Pods()[0].GetPod(), b.Pods()[0].GetPod())
	}
}
