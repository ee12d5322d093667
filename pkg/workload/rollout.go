package workload

import (
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// MaxUnavailable is how many of its replicas a Deployment may lack during a rolling update. It is nil for strategy
// Recreate, for values that nobody can read, and for other kinds. The rounding is that of ResolveFenceposts in the
// Deployment controller.
func MaxUnavailable(object runtime.Object) *int32 {
	d, is := object.(*appsv1.Deployment)
	if !is || d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		return nil
	}
	quarter := intstr.FromString("25%") // the API server's default
	surge, unavailable := &quarter, &quarter
	if rolling := d.Spec.Strategy.RollingUpdate; rolling != nil {
		surge, unavailable = intstr.ValueOrDefault(rolling.MaxSurge, quarter), intstr.ValueOrDefault(rolling.MaxUnavailable, quarter)
	}
	replicas := int(ofDeployment(d))
	more, moreErr := intstr.GetScaledValueFromIntOrPercent(surge, replicas, true)
	fewer, fewerErr := intstr.GetScaledValueFromIntOrPercent(unavailable, replicas, false)
	if moreErr != nil || fewerErr != nil {
		return nil
	}
	if more == 0 && fewer == 0 {
		fewer = 1
	}
	n := int32(fewer)
	return &n
}
