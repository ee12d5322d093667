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
	"github.com/berth-project/berth/pkg/endpoint"
	"github.com/berth-project/berth/pkg/federation"
)

// federatedValidator reviews FederatedReplicaSets.
type federatedValidator struct {
	// members are the names of all clusters.
	members func(context.Context) ([]string, error)
}

func (v *federatedValidator) reviews() endpoint.Validator[*v1alpha1.FederatedReplicaSet] {
	return endpoint.Validator[*v1alpha1.FederatedReplicaSet]{Validate: v.validate, Same: func(old, frs *v1alpha1.FederatedReplicaSet) bool {
		return equality.Semantic.DeepEqual(old.Spec, frs.Spec) && old.Annotations[v1alpha1.PreferencesAnnotation] == frs.Annotations[v1alpha1.PreferencesAnnotation]
	}}
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
