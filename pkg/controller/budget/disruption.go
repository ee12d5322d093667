package budget

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	model "github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/budget/census"
	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/podstate"
	"github.com/berth-project/berth/pkg/workload"
)

// keepDisruptionBudget creates, changes or deletes the PodDisruptionBudget that the budget asks for, and returns the condition about it. The condition has
// no type if the budget asks for none.
//
// The API server refuses to evict a pod that two PodDisruptionBudgets select. So Berth's gives way to any other. Every write names the object that was
// read, and a new one is created and not applied: an apply would take over one that a user creates at the same moment.
func (r *reconciler) keepDisruptionBudget(ctx context.Context, pub *v1beta1.PodUnavailableBudget, policy *model.Policy, count *census.Count) (condition, error) {
	own := &policyv1.PodDisruptionBudget{}
	if err := r.cached.Get(ctx, client.ObjectKeyFromObject(pub), own); client.IgnoreNotFound(err) != nil {
		return condition{}, fmt.Errorf("reading PodDisruptionBudget %s: %w", pub.Name, err)
	}
	if !metav1.IsControlledBy(own, pub) {
		own = nil
	}
	if !pub.Spec.KeepPodDisruptionBudget {
		return condition{}, r.dropDisruptionBudget(ctx, own)
	}
	other, err := r.otherDisruptionBudget(ctx, pub, count)
	if err != nil {
		return condition{}, err
	}
	want, why := disruptionBudgetOf(pub, policy, count)
	const kind = v1beta1.ConditionPodDisruptionBudgetKept
	switch {
	case other != "":
		return frame.False(kind, v1beta1.ReasonOtherPodDisruptionBudget,
			"Berth keeps no PodDisruptionBudget beside %s, which has the same name or selects the same pods: the API server evicts no pod that has two", other), r.dropDisruptionBudget(ctx, own)
	case why != "":
		return frame.False(kind, v1beta1.ReasonNotExpressible, "Berth keeps no PodDisruptionBudget: %s", why), r.dropDisruptionBudget(ctx, own)
	case own == nil:
		if err := r.writer.Create(ctx, want); err != nil {
			return condition{}, fmt.Errorf("creating PodDisruptionBudget %s: %w", want.Name, err)
		}
	case !equality.Semantic.DeepEqual(own.Spec, want.Spec):
		own.Spec = want.Spec
		if err := r.writer.Update(ctx, own); err != nil {
			return condition{}, fmt.Errorf("changing PodDisruptionBudget %s: %w", want.Name, err)
		}
	}
	return frame.True(kind, v1beta1.ReasonPodDisruptionBudgetKept, "PodDisruptionBudget %s says the same as the budget", want.Name), nil
}

// dropDisruptionBudget deletes the object that was read. Nil is none.
func (r *reconciler) dropDisruptionBudget(ctx context.Context, own *policyv1.PodDisruptionBudget) error {
	if own == nil || own.DeletionTimestamp != nil {
		return nil
	}
	err := r.writer.Delete(ctx, own, client.Preconditions{UID: &own.UID})
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // another of that name is not Berth's
		return nil
	}
	return fmt.Errorf("deleting PodDisruptionBudget %s: %w", own.Name, err)
}

