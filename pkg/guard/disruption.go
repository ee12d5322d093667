package guard

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/crd/policy/v1alpha1"
)

// heldByDisruptionBudget is the refusal of an eviction that the API server would refuse itself, by a PodDisruptionBudget; nil if it surely would not, or if
// that cannot be told.
//
// The API server looks at PodDisruptionBudgets after it has asked the webhook. So what is let through and refused then would be in the ledger, and a drain that
// tries again and again would take all the room there is for nothing: no rollout could go on beside it. What the cache says is made sure of, and what cannot
// be made sure of is left to the API server.
func (g *Guard) heldByDisruptionBudget(ctx context.Context, pod *corev1.Pod) *budget.Verdict {
	if !budget.IsReady(pod) { // what may be done to others depends on more
		return nil
	}
	var pdbs policyv1.PodDisruptionBudgetList
	if err := g.cached.List(ctx, &pdbs, client.InNamespace(pod.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot tell what PodDisruptionBudgets say", "pod", klog.KObj(pod), "error", err)
		return nil
	}
	var holding *policyv1.PodDisruptionBudget
	for i := range pdbs.Items {
		pdb := &pdbs.Items[i]
		if !selects(pdb, pod) {
			continue
		}
		if holding != nil {
			return nil // evictions of a pod with several fail in another way
		}
		holding = pdb
	}
	if holding == nil || !allowsNone(holding) {
		return nil
	}
	latest := &policyv1.PodDisruptionBudget{}
	if err := g.live.Get(ctx, client.ObjectKeyFromObject(holding), latest); err != nil || !selects(latest, pod) || !allowsNone(latest) {
		return nil
	}
	return &budget.Verdict{Reason: v1alpha1.ReasonPodDisruptionBudget, Message: fmt.Sprintf(
		"pod %s cannot be evicted now: PodDisruptionBudget %s needs %d healthy pods and has %d; try again when it allows a disruption",
		pod.Name, latest.Name, latest.Status.DesiredHealthy, latest.Status.CurrentHealthy)}
}

func selects(pdb *policyv1.PodDisruptionBudget, pod *corev1.Pod) bool {
	selector, err := metav1.LabelSelectorAsSelector(pdb.Spec.Selector)
	return err == nil && selector.Matches(labels.Set(pod.Labels))
}

// allowsNone is true if a pod that is ready cannot be evicted. It is so as well for a PodDisruptionBudget that its controller has not looked at.
func allowsNone(pdb *policyv1.PodDisruptionBudget) bool {
	return pdb.Status.ObservedGeneration < pdb.Generation || pdb.Status.DisruptionsAllowed == 0
}
