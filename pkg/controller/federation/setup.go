package federation

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	"github.com/berth-project/berth/pkg/members"
	"github.com/berth-project/berth/pkg/turns"
)

const (
	// After an error a FederatedReplicaSet is tried again with exponential backoff from firstRetry up to lastRetry.
	firstRetry = 200 * time.Millisecond
	lastRetry  = time.Minute
	// reconcileTimeout is how long a FederatedReplicaSet may occupy a worker.
	reconcileTimeout = 30 * time.Second
)

var replicaSetKind = appsv1.SchemeGroupVersion.WithKind("ReplicaSet")

// Options are what tests replace.
type Options struct {
	// Clock is the real one if nil.
	Clock clock.PassiveClock
}

// Setup adds the controller of FederatedReplicaSets to the manager of the hub.
func Setup(mgr ctrl.Manager, set *members.Set, opts Options) error {
	if opts.Clock == nil {
		opts.Clock = clock.RealClock{}
	}
	measures := newMeasures(set.List)
	if err := metrics.Registry.Register(measures); err != nil {
		return fmt.Errorf("registering metrics: %w", err)
	}
	r := &reconciler{
		client: mgr.GetClient(), live: mgr.GetAPIReader(), members: clusters{set}, events: mgr.GetEventRecorder("berth-united"), clock: opts.Clock, measures: measures,
	}
	c, err := controller.New("federatedreplicaset", mgr, controller.Options{
		Reconciler:              r,
		MaxConcurrentReconciles: turns.Workers,
		NewQueue:                turns.NewQueue(turns.OfNamespace),
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry),
		ReconciliationTimeout:   reconcileTimeout,
	})
	if err != nil {
		return fmt.Errorf("making the controller: %w", err)
	}
	if err := c.Watch(source.Kind(mgr.GetCache(), &v1alpha1.FederatedReplicaSet{}, &handler.TypedEnqueueRequestForObject[*v1alpha1.FederatedReplicaSet]{})); err != nil {
		return fmt.Errorf("watching FederatedReplicaSets: %w", err)
	}
	changes := set.Source(concerned(mgr.GetClient()), 0)
	if err := c.Watch(source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		return changes.Start(ctx, batching{queue})
	})); err != nil {
		return fmt.Errorf("watching the clusters: %w", err)
	}
	if err := c.Watch(source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		again := func(of members.Errand) { queue.Add(reconcile.Request{NamespacedName: of.Object}) }
		r.reading.Ended, r.writing.Ended = again, again
		return nil
	})); err != nil {
		return fmt.Errorf("watching what goes on in slow clusters: %w", err)
	}
	return nil
}

// batching collects what happens in the clusters, so that a rollout of many pods is a few reconciles and writes of the status, and not one for each pod. Changes of FederatedReplicaSets
// do not wait.
type batching struct {
	workqueue.TypedRateLimitingInterface[reconcile.Request]
}

// Add adds the request after a while. If it waits already, it waits no longer.
func (b batching) Add(request reconcile.Request) { b.AddAfter(request, batchWindow) }
