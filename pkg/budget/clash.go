package budget

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// Clashes is true if two budgets of one namespace cover the same pods: they name the same workload, or their selectors overlap. It does not compare a
// workload with a selector. If a pod has a budget of each kind, both must allow an operation. The path is the field to blame.
func (p *Policy) Clashes(other *Policy) (*field.Path, bool) {
	spec := field.NewPath("spec")
	if p.Target != nil || other.Target != nil {
		return spec.Child("targetRef"), p.Target != nil && other.Target != nil && p.Target.Name == other.Target.Name && KindOf(p.Target) == KindOf(other.Target)
	}
	return spec.Child("selector"), Overlaps(p.Selector, other.Selector)
}

// KindOf is the kind of a workload, without its version.
func KindOf(ref *v1beta1.TargetReference) schema.GroupKind {
	return schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind).GroupKind()
}
