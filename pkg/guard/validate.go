package guard

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"

	"github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/budget/census"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/endpoint"
)

// budgetValidator validates PodUnavailableBudgets.
type budgetValidator struct {
	// budgets are those that the store has.
	budgets *registry
	// policies are compiled budgets: to compile all budgets of a namespace would take longer than the API server waits if several clients create budgets.
	policies *policies
	// census counts the pods that a budget would cover.
	census *census.Census
	// looks has an item for each count that is under way. Nil lets none begin.
	looks chan struct{}
}

func (v *budgetValidator) reviews() endpoint.Validator[*v1beta1.PodUnavailableBudget] {
	return endpoint.Validator[*v1beta1.PodUnavailableBudget]{Kind: v1beta1.Kind.GroupKind(), Validate: v.validate, Same: func(old, pub *v1beta1.PodUnavailableBudget) bool {
		return equality.Semantic.DeepEqual(old.Spec, pub.Spec) && equality.Semantic.DeepEqual(old.Annotations, pub.Annotations) && !growsTooLarge(old, pub)
	}}
}

// maxSize is how many bytes of JSON the metadata and the spec of a budget may have, without managedFields. Whoever asks about a protected pod reads all
// budgets of its namespace, and so does each new budget of the namespace. An API server accepts a megabyte.
const maxSize = 32 << 10

// sizeOf leaves out what API servers and Berth write.
func sizeOf(pub *v1beta1.PodUnavailableBudget) int {
	own := v1beta1.PodUnavailableBudget{ObjectMeta: pub.ObjectMeta, Spec: pub.Spec}
	own.ManagedFields = nil
	text, _ := json.Marshal(&own) // it came as JSON, so that does not fail
	return len(text)
}

// growsTooLarge is true for a new budget that is too large, for which old is nil, and for one that was changed to be larger than before.
func growsTooLarge(old, pub *v1beta1.PodUnavailableBudget) bool {
	size := sizeOf(pub)
	return size > maxSize && (old == nil || size > sizeOf(old))
}

// The controller compares each change of a pod with all budgets of the namespace, one change after the other for all tenants. The validator compares a
// selector with every other one while a client waits.
const (
	// maxSelector is how many keys and values a selector may have, and maxRequirements how many labels and expressions.
	maxSelector, maxRequirements = 200, 20
	// maxBudgets is how many budgets a namespace may have. Those that were there before count, and stay.
	maxBudgets = 500
)

func (v *budgetValidator) validate(ctx context.Context, pub, old *v1beta1.PodUnavailableBudget) ([]string, field.ErrorList, error) {
	if growsTooLarge(old, pub) {
		return nil, nil, apierrors.NewForbidden(v1beta1.Resource.GroupResource(), pub.Name,
			fmt.Errorf("its metadata and spec have %d bytes, and at most %d are allowed: remove annotations or labels, or select by fewer values", sizeOf(pub), maxSize))
	}
	refused, coversSame := budget.Refuse(pub), false
	if old != nil {
		refused = budget.RefuseChange(old, pub)
		coversSame = equality.Semantic.DeepEqual(old.Spec.Selector, pub.Spec.Selector) && equality.Semantic.DeepEqual(old.Spec.TargetReference, pub.Spec.TargetReference)
	}
	policy, errs := budget.Compile(pub)
	errs = append(errs, tooLarge("ignoredPodSelector", pub.Spec.IgnoredPodSelector)...) // its keys are written into an annotation of each pod
	if !coversSame {
		errs = append(errs, tooLarge("selector", pub.Spec.Selector)...)
	}
	if errs = append(errs, refused...); len(errs) > 0 {
		return nil, errs, nil
	}
	if !coversSame {
		if errs, err := v.compare(ctx, pub, policy); err != nil || len(errs) > 0 {
			return policy.Warnings, errs, err
		}
	}
	if old != nil && equality.Semantic.DeepEqual(old.Spec, pub.Spec) {
		return policy.Warnings, nil, nil
	}
	return append(policy.Warnings, v.look(ctx, pub, policy)...), nil, nil
}

