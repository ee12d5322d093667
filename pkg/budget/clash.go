package budget

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// Clashes is true if two budgets of one namespace cover the same pods: they name the same workload, or their selectors overlap. It does not compare a
// workload with a selector. If a pod has a budget of each kind, both must allow an operation. policy is pub, compiled. The path is the field to blame.
func Clashes(pub *v1beta1.PodUnavailableBudget, policy *Policy, other *v1beta1.PodUnavailableBudget) (*field.Path, bool) {
	spec := field.NewPath("spec")
	mine, theirs := pub.Spec.TargetReference, other.Spec.TargetReference
	if mine != nil || theirs != nil {
		return spec.Child("targetRef"), mine != nil && theirs != nil && mine.Name == theirs.Name && KindOf(mine) == KindOf(theirs)
	}
	selector, err := metav1.LabelSelectorAsSelector(other.Spec.Selector)
	return spec.Child("selector"), err == nil && Overlaps(policy.Selector, selector)
}

// KindOf is the kind of a workload, without its version.
func KindOf(ref *v1beta1.TargetReference) schema.GroupKind {
	return schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind).GroupKind()
}
