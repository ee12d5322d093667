package census

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/workload"
)

// KnowsSubsetsOf is true if the count has looked at each workload that the status of the budget remembers.
func (c *Count) KnowsSubsetsOf(pub *v1beta1.PodUnavailableBudget) bool {
	return !slices.ContainsFunc(pub.Status.SubsetWorkloads, func(w v1beta1.SubsetWorkload) bool { return !c.Owners.Has(w.UID) })
}

// divide adds to the count which pods the subsets have and should have, if the budget limits subsets. tops are those of Census.take. target is nil for a
// budget without one. A workload whose pods are all gone is known only if the budget remembers it.
func (o *owners) divide(ctx context.Context, count *Count, policy *budget.Policy, tops []*owner, target *owner) error {
	label := policy.SubsetLabel()
	if label == "" {
		return nil
	}
	if target != nil && target.uid == "" { // it does not exist
		for i := range o.remembered {
			count.Forgotten = append(count.Forgotten, o.remembered[i].UID)
		}
		return nil
	}
	var unread []metav1.OwnerReference
	remembered := make([]metav1.OwnerReference, len(o.remembered))
	for i, w := range o.remembered {
		remembered[i] = metav1.OwnerReference{APIVersion: w.APIVersion, Kind: w.Kind, Name: w.Name, UID: w.UID}
		if o.found[workload.OwnerOf(&remembered[i])] == nil {
			unread = append(unread, remembered[i])
		}
	}
	if _, err := o.readAll(ctx, unread); err != nil {
		return err
	}
	declaring, shared := map[*owner]string{}, map[*owner]int32{}
	for i, pod := range count.Pods {
		facts := &count.Facts.Pods[i]
		facts.Subset = policy.SubsetOf(pod)
		if owner := o.declaring(pod, label); owner != nil {
			facts.Declared = true
			declaring[owner], _ = owner.selector.RequiresExactMatch(label)
		} else if above := tops[i]; above != nil {
			facts.Unwanted = above.gone
			shared[above] += 0
		}
	}
	for i := range count.Pods {
		if _, is := shared[tops[i]]; is && count.Facts.Pods[i].State != budget.Gone && !count.Facts.Pods[i].HandedOver {
			shared[tops[i]]++
		}
	}
	for owner, existing := range shared {
		count.Unplaced += max(owner.replicas-existing, 0)
	}
	for i := range remembered {
		owner := o.found[workload.OwnerOf(&remembered[i])]
		subset, is := owner.selector.RequiresExactMatch(label)
		_, seen := declaring[owner]
		switch {
		case seen:
		case owner.hidesReplicas():
			count.miss(owner)
		case !is || owner.gone || !o.belongs(owner, policy, target):
			count.Forgotten = append(count.Forgotten, owner.uid)
		default:
			declaring[owner] = subset
		}
	}
	for owner, subset := range declaring {
		count.Subsets = append(count.Subsets, budget.SubsetWorkload{
			SubsetWorkload: v1beta1.SubsetWorkload{APIVersion: schema.GroupVersion{Group: owner.kind.Group, Version: owner.version}.String(), Kind: owner.kind.Kind, Name: owner.name, UID: owner.uid},
			Subset:         subset, Replicas: owner.replicas,
		})
	}
	return nil
}

// declaring is the uppermost owner of a pod whose selector has the label with one value, and whose replicas can be read. It is nil if there is none.
func (o *owners) declaring(pod *corev1.Pod, label string) (declaring *owner) {
	for next := range o.above(pod) {
		if _, is := next.selector.RequiresExactMatch(label); is && !next.unread {
			declaring = next
		}
	}
	return declaring
}

// belongs is true if the pods that the workload creates are in the budget, as far as that is known.
func (o *owners) belongs(w *owner, policy *budget.Policy, target *owner) bool {
	if target == nil {
		return w.template == nil || policy.Selector.Matches(w.template)
	}
	for range o.found {
		if w == target {
			return true
		}
		if w = o.found[workload.OwnerOf(w.parent)]; w == nil {
			return false
		}
	}
	return false
}
