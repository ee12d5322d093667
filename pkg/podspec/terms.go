package podspec

import (
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// CompileTerm turns a term into a selector of nodes, or returns every error in it.
func CompileTerm(term *corev1.NodeSelectorTerm, path *field.Path) (*nodeaffinity.NodeSelector, field.ErrorList) {
	errs := ValidateTerm(term, path)
	selector, err := nodeaffinity.NewNodeSelector(&corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{*term}})
	if err != nil && len(errs) == 0 {
		// The parser names a selector with a list of terms. A subset has one term.
		errs = append(errs, field.Invalid(path, field.OmitValueType{}, strings.ReplaceAll(err.Error(), "nodeSelectorTerms[0].", "")))
	}
	return selector, errs
}

// ValidateTerm refuses what the API server refuses in a pod's node affinity. The parser accepts some of it, or reports
// it with another path.
func ValidateTerm(term *corev1.NodeSelectorTerm, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range term.MatchExpressions {
		errs = append(errs, validateLabelRequirement(&term.MatchExpressions[i], path.Child("matchExpressions").Index(i))...)
	}
	for i := range term.MatchFields {
		errs = append(errs, validateFieldRequirement(&term.MatchFields[i], path.Child("matchFields").Index(i))...)
	}
	return errs
}

func validateLabelRequirement(r *corev1.NodeSelectorRequirement, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, message := range content.IsLabelKey(r.Key) {
		errs = append(errs, field.Invalid(path.Child("key"), r.Key, message))
	}
	valuesPath := path.Child("values")
	switch r.Operator {
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
		if len(r.Values) == 0 {
			errs = append(errs, field.Required(valuesPath, "must be specified when operator is In or NotIn"))
		}
	case corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist:
		if len(r.Values) > 0 {
			errs = append(errs, field.Forbidden(valuesPath, "must be empty when operator is Exists or DoesNotExist"))
		}
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		if len(r.Values) != 1 {
			errs = append(errs, field.Required(valuesPath, "must be one integer when operator is Gt or Lt"))
		} else if _, err := strconv.ParseInt(r.Values[0], 10, 64); err != nil {
			errs = append(errs, field.Invalid(valuesPath.Index(0), r.Values[0], "must be an integer when operator is Gt or Lt"))
		}
	default:
		errs = append(errs, field.NotSupported(path.Child("operator"), r.Operator, []corev1.NodeSelectorOperator{corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn,
			corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist, corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt}))
	}
	for i, value := range r.Values {
		for _, message := range content.IsLabelValue(value) {
			errs = append(errs, field.Invalid(valuesPath.Index(i), value, message))
		}
	}
	return errs
}

func validateFieldRequirement(r *corev1.NodeSelectorRequirement, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if r.Key != metav1.ObjectNameField {
		errs = append(errs, field.NotSupported(path.Child("key"), r.Key, []string{metav1.ObjectNameField}))
	}
	switch r.Operator {
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
		if len(r.Values) != 1 {
			errs = append(errs, field.Required(path.Child("values"), "must be one name of a node"))
		}
	default:
		errs = append(errs, field.NotSupported(path.Child("operator"), r.Operator,
			[]corev1.NodeSelectorOperator{corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn}))
	}
	for i, value := range r.Values {
		for _, message := range content.IsDNS1123Subdomain(value) {
			errs = append(errs, field.Invalid(path.Child("values").Index(i), value, message))
		}
	}
	return errs
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
			for _, message := range content.IsLabelKey(t.Key) {
				errs = append(errs, field.Invalid(p.Child("key"), t.Key, message))
			}
		}
		switch t.Operator {
		case "", corev1.TolerationOpEqual:
			for _, message := range content.IsLabelValue(t.Value) {
				errs = append(errs, field.Invalid(p.Child("value"), t.Value, message))
			}
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
