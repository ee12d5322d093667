package endpoint

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// Validator reviews the objects of a kind for admission.WithValidator. An update always passes if the object is being deleted, or if the update changes
// nothing that is validated: rules that are newer than the object must not keep anybody from labelling it, or from removing its last finalizer.
type Validator[T client.Object] struct {
	// Same is true if an update changes nothing that is validated.
	Same func(old, object T) bool
	// Validate reviews a new object if old is nil, and otherwise a changed one.
	Validate func(ctx context.Context, object, old T) (admission.Warnings, error)
}

// ValidateCreate validates a new object.
func (v Validator[T]) ValidateCreate(ctx context.Context, object T) (admission.Warnings, error) {
	var none T
	return v.Validate(ctx, object, none)
}

// ValidateUpdate validates a changed object.
func (v Validator[T]) ValidateUpdate(ctx context.Context, old, object T) (admission.Warnings, error) {
	if object.GetDeletionTimestamp() != nil || v.Same(old, object) {
		return nil, nil
	}
	return v.Validate(ctx, object, old)
}

// ValidateDelete allows every deletion. The webhook configurations do not make the API server call it.
func (v Validator[T]) ValidateDelete(context.Context, T) (admission.Warnings, error) { return nil, nil }
