package subset

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

// CompatibilityOf is what the annotation of a spread asks for or, without the annotation, what the installation asks for, as the controller wrote it to
// the status.
func CompatibilityOf(spread *v1beta1.WorkloadSpread) v1beta1.Compatibility {
	asked, found := spread.Annotations[v1beta1.CompatibilityAnnotation]
	if !found {
		asked = string(spread.Status.Compatibility)
	}
	if asked == "" {
		return v1beta1.NoCompatibility
	}
	return v1beta1.Compatibility(asked)
}

// In returns the spread as an installation with this compatibility sees it. The status may not say it yet.
func In(installation v1beta1.Compatibility, spread *v1beta1.WorkloadSpread) *v1beta1.WorkloadSpread {
	if spread.Status.Compatibility == installation {
		return spread
	}
	seen := *spread
	seen.Status.Compatibility = installation
	return &seen
}

// SamePolicy is true if both are the same object, and compile to the same policy.
func SamePolicy(a, b *v1beta1.WorkloadSpread) bool {
	return a.UID == b.UID && a.Generation == b.Generation && CompatibilityOf(a) == CompatibilityOf(b)
}

func validateCompatibility(spread *v1beta1.WorkloadSpread) field.ErrorList {
	asked, found := spread.Annotations[v1beta1.CompatibilityAnnotation]
	if !found {
		return nil
	}
	return oneOf(field.NewPath("metadata", "annotations").Key(v1beta1.CompatibilityAnnotation), v1beta1.Compatibility(asked), v1beta1.CompatibleWithKruise, v1beta1.NoCompatibility)
}
