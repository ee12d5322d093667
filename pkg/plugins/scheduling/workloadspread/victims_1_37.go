//go:build kubernetes_1_37

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

// SelectVictimsOnNode implements preemption.Interface.
func (v *victims) SelectVictimsOnNode(
	ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node fwk.NodeInfo, possible []*preemption.DomainVictim, pdbs []*policyv1.PodDisruptionBudget,
) ([]*corev1.Pod, int, *fwk.Status) {
	return v.choose(pod, func() []*corev1.Pod { return lowerPriorityPods(v, pod, possible) }, func(p *defaultpreemption.DefaultPreemption) ([]*corev1.Pod, int, *fwk.Status) {
		return p.SelectVictimsOnNode(ctx, state, pod, node, possible, pdbs)
	})
}

// lowerPriorityPods are the pods that a preemption may take for the pod, the least important first. A pod group that is disrupted as a whole is one
// victim, also if it has pods on other nodes.
func lowerPriorityPods[V preemption.Victim](v *victims, pod *corev1.Pod, possible []V) []*corev1.Pod {
	var lower []V
	for _, victim := range possible {
		if victim.Priority() < corev1helpers.PodPriority(pod) {
			lower = append(lower, victim)
		}
	}
	slices.SortStableFunc(lower, func(a, b V) int {
		switch {
		case v.MoreImportantVictim(b, a):
			return -1
		case v.MoreImportantVictim(a, b):
			return 1
		default:
			return 0
		}
	})
	var pods []*corev1.Pod
	for _, victim := range lower {
		for _, info := range victim.Pods() {
			pods = append(pods, info.GetPod())
		}
	}
	return pods
}

// spare makes a preemption leave pods alone, and every pod group of which it could only take all pods.
func spare(p *defaultpreemption.DefaultPreemption, pods sets.Set[types.UID]) {
	may := p.IsEligiblePod
	p.IsEligiblePod = func(node fwk.NodeInfo, victim preemption.Victim, preemptor *corev1.Pod) bool {
		spared := slices.ContainsFunc(victim.Pods(), func(info fwk.PodInfo) bool { return pods.Has(info.GetPod().UID) })
		return !spared && may(node, victim, preemptor)
	}
}
