package frame

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-project/berth/pkg/workload"
)

const (
	// BatchWindow is how long changes of an object are collected before it is reconciled, so that a burst of changes is one reconcile. It is also the wait after a write that came too late.
	BatchWindow = 200 * time.Millisecond
	// After an error an object is tried again with exponential backoff from firstRetry up to lastRetry.
	firstRetry = 200 * time.Millisecond
	lastRetry  = time.Minute
	// reconcileTimeout is how long an object may occupy a worker, for instance if the API server answers slowly.
	reconcileTimeout = 30 * time.Second
)

// New makes a controller that serves namespaces in turn, and registers its metrics.
func New(name string, mgr ctrl.Manager, reconciler reconcile.Reconciler, measures ...prometheus.Collector) (controller.Controller, error) {
	for _, m := range measures {
		if err := metrics.Registry.Register(m); err != nil {
			return nil, fmt.Errorf("registering metrics: %w", err)
		}
	}
	return controller.New(name, mgr, controller.Options{
		Reconciler:              reconciler,
		MaxConcurrentReconciles: Workers,
		NewQueue:                newQueue(ofNamespace),
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry),
		ReconciliationTimeout:   reconcileTimeout,
	})
}

// Queue of a controller.
type Queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// Delayed queues the objects that an event affects at the end of the window that the first event opens. affected is asked about an object, and about what it was before if it had another owner or other
// labels. The other version is nil for an object that is new or deleted. The queue keeps the earlier of two times for a request that it has already: otherwise a steady stream of events would delay
// the reconcile forever.
func Delayed(affected func(ctx context.Context, object, other client.Object) sets.Set[reconcile.Request]) handler.EventHandler {
	add := func(ctx context.Context, object, other client.Object, q Queue) {
		for request := range affected(ctx, object, other) {
			q.AddAfter(request, BatchWindow)
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q Queue) { add(ctx, e.Object, nil, q) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q Queue) { add(ctx, e.Object, nil, q) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q Queue) {
			before, after := e.ObjectOld, e.ObjectNew
			add(ctx, after, before, q)
			if before.GetUID() != after.GetUID() || !workload.HaveSameController(before, after) || !maps.Equal(before.GetLabels(), after.GetLabels()) {
				add(ctx, before, after, q)
			}
		},
	}
}

// Named is Delayed for objects in the namespace of the event's object, by name.
func Named(affected func(context.Context, client.Object) []string) handler.EventHandler {
	return Delayed(func(ctx context.Context, object, _ client.Object) sets.Set[reconcile.Request] {
		requests := sets.New[reconcile.Request]()
		for _, name := range affected(ctx, object) {
			requests.Insert(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: object.GetNamespace(), Name: name}})
		}
		return requests
	})
}
