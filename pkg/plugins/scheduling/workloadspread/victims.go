package workloadspread

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"

	"github.com/berth-project/berth/pkg/budget"
)

// victims is DefaultPreemption, but takes no more pods than their PodUnavailableBudgets allow. PodDisruptionBudgets and everything else work as in
// DefaultPreemption.
type victims struct {
	*defaultpreemption.DefaultPreemption
	budgets *budgets
}

var _ preemption.Interface = &victims{}

// guardVictims makes an instance of DefaultPreemption respect the budgets.
func guardVictims(p *defaultpreemption.DefaultPreemption, handle fwk.Handle, b *budgets) {
	p.Evaluator.Interface = &victims{p, b}
	take := p.Evaluator.PreemptPod
	p.Evaluator.PreemptPod = func(ctx context.Context, c preemption.Candidate, preemptor, victim *corev1.Pod, plugin string) error {
		if !budget.IsProtected(victim) || handle.GetWaitingPod(victim.UID) != nil { // a waiting pod goes back to the queue and is not deleted
			return take(ctx, c, preemptor, victim, plugin)
		}
		err := mayDelete(ctx, handle, victim)
		if err == nil {
			err = take(ctx, c, preemptor, victim, plugin)
		}
		if err != nil {
			b.refuse(victim) // whatever the reason: no answer is no permission
		}
		return err
	}
}

// mayDelete asks the API server whether the pod may be deleted. The scheduler writes DisruptionTarget into a victim before it deletes it. If the
// deletion is refused after that, the condition stays for minutes, and clients that count failures count one that did not happen.
func mayDelete(ctx context.Context, handle fwk.Handle, pod *corev1.Pod) error {
	err := handle.ClientSet().CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		DryRun: []string{metav1.DryRunAll}, Preconditions: &metav1.Preconditions{UID: &pod.UID},
	})
	if apierrors.IsNotFound(err) {
		return nil // no preemption is needed any more
	}
	if err != nil {
		return fmt.Errorf("asking whether pod %s/%s may be preempted: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// SelectVictimsOnNode leaves pods alone for which their budgets have no room. Of several pods of a budget it prefers the least important.
func (v *victims) SelectVictimsOnNode(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node fwk.NodeInfo, pdbs []*policyv1.PodDisruptionBudget) ([]*corev1.Pod, int, *fwk.Status) {
	var spared sets.Set[types.UID]
	if !v.budgets.isEmpty() {
		spared = v.budgets.spare(pod, v.lowerPriorityPods(pod, node))
	}
	if len(spared) == 0 {
		return v.DefaultPreemption.SelectVictimsOnNode(ctx, state, pod, node, pdbs)
	}
	// Nodes are tried in parallel, so each has a copy that knows which pods to spare there.
	here := *v.DefaultPreemption
	may := here.IsEligiblePod
	here.IsEligiblePod = func(node fwk.NodeInfo, victim fwk.PodInfo, preemptor *corev1.Pod) bool {
		return !spared.Has(victim.GetPod().UID) && may(node, victim, preemptor)
	}
	chosen, violating, status := here.SelectVictimsOnNode(ctx, state, pod, node, pdbs)
	if status.IsRejected() {
		status = fwk.NewStatus(status.Code(), append(slices.Clone(status.Reasons()), "node(s) with pods that a PodUnavailableBudget protects")...)
	}
	return chosen, violating, status
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
