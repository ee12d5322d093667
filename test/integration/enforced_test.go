package integration

import (
	"context"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"

	policyv1beta1 "github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// expectEnforced waits until the budget protects its pods, and so many of them are available.
func expectEnforced(t *testing.T, ns, name string, available int32) {
	t.Helper()
	waitFor(t, fmt.Sprintf("%d protected pods", available), func(ctx context.Context) (string, error) {
		object, err := the.Dynamic.Resource(policyv1beta1.Resource).Namespace(ns).Get(ctx, name, getOptions)
		if err != nil {
			return "", err
		}
		pub := &policyv1beta1.PodUnavailableBudget{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, pub); err != nil {
			return "", err
		}
		if pub.Status.CurrentAvailable != available || !meta.IsStatusConditionTrue(pub.Status.Conditions, policyv1beta1.ConditionEnforcing) {
			return fmt.Sprintf("%+v", pub.Status), nil
		}
		return "", nil
	})
}
