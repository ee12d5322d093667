package workloadspread

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
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
	aroundPreemption(p, func(ctx context.Context, victim *corev1.Pod, take func() error) error {
		if !budget.IsProtected(victim) || handle.GetWaitingPod(victim.UID) != nil { // a waiting pod goes back to the queue and is not deleted
			return take()
		}
		err := mayDelete(ctx, handle, victim)
		if err == nil {
			err = take()
		}
		if err != nil {
			b.refuse(victim) // whatever the reason: no answer is no permission
		}
		return err
	})
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

// selecting is what DefaultPreemption says about a node: the victims, how many of them their PodDisruptionBudgets protect, and whether that helps the pod.
type selecting func(*defaultpreemption.DefaultPreemption) ([]*corev1.Pod, int, *fwk.Status)

// choose leaves pods alone for which their budgets have no room. Of several pods of a budget it prefers the least important. The candidates are the
// pods that the preemption may take, the least important first.
func (v *victims) choose(pod *corev1.Pod, candidates func() []*corev1.Pod, choose selecting) ([]*corev1.Pod, int, *fwk.Status) {
	var spared sets.Set[types.UID]
	if !v.budgets.isEmpty() {
		spared = v.budgets.spare(pod, candidates())
	}
	if len(spared) == 0 {
		return choose(v.DefaultPreemption)
	}
	// Nodes are tried in parallel, so each has a copy that knows which pods to spare there.
	here := *v.DefaultPreemption
	spare(&here, spared)
	chosen, violating, status := choose(&here)
	if status.IsRejected() {
		status = fwk.NewStatus(status.Code(), append(slices.Clone(status.Reasons()), "node(s) with pods that a PodUnavailableBudget protects")...)
	}
	return chosen, violating, status
}
