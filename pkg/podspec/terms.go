package podspec

import (
	"errors"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// CompileTerm turns a term into a selector of nodes, or returns every error in it. It refuses what the API server
// refuses in a pod's node affinity. The parser does most of that, and takes any field and any value of it.
func CompileTerm(term *corev1.NodeSelectorTerm, path *field.Path) (*nodeaffinity.NodeSelector, field.ErrorList) {
	var errs field.ErrorList
	selector, err := nodeaffinity.NewNodeSelector(&corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{*term}})
	var parsing utilerrors.Aggregate
	if errors.As(err, &parsing) {
		for _, err := range parsing.Errors() {
			var invalid *field.Error
			if !errors.As(err, &invalid) {
				invalid = field.InternalError(nil, err) // the parser makes none of these
			}
			invalid.Field = path.String() + strings.TrimPrefix(invalid.Field, "nodeSelectorTerms[0]") // its list of terms
			errs = append(errs, invalid)
		}
	}
	for i, r := range term.MatchFields {
		at := path.Child("matchFields").Index(i)
		if r.Key != metav1.ObjectNameField {
			errs = append(errs, field.NotSupported(at.Child("key"), r.Key, []string{metav1.ObjectNameField}))
		}
		for j, value := range r.Values {
			errs = append(errs, Invalid(at.Child("values").Index(j), value, content.IsDNS1123Subdomain(value))...)
		}
	}
	return selector, errs
}

// ValidateTolerations refuses what the API server refuses in a pod, and tolerations that can never match.
func ValidateTolerations(tolerations []corev1.Toleration, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, t := range tolerations {
		p := path.Index(i)
		if t.Key == "" && t.Operator != corev1.TolerationOpExists {
			errs = append(errs, field.Invalid(p.Child("operator"), t.Operator, "must be Exists when key is empty, which means every taint"))
		}
		if t.Key != "" {
			errs = append(errs, Invalid(p.Child("key"), t.Key, content.IsLabelKey(t.Key))...)
		}
		switch t.Operator {
		case "", corev1.TolerationOpEqual:
			errs = append(errs, Invalid(p.Child("value"), t.Value, content.IsLabelValue(t.Value))...)
		case corev1.TolerationOpExists:
			if t.Value != "" {
				errs = append(errs, field.Invalid(p.Child("value"), t.Value, "must be empty when operator is Exists"))
			}
		default:
			errs = append(errs, field.NotSupported(p.Child("operator"), t.Operator, []corev1.TolerationOperator{corev1.TolerationOpEqual, corev1.TolerationOpExists}))
		}
		switch t.Effect {
		case "", corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute:
		default:
			errs = append(errs, field.NotSupported(p.Child("effect"), t.Effect,
				[]corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute}))
		}
		if t.TolerationSeconds != nil && t.Effect != corev1.TaintEffectNoExecute {
			errs = append(errs, field.Invalid(p.Child("effect"), t.Effect, "must be NoExecute when tolerationSeconds is set"))
		}
	}
	return errs
}

// ValidateLabels refuses what the API server refuses as labels.
func ValidateLabels(values map[string]string, path *field.Path) (errs field.ErrorList) {
	for _, key := range slices.Sorted(maps.Keys(values)) {
		errs = append(errs, Invalid(path, key, content.IsLabelKey(key))...)
		errs = append(errs, Invalid(path.Key(key), values[key], content.IsLabelValue(values[key]))...)
	}
	return errs
}

// Invalid are the errors for a value of which several messages may say what is wrong with it.
func Invalid(path *field.Path, value string, messages []string) (errs field.ErrorList) {
	for _, message := range messages {
		errs = append(errs, field.Invalid(path, value, message))
	}
	return errs
}
