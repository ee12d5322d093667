package budget

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// Refuse returns the errors for which the webhook refuses a new budget although Compile accepts it. Such a budget is most likely not what its author
// meant, and OpenKruise refuses it too. Existing budgets with these errors stay in use, so that a new rule takes protection from nobody.
func Refuse(pub *v1beta1.PodUnavailableBudget) field.ErrorList {
	return append(refuseSubject(&pub.Spec), (&Policy{}).compileAnnotations(pub)...)
}

func refuseSubject(spec *v1beta1.PodUnavailableBudgetSpec) field.ErrorList {
	path := field.NewPath("spec", "selector")
	switch {
	case spec.Selector == nil:
		return nil // Compile knows whether there is a target
	case spec.TargetReference != nil:
		return field.ErrorList{field.Forbidden(path, "must not be given together with targetRef; leave one of the two out")}
	case len(spec.Selector.MatchLabels) == 0 && len(spec.Selector.MatchExpressions) == 0:
		return field.ErrorList{field.Required(path, "must not be empty, which would mean every pod of the namespace; select by a label")}
	default:
		return nil
	}
}

// RefuseChange returns the errors for which the webhook refuses a change of a budget: errors of Refuse that are new, and a change of selector or targetRef.
// These two may change if Compile does not accept the existing budget, or if Refuse would refuse its selector.
func RefuseChange(before, after *v1beta1.PodUnavailableBudget) field.ErrorList {
	known := Refuse(before)
	errs := slices.DeleteFunc(Refuse(after), func(e *field.Error) bool {
		return slices.ContainsFunc(known, func(k *field.Error) bool { return k.Error() == e.Error() })
	})
	if _, unusable := Compile(before); len(unusable) > 0 || len(refuseSubject(&before.Spec)) > 0 {
		return errs
	}
	const fixed = "cannot be changed: delete the budget and create it again"
	spec := field.NewPath("spec")
	if !equality.Semantic.DeepEqual(before.Spec.Selector, after.Spec.Selector) {
		errs = append(errs, field.Forbidden(spec.Child("selector"), fixed))
	}
	if !equality.Semantic.DeepEqual(before.Spec.TargetReference, after.Spec.TargetReference) {
		errs = append(errs, field.Forbidden(spec.Child("targetRef"), fixed))
	}
	return errs
}
