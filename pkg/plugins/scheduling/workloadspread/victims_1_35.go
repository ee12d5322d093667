//go:build !kubernetes_1_37

package workloadspread

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
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

// SelectVictimsOnNode implements preemption.Interface.
func (v *victims) SelectVictimsOnNode(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node fwk.NodeInfo, pdbs []*policyv1.PodDisruptionBudget) ([]*corev1.Pod, int, *fwk.Status) {
	return v.choose(pod, func() []*corev1.Pod { return v.lowerPriorityPods(pod, node) }, func(p *defaultpreemption.DefaultPreemption) ([]*corev1.Pod, int, *fwk.Status) {
		return p.SelectVictimsOnNode(ctx, state, pod, node, pdbs)
	})
}

// lowerPriorityPods are the pods of the node that a preemption may take for the pod, the least important first.
func (v *victims) lowerPriorityPods(pod *corev1.Pod, node fwk.NodeInfo) []*corev1.Pod {
	var pods []*corev1.Pod
	for _, info := range node.GetPods() {
		if corev1helpers.PodPriority(info.GetPod()) < corev1helpers.PodPriority(pod) {
			pods = append(pods, info.GetPod())
		}
	}
	slices.SortStableFunc(pods, func(a, b *corev1.Pod) int {
		switch {
		case v.MoreImportantPod(b, a):
			return -1
		case v.MoreImportantPod(a, b):
			return 1
		default:
			return 0
		}
	})
	return pods
}

// spare makes a preemption leave pods alone.
func spare(p *defaultpreemption.DefaultPreemption, pods sets.Set[types.UID]) {
	may := p.IsEligiblePod
	p.IsEligiblePod = func(node fwk.NodeInfo, victim fwk.PodInfo, preemptor *corev1.Pod) bool {
		return !pods.Has(victim.GetPod().UID) && may(node, victim, preemptor)
	}
}
