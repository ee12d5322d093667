package united

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/lineage"
	"github.com/berth-project/berth/pkg/members"
	"github.com/berth-project/berth/pkg/turns"
	model "github.com/berth-project/berth/pkg/united"
)

// Options of the controller.
type Options struct {
	// Clock is the real one if nil.
	Clock clock.PassiveClock
	// Members are the clusters of the federation. Nil if this one is no hub.
	Members *members.Set
}

const (
	// After an error a UnitedDeployment is tried again with exponential backoff from firstRetry up to lastRetry.
	firstRetry = 200 * time.Millisecond
	lastRetry  = time.Minute
	// reconcileTimeout is how long a UnitedDeployment may occupy a worker.
	reconcileTimeout = 30 * time.Second
)

// unitedDeployment is the kind that the controller serves.
var unitedDeployment = v1beta1.Kind.GroupKind()

// Setup adds the controller of UnitedDeployments to the manager, in a process without that of spreads. The scheme must have the types of
// pkg/crd/united/v1beta1, and the cache the options of pkg/controller. If the API server does not serve the kind, the controller waits until it does. The
// context is used until Setup returns.
func Setup(ctx context.Context, mgr ctrl.Manager, opts Options) error {
	if opts.Clock == nil {
		opts.Clock = clock.RealClock{}
	}
	if err := frame.IndexByController(ctx, mgr.GetFieldIndexer(), &corev1.Pod{}, &appsv1.Deployment{}, &appsv1.ReplicaSet{}, &appsv1.StatefulSet{}); err != nil {
		return err
	}
	// It reads kinds and owners, and no spreads, so that the process watches none.
	owners := lineage.Over(mgr.GetCache(), lineage.NewKinds(mgr.GetRESTMapper(), mgr.GetAPIReader(), opts.Clock), clock.RealClock{})
	measures := newMeasures()
	if err := metrics.Registry.Register(measures); err != nil {
		return fmt.Errorf("registering metrics: %w", err)
	}
	r := &reconciler{
		owners:    owners,
		client:    mgr.GetClient(),
		live:      mgr.GetAPIReader(),
		events:    mgr.GetEventRecorder("berth-united"),
		clock:     opts.Clock,
		measures:  measures,
		ownership: &ownership{live: mgr.GetAPIReader(), clock: opts.Clock},
	}
	if opts.Members != nil {
		r.members = opts.Members
	}
	c, err := ctrlcontroller.New("uniteddeployment", mgr, ctrlcontroller.Options{
		Reconciler:              r,
		MaxConcurrentReconciles: turns.Workers,
		NewQueue:                turns.NewQueue(turns.OfNamespace),
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry),
		ReconciliationTimeout:   reconcileTimeout,
	})
	if err != nil {
		return fmt.Errorf("making the controller: %w", err)
	}
	watch := func(object client.Object, affected affected, matters predicate.Predicate) error {
		if err := c.Watch(source.Kind(mgr.GetCache(), object, delayed{affected}, matters)); err != nil {
			return fmt.Errorf("watching %T: %w", object, err)
		}
		return nil
	}
	// These kinds may be served later. A replica that does not lead needs the watch when it starts to lead.
	owners.OnStart(func(ctx context.Context, object *metav1.PartialObjectMetadata) error {
		switch object.GroupVersionKind().GroupKind() {
		case unitedDeployment:
			return watch(&v1beta1.UnitedDeployment{}, r.itself, unitedMatters)
		case model.CloneSetKind, model.AdvancedStatefulSetKind:
			if err := frame.IndexByController(ctx, mgr.GetFieldIndexer(), object); err != nil {
				return err
			}
			return watch(object, r.ofChild, predicate.Funcs{})
		default:
			return nil
		}
	})
	if opts.Members != nil {
		if err := c.Watch(opts.Members.Source(r.concerned, batchWindow)); err != nil {
			return fmt.Errorf("watching the clusters: %w", err)
		}
	}
	for _, w := range []struct {
		object   client.Object
		affected affected
		matters  predicate.Predicate
	}{
		{&appsv1.Deployment{}, r.ofChild, childMatters},
		{&appsv1.StatefulSet{}, r.ofChild, childMatters},
		{&appsv1.ReplicaSet{}, r.belowChild, ownerMatters},
		{&corev1.Pod{}, r.belowChild, podMatters},
	} {
		if err := watch(w.object, w.affected, w.matters); err != nil {
			return err
		}
	}
	return mgr.Add(manager.RunnableFunc(r.awaitKind))
}

// awaitKind returns when UnitedDeployments are watched.
func (r *reconciler) awaitKind(ctx context.Context) error {
	err := wait.PollUntilContextCancel(ctx, lineage.RetryInterval, true, func(ctx context.Context) (bool, error) {
		unwatchable, err := r.owners.Watch(ctx, unitedDeployment)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Watching UnitedDeployments will be tried again")
		}
		return unwatchable == nil && err == nil, nil
	})
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// isServed is true once UnitedDeployments are watched. Before that the cache must not be asked for them: it would wait for the kind.
func (r *reconciler) isServed() bool { return r.owners.NewObject(unitedDeployment) != nil }
