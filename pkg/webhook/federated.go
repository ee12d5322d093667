package webhook

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	"github.com/berth-project/berth/pkg/federation"
)

// federatedValidator reviews FederatedReplicaSets.
type federatedValidator struct {
	// members are the names of all clusters.
	members func(context.Context) ([]string, error)
}

var _ admission.Validator[*v1alpha1.FederatedReplicaSet] = &federatedValidator{}

// ValidateCreate validates a new FederatedReplicaSet.
func (v *federatedValidator) ValidateCreate(ctx context.Context, frs *v1alpha1.FederatedReplicaSet) (admission.Warnings, error) {
	return v.validate(ctx, frs, nil)
}

// ValidateUpdate validates a changed FederatedReplicaSet. As with spreads, an unchanged spec and an object that is being deleted always pass.
func (v *federatedValidator) ValidateUpdate(ctx context.Context, old, frs *v1alpha1.FederatedReplicaSet) (admission.Warnings, error) {
	if frs.DeletionTimestamp != nil || equality.Semantic.DeepEqual(old.Spec, frs.Spec) && old.Annotations[v1alpha1.PreferencesAnnotation] == frs.Annotations[v1alpha1.PreferencesAnnotation] {
		return nil, nil
	}
	return v.validate(ctx, frs, old)
}

// ValidateDelete admits every deletion. The webhook configuration does not ask about deletions.
func (v *federatedValidator) ValidateDelete(context.Context, *v1alpha1.FederatedReplicaSet) (admission.Warnings, error) {
	return nil, nil
}

func (v *federatedValidator) validate(ctx context.Context, frs, old *v1alpha1.FederatedReplicaSet) (warnings admission.Warnings, _ error) {
	policy, errs := federation.Compile(frs)
	if old != nil {
		errs = append(errs, federation.ValidateUpdate(frs, old)...)
	}
	if len(errs) > 0 {
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: v1alpha1.GroupVersion.Group, Kind: "FederatedReplicaSet"}, frs.Name, errs)
	}
	members, err := v.members(ctx)
	if err != nil { // they only matter to a warning
		klog.FromContext(ctx).Error(err, "Not warning of names in preferences that no cluster has")
	}
	if len(members) > 0 {
		if unknown := policy.Unknown(slices.Values(members)); len(unknown) > 0 {
			warnings = append(warnings, fmt.Sprintf("preferences: no cluster has the name %s; correct or remove it, or register the cluster", strings.Join(unknown, ", ")))
		}
	}
	return warnings, nil
}
