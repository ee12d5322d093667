package guard

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// heldByDisruptionBudget returns the refusal of an eviction that the API server would itself refuse because of a PodDisruptionBudget. It returns nil if
// the API server surely would not refuse it, or if that cannot be told.
//
// The API server checks PodDisruptionBudgets after it has called the webhook. An eviction that the webhook allows and the API server then refuses would
// stand in the ledger. A drain that tries again and again would take all room of the budget for nothing, and no rollout could go on beside it. So a
// live read must confirm what the cache says. The guard leaves to the API server what it cannot confirm.
func (g *Guard) heldByDisruptionBudget(ctx context.Context, pod *corev1.Pod) *budget.Verdict {
	if !budget.IsReady(pod) { // whether an unready pod can be evicted depends on more
		return nil
	}
	var pdbs policyv1.PodDisruptionBudgetList
	if err := g.cached.List(ctx, &pdbs, client.InNamespace(pod.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot list PodDisruptionBudgets; the API server checks them itself", "pod", klog.KObj(pod), "error", err)
		return nil
	}
	holding := slices.DeleteFunc(pdbs.Items, func(pdb policyv1.PodDisruptionBudget) bool { return !selects(&pdb, pod) })
	if len(holding) != 1 || !allowsNone(&holding[0]) { // the API server answers with another error if a pod has several
		return nil
	}
	latest := &policyv1.PodDisruptionBudget{}
	if err := g.live.Get(ctx, client.ObjectKeyFromObject(&holding[0]), latest); err != nil || !selects(latest, pod) || !allowsNone(latest) {
		return nil
	}
	return &budget.Verdict{Reason: v1beta1.ReasonPodDisruptionBudget, Message: fmt.Sprintf(
		"pod %s cannot be evicted now: PodDisruptionBudget %s needs %d healthy pods and has %d; try again when it allows a disruption",
		pod.Name, latest.Name, latest.Status.DesiredHealthy, latest.Status.CurrentHealthy)}
}

func selects(pdb *policyv1.PodDisruptionBudget, pod *corev1.Pod) bool {
	selector, err := metav1.LabelSelectorAsSelector(pdb.Spec.Selector)
	return err == nil && selector.Matches(labels.Set(pod.Labels))
}

// allowsNone is true if a ready pod cannot be evicted. That includes a PodDisruptionBudget whose latest generation its controller has not observed.
func allowsNone(pdb *policyv1.PodDisruptionBudget) bool {
	return pdb.Status.ObservedGeneration < pdb.Generation || pdb.Status.DisruptionsAllowed == 0
}
