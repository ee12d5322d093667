package united

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/lineage"
	"github.com/berth-project/berth/pkg/members"
	model "github.com/berth-project/berth/pkg/united"
)

// unitedDeployment is the kind that the controller serves.
var unitedDeployment = v1beta1.Kind.GroupKind()

// Setup adds the controller of UnitedDeployments to the manager, in a process without that of spreads. The scheme must have the types of
// pkg/crd/united/v1beta1, and the cache the options of the frame. set are the clusters of the federation, nil if this one is no hub. If the API server does not serve the kind, the controller
// waits until it does. The context is used until Setup returns.
func Setup(ctx context.Context, mgr ctrl.Manager, set *members.Set) error {
	if err := frame.IndexByController(ctx, mgr.GetFieldIndexer(), &corev1.Pod{}, &appsv1.ReplicaSet{}); err != nil {
		return err
	}
	// It reads kinds and owners, and no spreads, so that the process watches none.
	owners := lineage.Over(mgr.GetCache(), lineage.NewKinds(mgr.GetRESTMapper(), mgr.GetAPIReader(), clock.RealClock{}), clock.RealClock{})
	r := &reconciler{
		owners: owners, client: mgr.GetClient(), live: mgr.GetAPIReader(), events: mgr.GetEventRecorder("berth-united"), clock: clock.RealClock{}, measures: newMeasures(),
		ownership: &ownership{live: mgr.GetAPIReader(), clock: clock.RealClock{}}, told: frame.Pace{Interval: frame.StatusInterval},
	}
	if set != nil {
		r.members = set
	}
	c, err := frame.New("uniteddeployment", mgr, r, r.measures)
	if err != nil {
		return err
	}
	watch := func(object client.Object, affected func(context.Context, client.Object) []string, matters predicate.Predicate) error {
		if err := c.Watch(source.Kind(mgr.GetCache(), object, frame.Named(affected), matters)); err != nil {
			return fmt.Errorf("watching %T: %w", object, err)
		}
		return nil
	}
	// These kinds may be served later. A replica that does not lead needs the watch when it starts to lead.
	owners.OnStart(func(_ context.Context, object *metav1.PartialObjectMetadata) error {
		switch object.GroupVersionKind().GroupKind() {
		case unitedDeployment:
			return watch(&v1beta1.UnitedDeployment{}, r.itself, unitedMatters)
		case model.CloneSetKind, model.AdvancedStatefulSetKind:
			return watch(object, r.ofChild, predicate.Funcs{})
		default:
			return nil
		}
	})
	if set != nil {
		if err := c.Watch(set.Source(r.concerned, frame.BatchWindow)); err != nil {
			return fmt.Errorf("watching the clusters: %w", err)
		}
		if err := c.Watch(r.Source()); err != nil {
			return fmt.Errorf("watching what goes on in slow clusters: %w", err)
		}
	}
	if err := errors.Join(watch(&appsv1.Deployment{}, r.ofChild, childMatters), watch(&appsv1.StatefulSet{}, r.ofChild, childMatters),
		watch(&appsv1.ReplicaSet{}, r.belowChild, ownerMatters), watch(&corev1.Pod{}, r.belowChild, podMatters)); err != nil {
		return err
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
