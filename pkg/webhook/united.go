package webhook

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/berth-project/berth/pkg/conversion"
	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/endpoint"
	"github.com/berth-project/berth/pkg/united"
)

// unitedReviews answers reviews of UnitedDeployments. If they are ignored, it does not even read them: they may have fields that Berth does not know.
func unitedReviews(scheme *runtime.Scheme, kinds kindMapper, ignored bool) *admission.Webhook {
	if ignored {
		return &admission.Webhook{Handler: admission.HandlerFunc(func(context.Context, admission.Request) admission.Response { return admission.Allowed("") })}
	}
	return conversion.Admission(v1beta1.GroupVersion, admission.WithValidator(scheme, (&unitedValidator{kinds: kinds}).reviews()))
}

// kindMapper is the part of a meta.RESTMapper that tells whether the API server serves a kind.
type kindMapper interface {
	RESTMapping(kind schema.GroupKind, versions ...string) (*meta.RESTMapping, error)
}

// unitedValidator reviews UnitedDeployments. It reads no objects, so that it works whether UnitedDeployments are Berth's or not.
type unitedValidator struct {
	kinds kindMapper
}

func (v *unitedValidator) reviews() endpoint.Validator[*v1beta1.UnitedDeployment] {
	return endpoint.Validator[*v1beta1.UnitedDeployment]{Validate: v.validate, Same: func(old, ud *v1beta1.UnitedDeployment) bool {
		return equality.Semantic.DeepEqual(old.Spec, ud.Spec)
	}}
}

func (v *unitedValidator) validate(_ context.Context, ud, old *v1beta1.UnitedDeployment) (admission.Warnings, error) {
	spec := field.NewPath("spec")
	policy, errs := united.Compile(ud, spec)
	var warnings []string
	if policy != nil {
		warnings = slices.Clone(policy.Warnings)
	}
	if old == nil {
		errs = append(errs, united.ValidateCreate(ud, spec)...)
	} else {
		errs = append(errs, united.ValidateUpdate(ud, old, spec)...)
	}
	unserved, unknown := v.validateKind(ud, old, spec.Child("template"))
	errs, warnings = append(errs, unserved...), append(warnings, unknown...)
	if len(errs) > 0 {
		return warnings, apierrors.NewInvalid(v1beta1.Kind.GroupKind(), ud.Name, errs)
	}
	return warnings, nil
}

// validateKind refuses a kind that the API server does not serve. If the template had that kind before, it is only a warning: the kind has gone since, and
// that must not keep anybody from changing something else.
func (v *unitedValidator) validateKind(ud, old *v1beta1.UnitedDeployment, path *field.Path) (errs field.ErrorList, warnings []string) {
	template, err := united.TemplateOf(&ud.Spec.Template)
	if err != nil || template == nil {
		return nil, nil // united.Compile reports the error
	}
	_, err = v.kinds.RESTMapping(template.Kind)
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
