package endpoint

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// Validator reviews the objects of a kind for admission.WithValidator. An update always passes if the object is being deleted, or if the update changes
// nothing that is validated: rules that are newer than the object must not keep anybody from labelling it, or from removing its last finalizer.
type Validator[T client.Object] struct {
	// Kind of the objects.
	Kind schema.GroupKind
	// Same is true if an update changes nothing that is validated.
	Same func(old, object T) bool
	// Validate reviews a new object if old is nil, and otherwise a changed one. It returns what is wrong with the object, or why it could not review it.
	Validate func(ctx context.Context, object, old T) (warnings []string, errs field.ErrorList, err error)
}

// ValidateCreate validates a new object.
func (v Validator[T]) ValidateCreate(ctx context.Context, object T) (admission.Warnings, error) {
	var none T
	return v.review(ctx, object, none)
}

// ValidateUpdate validates a changed object.
func (v Validator[T]) ValidateUpdate(ctx context.Context, old, object T) (admission.Warnings, error) {
	if object.GetDeletionTimestamp() != nil || v.Same(old, object) {
		return nil, nil
	}
	return v.review(ctx, object, old)
}

func (v Validator[T]) review(ctx context.Context, object, old T) (admission.Warnings, error) {
	warnings, errs, err := v.Validate(ctx, object, old)
	if err == nil && len(errs) > 0 {
		err = apierrors.NewInvalid(v.Kind, object.GetName(), errs)
	}
	return warnings, err
}

// ValidateDelete allows every deletion. The webhook configurations do not make the API server call it.
func (v Validator[T]) ValidateDelete(context.Context, T) (admission.Warnings, error) { return nil, nil }
