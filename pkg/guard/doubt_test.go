package guard

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// A node has two tags of one image, and reports the other one of a pod that was changed. All pods serve, and one may go.
func TestADrainGoesOnOnceADoubtHasEnded(t *testing.T) {
	c := cluster(t, 3, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		err := c.List(ctx, list, opts...)
		if pods, is := list.(*corev1.PodList); is {
			changed := &pods.Items[0]
			changed.Generation, changed.Status.ObservedGeneration = 2, 2
			changed.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", Image: "docker.io/library/web:latest"}}
		}
		return err
	}})
	clock := clocktesting.NewFakePassiveClock(time.Now())
	evict := func(g *Guard, i int) budget.Verdict {
		t.Helper()
		v, err := g.Decide(t.Context(), Request{Pod: pod(i), Operation: v1beta1.OperationEvict, DryRun: true})
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	one, other := New(c, c, c, Options{Clock: clock}), New(c, c, c, Options{Clock: clock})
	if v := evict(one, 1); v.Allowed || !strings.Contains(v.Message, "missing: web-0 (container main may restart for its new image); try again") {
		t.Errorf("got %+v, want the pod and the reason in the refusal", v)
	}
	if v := evict(one, 0); !v.Allowed {
		t.Errorf("got %+v of the pod itself, without which enough serve", v)
	}
	clock.SetTime(clock.Now().Add(time.Hour + 29*time.Second))
	if v := evict(one, 1); v.Allowed {
		t.Errorf("got %+v before the kubelet must have acted", v)
	}
	clock.SetTime(clock.Now().Add(time.Second))
	if v := evict(other, 1); v.Allowed {
		t.Errorf("got %+v of a replica that has just started", v)
	}
	if v := evict(one, 1); !v.Allowed {
		t.Errorf("got %+v, and every pod serves", v)
	}
}
