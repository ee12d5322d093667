package testkit

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

// Spread makes WorkloadSpread shop/web for Deployment web, with a spec and with a status whose spread is ready.
func Spread(t *testing.T, spec, status string) *v1beta1.WorkloadSpread {
	t.Helper()
	spread := &v1beta1.WorkloadSpread{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", Generation: 2}}
	spread.Spec.TargetReference = v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}
	spread.Status.ObservedGeneration = 2
	spread.Status.Conditions = []metav1.Condition{{Type: v1beta1.ConditionReady, Status: metav1.ConditionTrue, Reason: string(v1beta1.ReasonSpreadReady)}}
	for text, into := range map[string]any{spec: &spread.Spec, status: &spread.Status} {
		if err := yaml.UnmarshalStrict([]byte(text), into); err != nil {
			t.Fatal(err)
		}
	}
	return spread
}
