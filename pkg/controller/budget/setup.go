package budget

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/berth-project/berth/pkg/budget/census"
	"github.com/berth-project/berth/pkg/crd/policy/v1alpha1"
	"github.com/berth-project/berth/pkg/turns"
	"github.com/berth-project/berth/pkg/workload"
)

// DefaultExpiry is how long a ledger entry without proof stays, if nothing else is said.
const DefaultExpiry = 2 * time.Minute

// Options say how long the controller waits, and what tests replace.
type Options struct {
	// Expiry is how long a ledger entry stays whose operation seems not to happen, DefaultExpiry if 0. It must exceed the time for which the
	// API server may still be busy with a request that was let through; guard.ShortestExpiry says how long that is.
	Expiry time.Duration
	// Clock is the real one if nil. It must be monotonic.
	Clock clock.PassiveClock
	// Name of the controller, if several run in one process. Tests do that.
	Name string
}

// concurrentReconciles is how many budgets are described at a time. Each is always in the hands of one worker.
const concurrentReconciles = 4

const (
	// A budget that cannot be counted is tried again after firstRetry, twice as long and so on, at most lastRetry. Other namespaces wait meanwhile if
	// there are thousands.
	firstRetry = 200 * time.Millisecond
	lastRetry  = time.Minute
	// reconcileTimeout is how long a budget may keep a worker, if the API server takes its time with what it names.
	reconcileTimeout = 30 * time.Second
)

// Setup adds the status controller of PodUnavailableBudgets to the manager. The manager must have registered the types of
// pkg/crd/policy/v1alpha1. The context is used until Setup returns.
func Setup(ctx context.Context, mgr ctrl.Manager, opts Options) error {
	if opts.Clock == nil {
		opts.Clock = clock.RealClock{}
	}
	if opts.Expiry == 0 {
		opts.Expiry = DefaultExpiry
	}
	if opts.Name == "" {
		opts.Name = "podunavailablebudget"
	}
	if _, err := mgr.GetCache().GetInformer(ctx, census.NewNode()); err != nil {
		return fmt.Errorf("watching nodes: %w", err)
	}
	r := &reconciler{
		cached: mgr.GetCache(),
		live:   mgr.GetAPIReader(),
		writer: mgr.GetClient(),
		census: census.New(mgr.GetAPIReader(), mgr.GetClient().SubResource("scale"), mgr.GetCache()),
		events: mgr.GetEventRecorder("berth-controller"),
		clock:  opts.Clock,
		seen:   newSeenEntries(opts.Clock),
		expiry: opts.Expiry,
		extent: newExtents(),
	}
	c, err := controller.New(opts.Name, mgr, controller.Options{
		Reconciler:              r,
		MaxConcurrentReconciles: concurrentReconciles,
		NewQueue:                turns.NewQueue,
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry),
		ReconciliationTimeout:   reconcileTimeout,
	})
	if err != nil {
		return fmt.Errorf("making the controller: %w", err)
	}
	type watched struct {
		object   client.Object
		affected func(context.Context, client.Object) []string
		matters  predicate.Predicate
	}
	watches := []watched{{&v1alpha1.PodUnavailableBudget{}, itself, predicate.Funcs{}}, {&corev1.Pod{}, r.ofPod, podMatters}}
	for _, kind := range workload.Watched() {
		watches = append(watches, watched{kind.NewObject(), r.ofWorkload, predicate.GenerationChangedPredicate{}})
	}
	for _, w := range watches {
		if err := c.Watch(source.Kind(mgr.GetCache(), w.object, delayed{w.affected}, w.matters)); err != nil {
			return fmt.Errorf("watching %T: %w", w.object, err)
		}
	}
	return nil
}