// otherDisruptionBudget is the name of a PodDisruptionBudget beside which Berth keeps none, empty if there is none. Of two that Berth keeps for the same
// pods, the one whose name is first stays.
func (r *reconciler) otherDisruptionBudget(ctx context.Context, pub *v1beta1.PodUnavailableBudget, count *census.Count) (string, error) {
	var all policyv1.PodDisruptionBudgetList
	if err := r.cached.List(ctx, &all, client.InNamespace(pub.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return "", fmt.Errorf("listing the PodDisruptionBudgets of namespace %s: %w", pub.Namespace, err)
	}
	for i := range all.Items {
		pdb := &all.Items[i]
		owner := workload.ControllerOf(pdb)
		isBerths := owner != nil && owner.Kind == v1beta1.Kind.GroupKind()
		if metav1.IsControlledBy(pdb, pub) || pdb.DeletionTimestamp != nil || isBerths && pdb.Name > pub.Name {
			continue
		}
		if pdb.Name == pub.Name || picksSame(pdb, count) {
			return pdb.Name, nil
		}
	}
	return "", nil
}

func picksSame(pdb *policyv1.PodDisruptionBudget, count *census.Count) bool {
	selector, err := metav1.LabelSelectorAsSelector(pdb.Spec.Selector)
	if err != nil {
		return false // the API server evicts by none that it cannot read
	}
	for _, pod := range count.Pods {
		if selector.Matches(labels.Set(pod.Labels)) {
			return true
		}
	}
	return model.Overlaps(selector, count.Selector)
}

// disruptionBudgetOf is the PodDisruptionBudget that says what the budget says, or why there is none.
func disruptionBudgetOf(pub *v1beta1.PodUnavailableBudget, policy *model.Policy, count *census.Count) (_ *policyv1.PodDisruptionBudget, why string) {
	selector := pub.Spec.Selector
	if policy.Target != nil {
		selector = selectorOf(count.Selector)
	}
	_, ignores := policy.Ignored.Requirements()
	switch {
	case pub.Spec.MaxUnavailable == nil && pub.Spec.MinAvailable == nil:
		return nil, "it needs maxUnavailable or minAvailable, and knows no subsets"
	case !policy.Protects(v1beta1.OperationEvict):
		return nil, "it would hold evictions, from which protectOperations does not protect"
	case ignores:
		return nil, "it could not leave out the pods that ignoredPodSelector selects"
	case count.TargetGone:
		return nil, "the workload does not exist"
	case selector == nil:
		return nil, "the selector of the workload is not known"
	case policy.Target != nil && existing(count.Listed) != existing(count.Pods):
		return nil, "the selector of the workload also selects other pods"
	}
	pdb := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: pub.Namespace, Name: pub.Name, OwnerReferences: []metav1.OwnerReference{{
			APIVersion: v1beta1.GroupVersion.String(), Kind: v1beta1.Kind.Kind, Name: pub.Name, UID: pub.UID, Controller: ptr.To(true),
		}}},
		Spec: policyv1.PodDisruptionBudgetSpec{Selector: selector, MaxUnavailable: pub.Spec.MaxUnavailable, UnhealthyPodEvictionPolicy: ptr.To(policyv1.AlwaysAllow)},
	}
	if pub.Spec.UnhealthyPodPolicy == v1beta1.IfHealthyBudget {
		pdb.Spec.UnhealthyPodEvictionPolicy = ptr.To(policyv1.IfHealthyBudget)
	}
	// Kubernetes reads the replicas of the controllers of all pods for maxUnavailable and percentages, and evicts nothing if it cannot. A count it just takes.
	if t := policy.Tally(count.Facts); policy.Replicas != nil || t.Unmanaged > 0 {
		pdb.Spec.MaxUnavailable, pdb.Spec.MinAvailable = nil, ptr.To(intstr.FromInt32(t.Desired))
	} else if pub.Spec.MaxUnavailable == nil {
		pdb.Spec.MinAvailable = pub.Spec.MinAvailable
	}
	return pdb, ""
}

// existing is how many of the pods have not ended.
func existing(pods []*corev1.Pod) (n int) {
	for _, pod := range pods {
		if !podstate.HasEnded(pod) {
			n++
		}
	}
	return n
}

// selectorOf is the selector of a workload in the API's form. It is nil for one that this form cannot say, and for a selector that selects everything, as that
// of a workload that does not tell one.
func selectorOf(selector labels.Selector) *metav1.LabelSelector {
	requirements, _ := selector.Requirements()
	result, err := metav1.ParseToLabelSelector(selector.String())
	if err != nil || len(requirements) == 0 {
		return nil
	}
	return result
}
