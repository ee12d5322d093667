package united

import (
	"errors"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-project/berth/pkg/endpoint"
)

func TestADefinitionOfSomebodyElseIsLeftAlone(t *testing.T) {
	definitionWith := func(clientConfig map[string]any) *unstructured.Unstructured {
		definition := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{}}}
		if clientConfig != nil {
			definition.Object["spec"] = map[string]any{"conversion": map[string]any{"webhook": map[string]any{"clientConfig": clientConfig}}}
		}
		definition.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
		definition.SetName(endpoint.UnitedDefinition)
		return definition
	}
	service := func(name string) map[string]any { return map[string]any{"service": map[string]any{"name": name}} }
	for name, tc := range map[string]struct {
		config map[string]any
		want   bool
	}{
		"Berth's":              {service("berth-conversion"), true},
		"that of a sandbox":    {map[string]any{"url": "https://localhost"}, true},
		"OpenKruise's":         {service("kruise-webhook-service"), false},
		"one without versions": {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			clock := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
			live := fake.NewClientBuilder().WithScheme(runtime.NewScheme()).WithObjects(definitionWith(tc.config)).Build()
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
