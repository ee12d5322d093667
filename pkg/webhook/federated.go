package webhook

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"

	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	"github.com/berth-project/berth/pkg/endpoint"
	"github.com/berth-project/berth/pkg/federation"
)

// federatedReviews are about FederatedReplicaSets. members returns the names of all clusters.
func federatedReviews(members func(context.Context) ([]string, error)) endpoint.Validator[*v1alpha1.FederatedReplicaSet] {
	return endpoint.Validator[*v1alpha1.FederatedReplicaSet]{
		Kind: schema.GroupKind{Group: v1alpha1.GroupVersion.Group, Kind: "FederatedReplicaSet"},
		Same: func(old, frs *v1alpha1.FederatedReplicaSet) bool {
			return equality.Semantic.DeepEqual(old.Spec, frs.Spec) && old.Annotations[v1alpha1.PreferencesAnnotation] == frs.Annotations[v1alpha1.PreferencesAnnotation]
		},
		Validate: func(ctx context.Context, frs, old *v1alpha1.FederatedReplicaSet) (warnings []string, errs field.ErrorList, _ error) {
			policy, errs := federation.Compile(frs)
			if old != nil {
				errs = append(errs, federation.ValidateUpdate(frs, old)...)
			}
			if len(errs) > 0 || len(policy.Unknown()) == 0 { // the preferences name no cluster
				return nil, errs, nil
			}
			names, err := members(ctx)
			if err != nil { // they only matter to a warning
				klog.FromContext(ctx).Error(err, "Not warning of names in preferences that no cluster has")
			}
			if len(names) > 0 {
				if unknown := policy.Unknown(names...); len(unknown) > 0 {
					warnings = append(warnings, fmt.Sprintf("preferences: no cluster has the name %s; correct or remove it, or register the cluster", strings.Join(unknown, ", ")))
				}
			}
			return warnings, nil, nil
		},
	}
}
