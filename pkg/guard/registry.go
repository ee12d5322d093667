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
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// registry lists the budgets of a namespace.
type registry = shared[string, *v1beta1.PodUnavailableBudgetList]

const (
	// fromMemory makes the API server answer from its own memory. A new budget reaches that memory within milliseconds, well before its status says
	// Enforcing, unless that API server is cut off from its store.
	fromMemory = "0"
	// committed makes the API server answer with what its store has. That may take a tenth of a second.
	committed = ""
)

// newRegistry takes the revision to list at, as in metav1.ListOptions.ResourceVersion.
func newRegistry(live client.Reader, revision string) *registry {
	return newShared(func(ctx context.Context, namespace string) (*v1beta1.PodUnavailableBudgetList, error) {
		options := &client.ListOptions{Namespace: namespace, Raw: &metav1.ListOptions{ResourceVersion: revision}}
		budgets := &v1beta1.PodUnavailableBudgetList{}
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
	target *v1beta1.TargetReference
	// room is how many more pods may become unavailable, as the budget's status says.
	room int32
}

// isFull is true if the budget is likely to refuse: its selector picks the pod, and its status says that it has no room.
func (c candidate) isFull() bool { return c.target == nil && c.room == 0 }

// policies are compiled budgets. A namespace may have hundreds of budgets, and each request compares its pod with all of them.
type policies struct {
	// compiled has the last *compiledBudget of each budget, by its UID.
	compiled *lru.Cache
}

// compiledBudget is the policy of a budget. It is nil if the budget cannot be compiled.
type compiledBudget struct {
	from   budget.Source
	policy *budget.Policy
}

// mostCompiled bounds the memory. A policy is about as large as the budget's spec. The one that was used least recently is forgotten first.
const mostCompiled = 4096

func newPolicies() *policies { return &policies{lru.New(mostCompiled)} }

// of returns the policy of the budget, or nil if the budget cannot be compiled.
func (p *policies) of(pub *v1beta1.PodUnavailableBudget) *budget.Policy {
	from := budget.SourceOf(pub)
	if known, found := p.compiled.Get(pub.UID); found && from.Equal(&known.(*compiledBudget).from) {
		return known.(*compiledBudget).policy
	}
	policy, _ := budget.Compile(pub)
	p.compiled.Add(pub.UID, &compiledBudget{from, policy})
	return policy
}

// covering returns the budgets that may cover the pod, sorted by name, so that all processes ask them in the same order. Which of them do shows only
// when they and their workloads are read.
func (p *policies) covering(pubs *v1beta1.PodUnavailableBudgetList, pod *corev1.Pod) []candidate {
	var found []candidate
	for i := range pubs.Items {
		pub := &pubs.Items[i]
		policy := p.of(pub)
		if policy == nil || pub.DeletionTimestamp != nil {
			continue // it protects nothing; the controller reports errors in the budget's conditions
		}
		if policy.Target != nil || policy.Selector.Matches(labels.Set(pod.Labels)) {
			found = append(found, candidate{client.ObjectKeyFromObject(pub), policy.Target, pub.Status.UnavailableAllowed})
		}
	}
	slices.SortFunc(found, func(a, b candidate) int { return strings.Compare(a.name.Name, b.name.Name) })
	return found
}
