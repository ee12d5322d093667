package subset

import (
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

// CompatibilityOf is what the annotation of a spread asks for or, without the annotation, what the installation asks
// for, as the controller wrote it to the status.
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
	return a.UID == b.UID && a.Generation == b.Generation && CompatibilityOf(a) == CompatibilityOf(b) && slices.Equal(ReplicaPaths(a), ReplicaPaths(b))
}

// ReplicaPaths are the paths at which the replicas of a spread's workload are read: its own or, if it has none and is
// CompatibleWithKruise, those that OpenKruise's list has for the kind, as the controller wrote them to the status. Nil
// means the place where the kind has its replicas.
func ReplicaPaths(spread *v1beta1.WorkloadSpread) []string {
	if filter := spread.Spec.TargetFilter; filter != nil && len(filter.ReplicasPathList) > 0 {
		return filter.ReplicasPathList
	}
	if CompatibilityOf(spread) == v1beta1.CompatibleWithKruise {
		return spread.Status.ReplicasPathList
	}
	return nil
}

// SchedulerOf is the scheduler for a pod that the spread divides and that names this scheduler. It is empty if the
// spread leaves such pods alone. A spread that is CompatibleWithKruise divides the pods of every scheduler at
// admission, if it binds early.
func (p *Policy) SchedulerOf(named string) string {
	switch {
	case !ChoseOther(named):
		return v1beta1.SchedulerName
	case p.Kruise && p.BindsEarly():
		return named
	default:
		return ""
	}
}

// ChoseOther is true for a pod that names another scheduler than Berth's and the default one.
func ChoseOther(scheduler string) bool {
	return scheduler != "" && scheduler != corev1.DefaultSchedulerName && scheduler != v1beta1.SchedulerName
}

// knownRecord is what OpenKruise writes to a pod at admission: the record with an identifier of its own, because the
// pod has no UID yet.
func (p *Policy) knownRecord(admitted *v1beta1.AdmittedSubset) (string, error) {
	record, err := json.Marshal(v1beta1.MatchedSubset{Name: admitted.Name, Subset: admitted.Subset, UID: admitted.Pick})
	return string(record), err
}

// prefer adds the preferred terms of a subset to a pod, after its own. A pod that admission sees again has them
// already.
func (s *Subset) prefer(pod map[string]any) error {
	if len(s.preferredTerms) == 0 {
		return nil
	}
	affinity := makeChild(makeChild(makeChild(pod, "spec"), "affinity"), "nodeAffinity")
	return appendMissing(affinity, "preferredDuringSchedulingIgnoredDuringExecution", s.preferredTerms,
		func(a, b *corev1.PreferredSchedulingTerm) bool { return equality.Semantic.DeepEqual(a, b) })
}

func validateCompatibility(spread *v1beta1.WorkloadSpread) field.ErrorList {
	asked, found := spread.Annotations[v1beta1.CompatibilityAnnotation]
	if !found {
		return nil
	}
	return OneOf(field.NewPath("metadata", "annotations").Key(v1beta1.CompatibilityAnnotation), v1beta1.Compatibility(asked), v1beta1.CompatibleWithKruise, v1beta1.NoCompatibility)
}
