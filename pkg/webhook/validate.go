package webhook

import (
	"bytes"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-project/berth/pkg/autoscaler"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	unitedv1beta1 "github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// knownFacts is what validation knows besides the spread itself. The zero value knows nothing, and causes no warnings.
type knownFacts struct {
	// Spreads of the spread's namespace. They may include the spread.
	Spreads []v1beta1.WorkloadSpread
	// Target is the workload.
	Target targetFacts
	// Nodes of the cluster. Only names and labels are read. Nil if they are not known.
	Nodes []*corev1.Node
	// Autoscaler of the nodes. Empty if there is none, or if that is not known.
	Autoscaler autoscaler.Name
}

// targetFacts is what was read of a workload.
type targetFacts struct {
	// Problem says that the workload does not exist, or why it could not be read. Empty if it was read, or if nobody tried.
	Problem string
	// United is the name of the UnitedDeployment whose child the workload is. Empty if it is none, or if that is not known.
	United string
	// Replicas are nil if they are not known.
	Replicas *int32
	// MaxUnavailable is that of workload.MaxUnavailable. Nil if it is not known.
	MaxUnavailable *int32
	// Read is true if the workload was read. If Template is nil then, the workload has no pod template.
	Read bool
	// Template of its pods. Nil if none was read. It includes the volumes that the workload's controller adds.
	Template *corev1.PodTemplateSpec
	// Selector of its pods. Nil if none was read.
	Selector labels.Selector
}

// validateSpread returns errors and warnings about a spread that is about to be created (old is nil) or to replace old. Errors and warnings name the
// path of the field. It needs no API server.
func validateSpread(spread, old *v1beta1.WorkloadSpread, known knownFacts) (warnings []string, errs field.ErrorList) {
	spec := field.NewPath("spec")
	policy, errs := subset.Compile(spread, spec)
	if policy != nil {
		warnings = slices.Clone(policy.Warnings)
		if known.Target.Replicas != nil {
			warnings = append(warnings, policy.WarningsAt(*known.Target.Replicas, known.Target.MaxUnavailable, spec)...)
		}
		if known.Nodes != nil {
			warnings = append(warnings, policy.WarningsAmong(known.Nodes, spec)...)
		}
		if known.Autoscaler != "" {
			warnings = append(warnings, policy.WarningsBeside(string(known.Autoscaler), spec)...)
		}
	}
	patchWarnings, patchErrs := validatePatches(spread, old, policy, &known, spec.Child("subsets"))
	targetWarnings, targetErrs := validateTarget(spread, old, &known, spec.Child("targetRef"))
	return slices.Concat(warnings, patchWarnings, targetWarnings), slices.Concat(errs, patchErrs, targetErrs)
}

// validateTarget checks what depends on the cluster.
func validateTarget(spread, old *v1beta1.WorkloadSpread, known *knownFacts, path *field.Path) (warnings []string, errs field.ErrorList) {
	if other := conflictingSpread(spread, known.Spreads); other != nil {
		switch {
		case workload.Wins(other, spread):
			// It may be a step to give a spread another name: Helm and Flux create the new object before they delete the old one.
			warnings = append(warnings, fmt.Sprintf("%s: has no effect as long as the older WorkloadSpread %q divides %s", path, other.Name, workloadName(spread)))
		case old == nil: // made in the same second, and first by its name
			errs = append(errs, field.Forbidden(path,
				fmt.Sprintf("WorkloadSpread %q already divides %s, and a workload can have only one: change or delete that one", other.Name, workloadName(spread))))
		}
	}
	if why := dividedByUnited(spread, &known.Target); why != "" {
		if old == nil {
			errs = append(errs, field.Forbidden(path, why))
		} else {
			warnings = append(warnings, fmt.Sprintf("%s: %s", path, why)) // the target cannot be changed, so this update did not cause it
		}
	}
	problem, untried := known.Target.Problem, ""
	if hasPatch(spread) {
		untried = ", so the patches were not tried on its pods"
		if known.Target.Read && known.Target.Template == nil {
			problem = workloadName(spread) + " has no pod template at spec.template"
		}
	}
	if problem != "" {
		warnings = append(warnings, fmt.Sprintf("%s: %s%s", path, problem, untried))
	}
	return warnings, errs
}

// dividedByUnited says why a spread must not divide a UnitedDeployment or one of its children. It is empty for other workloads.
func dividedByUnited(spread *v1beta1.WorkloadSpread, target *targetFacts) string {
	const instead = "put the numbers into spec.topology.subsets of the UnitedDeployment, and delete the spread"
	switch {
	case kindOfTarget(spread) == unitedv1beta1.Kind.GroupKind():
		return "a UnitedDeployment divides its pods itself; " + instead
	case target.United != "":
		return fmt.Sprintf("%s is a child of UnitedDeployment %s, which divides its pods over subsets already; %s", workloadName(spread), target.United, instead)
	default:
		return ""
	}
}

// hasPatch is true if a subset has a patch, valid or not.
func hasPatch(spread *v1beta1.WorkloadSpread) bool {
	return slices.ContainsFunc(spread.Spec.Subsets, func(s v1beta1.Subset) bool { return s.Patch != nil && len(s.Patch.Raw) > 0 })
}

// validatePatches tries the patches on a pod of the workload. The policy is nil if the spec is invalid; valid patches are tried in any case. An error
// in an unchanged patch is only a warning: the workload has changed since, and that must not keep anybody from changing something else.
func validatePatches(spread, old *v1beta1.WorkloadSpread, policy *subset.Policy, known *knownFacts, path *field.Path) (warnings []string, errs field.ErrorList) {
	for i := range spread.Spec.Subsets {
		spec, at := &spread.Spec.Subsets[i], path.Index(i)
		patch, _ := subset.CompilePatch(spec.Patch, at.Child("patch")) // subset.Compile reports the errors
		if patch == nil {
			continue
		}
		found := breaksSelector(patch, known.Target.Selector, workloadName(spread), at)
		if known.Target.Template != nil {
			pod, patched, tried := tryPatch(patch, known.Target.Template, spread.Namespace, at.Child("patch"))
			found = append(found, tried...)
			if policy != nil && patched != nil && policy.Subsets[i].HasNodeFor(pod, known.Nodes) && !policy.Subsets[i].HasNodeFor(patched, known.Nodes) {
				warnings = append(warnings, fmt.Sprintf("%s: its nodeSelector or affinity leaves no node of the subset for the pods of %s now",
					at.Child("patch", "spec"), workloadName(spread)))
			}
		}
		if old != nil && samePatch(old, spec) {
			for _, err := range found {
				warnings = append(warnings, err.Error())
			}
			continue
		}
		errs = append(errs, found...)
	}
	return warnings, errs
}

// breaksSelector refuses labels in a patch by which the workload would lose its pods.
func breaksSelector(patch *subset.Patch, selector labels.Selector, workload string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, key := range patch.Breaks(selector) {
		errs = append(errs, field.Forbidden(path.Child("patch", "metadata", "labels").Key(key),
			workload+" selects its pods by this label; it would release the patched pods and create others without end; remove the label from the patch"))
	}
	return errs
}

// samePatch is true if the spread has a subset of the same name with the same patch.
func samePatch(old *v1beta1.WorkloadSpread, spec *v1beta1.Subset) bool {
	return slices.ContainsFunc(old.Spec.Subsets, func(before v1beta1.Subset) bool {
		return before.Name == spec.Name && before.Patch != nil && spec.Patch != nil && bytes.Equal(before.Patch.Raw, spec.Patch.Raw)
	})
}

// conflictingSpread is the spread that divides the same workload instead of this one, or nil. One that a rule has made gives way.
func conflictingSpread(spread *v1beta1.WorkloadSpread, all []v1beta1.WorkloadSpread) *v1beta1.WorkloadSpread {
	var winner *v1beta1.WorkloadSpread
	for i := range all {
		other := &all[i]
		if other.Name == spread.Name || !sameTarget(other, spread) || workload.MadeByRule(other) && !workload.MadeByRule(spread) {
			continue
		}
		if winner == nil || workload.Wins(other, winner) {
			winner = other
		}
	}
	return winner
}

// sameTarget is true if both spreads, of one namespace, name the same workload, in any version.
func sameTarget(a, b *v1beta1.WorkloadSpread) bool {
	return kindOfTarget(a) == kindOfTarget(b) && a.Spec.TargetReference.Name == b.Spec.TargetReference.Name
}

func kindOfTarget(spread *v1beta1.WorkloadSpread) schema.GroupKind {
	ref := spread.Spec.TargetReference
	return schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind).GroupKind()
}

func workloadName(spread *v1beta1.WorkloadSpread) string {
	return spread.Spec.TargetReference.Kind + " " + spread.Spec.TargetReference.Name
}
