package webhook

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// Known is what a spread is judged by beside itself. The zero value knows nothing, and nothing is said about it.
type Known struct {
	// Spreads are those of the spread's namespace. It may be among them.
	Spreads []v1alpha1.WorkloadSpread
	// TargetMissing is true if the workload is known not to exist.
	TargetMissing bool
}

// ValidateSpread says what is wrong with a spread that is about to be created (old is nil) or to take the place of old, and what is worth a
// warning. Errors and warnings name the path of the field. It needs no API server.
func ValidateSpread(spread, old *v1alpha1.WorkloadSpread, known Known) (warnings []string, errs field.ErrorList) {
	spec := field.NewPath("spec")
	policy, errs := subset.Compile(&spread.Spec, spec)
	if policy != nil {
		warnings = slices.Clone(policy.Warnings)
	}

	target := spec.Child("targetRef")
	if rival := rivalOf(spread, known.Spreads); rival != nil {
		switch {
		case old == nil:
			errs = append(errs, field.Forbidden(target,
				fmt.Sprintf("WorkloadSpread %q already divides %s, and a workload has one spread: change or delete that one", rival.Name, workloadName(spread))))
		case workload.Wins(rival, spread):
			// The target cannot be changed, so this update is not what brought two spreads together, and it may be on the way out of it.
			warnings = append(warnings, fmt.Sprintf("%s: without effect, because the older WorkloadSpread %q divides %s", target, rival.Name, workloadName(spread)))
		}
	}
	if known.TargetMissing {
		warnings = append(warnings, fmt.Sprintf("%s: there is no %s yet, and the spread waits for it", target, workloadName(spread)))
	}
	return warnings, errs
}

// rivalOf is the spread with the same workload that wins over all others but the spread itself, or nil.
func rivalOf(spread *v1alpha1.WorkloadSpread, all []v1alpha1.WorkloadSpread) *v1alpha1.WorkloadSpread {
	var rival *v1alpha1.WorkloadSpread
	for i := range all {
		other := &all[i]
		if other.Name == spread.Name || !sameTarget(other, spread) {
			continue
		}
		if rival == nil || workload.Wins(other, rival) {
			rival = other
		}
	}
	return rival
}

// sameTarget is true if both spreads, of one namespace, name the same workload, in whatever version.
func sameTarget(a, b *v1alpha1.WorkloadSpread) bool {
	return kindOfTarget(a) == kindOfTarget(b) && a.Spec.TargetReference.Name == b.Spec.TargetReference.Name
}

func kindOfTarget(spread *v1alpha1.WorkloadSpread) schema.GroupKind {
	ref := spread.Spec.TargetReference
	return schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind).GroupKind()
}

func workloadName(spread *v1alpha1.WorkloadSpread) string {
	return spread.Spec.TargetReference.Kind + " " + spread.Spec.TargetReference.Name
}