// compare refuses a budget that overlaps with another one, or is one too many.
func (v *budgetValidator) compare(ctx context.Context, pub *v1beta1.PodUnavailableBudget, policy *budget.Policy) (field.ErrorList, error) {
	ctx, cancel := context.WithTimeout(ctx, longestComparison)
	defer cancel()
	others, err := v.budgets.ask(ctx, pub.Namespace).wait(ctx)
	if err != nil && ctx.Err() == nil {
		if after, passing := passes(err); passing {
			return nil, apierrors.NewTooManyRequests(err.Error(), int(after/time.Second))
		}
		return nil, apierrors.NewInternalError(err)
	}
	if err == nil && len(others.Items) >= maxBudgets {
		return nil, apierrors.NewForbidden(v1beta1.Resource.GroupResource(), pub.Name,
			fmt.Errorf("namespace %s has %d PodUnavailableBudgets, and at most %d are allowed: let a budget cover more pods, or delete some", pub.Namespace, len(others.Items), maxBudgets))
	}
	for i := 0; ctx.Err() == nil && i < len(others.Items); i++ {
		other := &others.Items[i]
		if other.Name == pub.Name || other.DeletionTimestamp != nil {
			continue
		}
		theirs := v.policies.of(other)
		if theirs == nil {
			continue // it protects nothing
		}
		if path, clash := policy.Clashes(theirs); clash {
			return field.ErrorList{field.Forbidden(path,
				fmt.Sprintf("overlaps with PodUnavailableBudget %q, and no pod may have two such budgets: select by different values of one label, or change that budget", other.Name))}, nil
		}
	}
	if ctx.Err() != nil {
		return nil, apierrors.NewTooManyRequests(fmt.Sprintf("the other budgets of namespace %s could not be compared within %s; try again", pub.Namespace, longestComparison), 1)
	}
	return nil, nil
}

const (
	// longestComparison and longestLook together leave the API server time for the answer: its timeout for the validator is 5 s.
	longestComparison, longestLook = 3 * time.Second, time.Second
	// mostLooks bounds what tenants can make this process read at once.
	mostLooks = 2
)

// look returns warnings about the pods that the budget would cover now. They may be from the API server's memory, for nothing is decided by them. If they
// cannot be counted in time, only the status of the budget tells.
func (v *budgetValidator) look(ctx context.Context, pub *v1beta1.PodUnavailableBudget, policy *budget.Policy) []string {
	select {
	case v.looks <- struct{}{}:
		defer func() { <-v.looks }()
	default:
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, longestLook)
	defer cancel()
	count, err := v.census.Take(ctx, pub, policy, fromMemory)
	if apierrors.IsForbidden(err) && policy.Target != nil {
		return []string{"spec.targetRef: Berth may not read the workload, and protects no pod of it until it may: " + err.Error()}
	}
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Could not count the pods of a budget to warn about them", "budget", klog.KObj(pub), "error", err)
		return nil
	}
	return policy.WarningsAt(count.Facts)
}

// tooLarge refuses a selector with more than maxRequirements, or more than maxSelector keys and values. Nil has none.
func tooLarge(name string, selector *metav1.LabelSelector) field.ErrorList {
	if selector == nil {
		return nil
	}
	requirements, size := len(selector.MatchLabels)+len(selector.MatchExpressions), 2*len(selector.MatchLabels)
	for i := range selector.MatchExpressions {
		size += 1 + len(selector.MatchExpressions[i].Values)
	}
	if size <= maxSelector && requirements <= maxRequirements {
		return nil
	}
	return field.ErrorList{field.Forbidden(field.NewPath("spec", name),
		fmt.Sprintf("has %d requirements with %d keys and values, and at most %d and %d are allowed: give the pods one label of their own and select by it",
			requirements, size, maxRequirements, maxSelector))}
}
