package guard

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

func TestAPanicFailsItsOwnRoundAlone(t *testing.T) {
	var broken atomic.Bool
	fails := func() {
		if broken.Load() {
			panic("an object that nobody thought of")
		}
	}
	for name, calls := range map[string]interceptor.Funcs{
		"of the round": {SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			fails()
			return c.SubResource(sub).Update(ctx, o, opts...)
		}},
		"of what the round lists": {List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if _, pods := list.(*corev1.PodList); pods {
				fails()
			}
			return c.List(ctx, list, opts...)
		}},
		"of what is read of the owners": {Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if _, owner := o.(*appsv1.ReplicaSet); owner {
				fails()
			}
			return c.Get(ctx, key, o, opts...)
		}},
		"of what many wait for": {List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if _, budgets := list.(*v1beta1.PodUnavailableBudgetList); budgets {
				fails()
			}
			return c.List(ctx, list, opts...)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			c := cluster(t, 3, calls)
			g := New(c, c, cluster(t, 3, interceptor.Funcs{}), Options{})
			broken.Store(true)
			if _, err := g.Decide(t.Context(), Request{Pod: pod(0), Operation: v1beta1.OperationDelete}); err == nil || !strings.Contains(err.Error(), "panic") {
				t.Fatalf("got %v, want an error that says so", err)
			}
			broken.Store(false)
			if allowed, reason := decide(t, g, 0); !allowed {
				t.Errorf("asked again it is refused: %s", reason)
			}
		})
	}
}
