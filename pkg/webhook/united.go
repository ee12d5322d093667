package webhook

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/endpoint"
	"github.com/berth-project/berth/pkg/united"
)

// unitedReviews answers reviews of UnitedDeployments. If they are ignored, it does not even read them: they may have fields that Berth does not know.
func unitedReviews(scheme *runtime.Scheme, kinds kindMapper, ignored bool) *admission.Webhook {
	if ignored {
		return &admission.Webhook{Handler: admission.HandlerFunc(func(context.Context, admission.Request) admission.Response { return admission.Allowed("") })}
	}
	return endpoint.AdmissionInHub(v1beta1.GroupVersion, admission.WithValidator(scheme, endpoint.Validator[*v1beta1.UnitedDeployment]{
		Kind: v1beta1.Kind.GroupKind(),
		Same: func(old, ud *v1beta1.UnitedDeployment) bool { return equality.Semantic.DeepEqual(old.Spec, ud.Spec) },
		Validate: func(_ context.Context, ud, old *v1beta1.UnitedDeployment) ([]string, field.ErrorList, error) {
			warnings, errs := validateUnited(kinds, ud, old)
			return warnings, errs, nil
		},
	}))
}

// kindMapper is the part of a meta.RESTMapper that tells whether the API server serves a kind.
type kindMapper interface {
	RESTMapping(kind schema.GroupKind, versions ...string) (*meta.RESTMapping, error)
}

// validateUnited reads no objects, so that it works whether UnitedDeployments are Berth's or not.
func validateUnited(kinds kindMapper, ud, old *v1beta1.UnitedDeployment) (warnings []string, errs field.ErrorList) {
	spec := field.NewPath("spec")
	policy, errs := united.Compile(ud, spec)
	if policy != nil {
		warnings = slices.Clone(policy.Warnings)
	}
	if old == nil {
		errs = append(errs, united.ValidateCreate(ud, spec)...)
	} else {
		errs = append(errs, united.ValidateUpdate(ud, old, spec)...)
	}
	unserved, unknown := validateKind(kinds, ud, old, spec.Child("template"))
	return append(warnings, unknown...), append(errs, unserved...)
}

// validateKind refuses a kind that the API server does not serve. If the template had that kind before, it is only a warning: the kind has gone since, and
// that must not keep anybody from changing something else.
func validateKind(kinds kindMapper, ud, old *v1beta1.UnitedDeployment, path *field.Path) (errs field.ErrorList, warnings []string) {
	template, err := united.TemplateOf(&ud.Spec.Template)
	if err != nil || template == nil {
		return nil, nil // united.Compile reports the error
	}
	_, err = kinds.RESTMapping(template.Kind)
	switch {
	case err == nil:
		return nil, nil
	case !meta.IsNoMatchError(err):
		return nil, []string{fmt.Sprintf("%s: Berth cannot find out now whether the API server has the kind %s: %v", path, template.Kind, err)}
	}
	message := fmt.Sprintf("the API server has no kind %s in %s; install it, or use the template of another kind", template.Kind.Kind, template.Kind.Group)
	if old != nil {
		if before, err := united.TemplateOf(&old.Spec.Template); err == nil && before != nil && before.Kind == template.Kind {
			return nil, []string{fmt.Sprintf("%s: %s", path, message)}
		}
	}
	return field.ErrorList{field.Invalid(path, field.OmitValueType{}, message)}, nil
}
