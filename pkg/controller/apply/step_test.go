package apply

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"
)

func replicaSet(replicas int32) *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u", Generation: 1}, Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To(replicas)}}
}

// TestAWriteThatCameTooLateIsRepeatedIfThePlanStillHolds: somebody else has written to the object since it was read.
func TestAWriteThatCameTooLateIsRepeatedIfThePlanStillHolds(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*appsv1.ReplicaSet)
		want   Result
	}{
		"an annotation": {func(set *appsv1.ReplicaSet) { set.Annotations = map[string]string{"a": "b"} }, Written},
		"its spec":      {func(set *appsv1.ReplicaSet) { set.Generation++ }, Stale},
		"whose it is":   {func(set *appsv1.ReplicaSet) { set.Labels = map[string]string{"owner": "other"} }, Stale},
	} {
		t.Run(name, func(t *testing.T) {
			api := fake.NewClientBuilder().WithObjects(replicaSet(2)).Build()
			before := &appsv1.ReplicaSet{}
			if err := api.Get(t.Context(), client.ObjectKeyFromObject(replicaSet(2)), before); err != nil {
				t.Fatal(err)
			}
			now := before.DeepCopy()
			tc.change(now)
			if err := api.Update(t.Context(), now); err != nil {
				t.Fatal(err)
			}
			s := Step{In: api, Live: api, Before: before, Replicas: 5, Manager: "test", Owns: func(object client.Object) bool { return object.GetLabels()["owner"] == "" }}
			_, err := s.Do(t.Context())
			if got := ResultOf(err); got != tc.want || s.Operation() != Scale {
				t.Errorf("%s: %s, %v", s.Operation(), got, err)
			}
			if err := api.Get(t.Context(), client.ObjectKeyFromObject(now), before); err != nil || before.Annotations["a"] != now.Annotations["a"] {
				t.Errorf("annotations %v, %v", before.Annotations, err)
			}
		})
	}
}

// TestAStrategyWithoutRollingUpdatesClearsTheirParameters: nobody has applied them, so server-side apply keeps them, and the API server refuses them beside the strategy.
func TestAStrategyWithoutRollingUpdatesClearsTheirParameters(t *testing.T) {
	for strategy, want := range map[string]bool{"{type: Recreate}": true, "{type: RollingUpdate}": false, "{}": false, "{type: Recreate, rollingUpdate: {maxSurge: 1}}": false} {
		var wanted map[string]any
		if err := yaml.Unmarshal([]byte(strategy), &wanted); err != nil {
			t.Fatal(err)
		}
		before := &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u"},
			Spec:       appsv1.DeploymentSpec{Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: ptr.To(intstr.FromInt32(1))}}},
		}
		cleared, applied := false, ""
		api := interceptor.NewClient(fake.NewClientBuilder().WithObjects(before).Build(), interceptor.Funcs{
			Patch: func(ctx context.Context, api client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
				err := api.Patch(ctx, object, patch, options...)
				deployment, is := object.(*appsv1.Deployment)
				cleared = is && deployment.Spec.Strategy.RollingUpdate == nil && deployment.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType
				return err
			},
			Apply: func(_ context.Context, _ client.WithWatch, object k8sruntime.ApplyConfiguration, _ ...client.ApplyOption) error {
				text, err := json.Marshal(object)
				applied = string(text)
				return err
			},
		})
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(before), before); err != nil {
			t.Fatal(err)
		}
		s := Step{In: api, Live: api, Before: before, Manager: "test", Wanted: &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"namespace": "shop", "name": "web"}, "spec": map[string]any{"strategy": wanted},
		}}}
		_, err := s.Do(t.Context())
		if err != nil || cleared != want || !strings.Contains(applied, fmt.Sprintf(`"resourceVersion":%q`, s.Before.GetResourceVersion())) || (s.Before != client.Object(before)) != want {
			t.Errorf("%s: cleared %v, applied %s, %v", strategy, cleared, applied, err)
		}
	}
}

func TestANamespaceThatDoesNotExistIsAnObstacle(t *testing.T) {
	api := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
			return apierrors.NewNotFound(corev1.Resource("namespaces"), "shop")
		},
	})
	s := Step{In: api, Live: api, Manager: "test", Wanted: &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": map[string]any{"namespace": "shop", "name": "web"}}}}
	_, err := s.Do(t.Context())
	if ResultOf(err) != Refused || err.Error() != "namespace shop does not exist there; create it" {
		t.Errorf("got %v", err)
	}
}

// TestAnotherClusterIsAskedToKnowEveryField: an older one would make the object without the fields that it does not know.
func TestAnotherClusterIsAskedToKnowEveryField(t *testing.T) {
	for validates, strict := range map[string]bool{"": false, metav1.FieldValidationStrict: true} {
		var got client.CreateOptions
		api := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
			Create: func(_ context.Context, _ client.WithWatch, _ client.Object, options ...client.CreateOption) error {
				got.ApplyOptions(options)
				return nil
			},
		})
		s := Step{In: api, Live: api, Manager: "test", Strict: strict, Wanted: &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": map[string]any{"namespace": "shop", "name": "web"}}}}
		if _, err := s.Do(t.Context()); err != nil || got.FieldValidation != validates {
			t.Errorf("strict %v: field validation %q, %v", strict, got.FieldValidation, err)
		}
	}
}

func TestResults(t *testing.T) {
	for want, errs := range map[Result][]error{
		Written: {nil},
		Stale:   {apierrors.NewConflict(appsv1.Resource("replicasets"), "web", errors.New("changed")), apierrors.NewNotFound(appsv1.Resource("replicasets"), "web"), apierrors.NewAlreadyExists(appsv1.Resource("replicasets"), "web")},
		Refused: {&Obstacle{"in the way"}, apierrors.NewForbidden(appsv1.Resource("replicasets"), "web", errors.New("policy"))},
		Failed:  {errors.New("connection refused"), apierrors.NewTooManyRequests("later", 1)},
	} {
		for _, err := range errs {
			if got := ResultOf(err); got != want {
				t.Errorf("%v: %s, want %s", err, got, want)
			}
		}
	}
}

func TestMemoryHoldsUntilSomebodyChangesTheSpec(t *testing.T) {
	var m Memory
	set, hash := replicaSet(2), Hash{1}
	m.Remember("a", set, hash, Apply)
	changed := set.DeepCopy()
	changed.Generation++
	got := []bool{m.Has("a", set, hash), m.Has("b", set, hash), m.Has("a", set, Hash{2}), m.Has("a", changed, hash)}
	m.Keep(func(Key) bool { return false })
	if diff := cmp.Diff([]bool{true, false, false, false, false}, append(got, m.Has("a", set, hash))); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

type raise int32

func (raise) In() string     { return "" }
func (n raise) Raise() int32 { return int32(n) }

// TestAfford: two that were to go stay, so the last raises get two fewer.
func TestAfford(t *testing.T) {
	left, err := afford([]raise{4, 0, 1, 1}, 3, func(by int32, n *raise) (bool, error) {
		*n -= raise(by)
		return *n > 0, nil
	})
	if diff := cmp.Diff([]raise{3, 0}, left); diff != "" || err != nil {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
}
