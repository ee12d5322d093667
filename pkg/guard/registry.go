package guard

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/crd/policy/v1alpha1"
)

// registry lists the budgets of a namespace.
type registry = shared[string, *v1alpha1.PodUnavailableBudgetList]

const (
	// fromMemory makes the API server answer from its own memory. A new budget reaches that memory within milliseconds, well before its status says
	// Enforcing, unless that API server is cut off from its store.
	fromMemory = "0"
	// committed makes the API server answer with what its store has. That may take a tenth of a second.
	committed = ""
)

// newRegistry takes the revision to list at, as in metav1.ListOptions.ResourceVersion.
func newRegistry(live client.Reader, revision string) *registry {
	return newShared(func(ctx context.Context, namespace string) (*v1alpha1.PodUnavailableBudgetList, error) {
		options := &client.ListOptions{Namespace: namespace, Raw: &metav1.ListOptions{ResourceVersion: revision}}
		budgets := &v1alpha1.PodUnavailableBudgetList{}
		if err := live.List(ctx, budgets, options); err != nil {
			return nil, fmt.Errorf("listing the budgets of namespace %s: %w", namespace, err)
		}
		return budgets, nil
	})
}

// candidate is a budget that may cover a pod.
type candidate struct {
	name types.NamespacedName
	// target is nil if the budget has a selector. The selector then picks the pod.
	target   *v1alpha1.TargetReference
	selector labels.Selector
	// room is how many more pods may become unavailable, as the budget's status says.
	room int32
}

// isFull is true if the budget is likely to refuse: its selector picks the pod, and its status says that it has no room.
func (c candidate) isFull() bool { return c.target == nil && c.room == 0 }

// isSame is true if both are the same budget, with the same target.
func (c candidate) isSame(other candidate) bool {
	return c.name == other.name && (c.target == nil) == (other.target == nil) && (c.target == nil || *c.target == *other.target)
}

// covering returns the budgets that may cover the pod, sorted by name, so that all processes ask them in the same order. Which of them do shows only
// when they and their workloads are read.
func covering(pubs *v1alpha1.PodUnavailableBudgetList, pod *corev1.Pod) []candidate {
	var found []candidate
	for i := range pubs.Items {
		pub := &pubs.Items[i]
		policy, errs := budget.Compile(pub)
		if len(errs) > 0 || pub.DeletionTimestamp != nil {
			continue // it protects nothing; the controller reports errors in the budget's conditions
		}
		if policy.Target != nil || policy.Selector.Matches(labels.Set(pod.Labels)) {
			found = append(found, candidate{client.ObjectKeyFromObject(pub), policy.Target, policy.Selector, pub.Status.UnavailableAllowed})
		}
	}
	slices.SortFunc(found, func(a, b candidate) int { return strings.Compare(a.name.Name, b.name.Name) })
	return found
}
