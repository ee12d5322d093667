package workload

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

func TestMaxUnavailable(t *testing.T) {
	deployment := func(replicas int32, surge, unavailable any) *appsv1.Deployment {
		value := func(v any) *intstr.IntOrString {
			switch v := v.(type) {
			case int:
				return ptr.To(intstr.FromInt(v))
			case string:
				return ptr.To(intstr.FromString(v))
			default:
				return nil
			}
		}
		return &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: &replicas, Strategy: appsv1.DeploymentStrategy{
			RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: value(surge), MaxUnavailable: value(unavailable)}}}}
	}
	tests := map[string]struct {
		object runtime.Object
		want   *int32
	}{
		"a count":                      {deployment(6, 1, 2), ptr.To(int32(2))},
		"none":                         {deployment(6, 1, 0), ptr.To(int32(0))},
		"a percentage is rounded down": {deployment(6, 1, "30%"), ptr.To(int32(1))},
		"the default of a small Deployment is none": {&appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: ptr.To(int32(3))}}, ptr.To(int32(0))},
		"the default of a Deployment of 8":          {deployment(8, nil, nil), ptr.To(int32(2))},
		"without surge it is 1 at least":            {deployment(6, 0, 0), ptr.To(int32(1))},
		"a percentage that nobody can read":         {deployment(6, "one", 0), nil},
		"a maximum that nobody can read":            {deployment(6, 1, "one"), nil},
		"Recreate":                                  {&appsv1.Deployment{Spec: appsv1.DeploymentSpec{Strategy: appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}}}, nil},
		"another kind":                              {&appsv1.StatefulSet{}, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, MaxUnavailable(tc.object)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
