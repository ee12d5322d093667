package united

import (
	"errors"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-project/berth/pkg/endpoint"
)

func TestADefinitionOfSomebodyElseIsLeftAlone(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := apiextensionsv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	definitionWith := func(config *apiextensionsv1.WebhookClientConfig) *apiextensionsv1.CustomResourceDefinition {
		definition := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: endpoint.UnitedDefinition}}
		if config != nil {
			definition.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Webhook: &apiextensionsv1.WebhookConversion{ClientConfig: config}}
		}
		return definition
	}
	service := func(name string) *apiextensionsv1.WebhookClientConfig {
		return &apiextensionsv1.WebhookClientConfig{Service: &apiextensionsv1.ServiceReference{Name: name}}
	}
	for name, tc := range map[string]struct {
		config *apiextensionsv1.WebhookClientConfig
		want   bool
	}{
		"Berth's":              {service("berth-conversion"), true},
		"that of a sandbox":    {&apiextensionsv1.WebhookClientConfig{URL: ptr.To("https://localhost")}, true},
		"OpenKruise's":         {service("kruise-webhook-service"), false},
		"one without versions": {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			clock := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
			live := fake.NewClientBuilder().WithScheme(scheme).WithObjects(definitionWith(tc.config)).Build()
			o := &ownership{live: live, clock: clock}
			if got, err := o.isOurs(t.Context()); err != nil || got != tc.want {
				t.Errorf("got %t, %v", got, err)
			}
			// Somebody deletes it. It is noticed after a while, and is no answer.
			if err := live.Delete(t.Context(), definitionWith(nil)); err != nil {
				t.Fatal(err)
			}
			if got, err := o.isOurs(t.Context()); err != nil || got != tc.want {
				t.Errorf("at once: got %t, %v", got, err)
			}
			clock.SetTime(clock.Now().Add(time.Hour))
			if _, err := o.isOurs(t.Context()); client.IgnoreNotFound(errors.Unwrap(err)) != nil || err == nil {
				t.Errorf("later: got %v", err)
			}
		})
	}
	w := newWorld(t, unitedOf(3, "a"))
	w.ownership.ours = false
	request := reconcile.Request{NamespacedName: client.ObjectKey{Namespace: "ns", Name: "web"}}
	if result, err := w.Reconcile(t.Context(), request); err != nil || result.RequeueAfter == 0 || len(w.writes) > 0 {
		t.Errorf("got %+v, %v, wrote %v", result, err, w.writes)
	}
}
