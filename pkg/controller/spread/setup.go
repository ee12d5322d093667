package spread

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/berth-project/berth/pkg/autoscaler"
	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/lineage"
)

// Setup adds the status controller of WorkloadSpreads to the manager, whose cache must have been made with frame.CacheOptions. The lineage must be of the
// same manager. nodes knows whether there is a node autoscaler; nil means that there is none. costs is true if the metrics say what pods cost; the cache must have their requests.
// The context is used until Setup returns.
func Setup(ctx context.Context, mgr ctrl.Manager, owners *lineage.Lineage, nodes *autoscaler.Detector, costs bool) error {
	if err := addIndexes(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	family := &family{owners}
	r := &reconciler{
		client: mgr.GetClient(), live: mgr.GetAPIReader(), family: family, autoscaler: nodes, events: mgr.GetEventRecorder("berth-controller"), clock: clock.RealClock{},
		pace: frame.Pace{Interval: frame.StatusInterval}, changes: &changes{}, measures: newMeasures(), corrections: newCorrections(), costs: costs,
	}
	c, err := frame.New("workloadspread", mgr, r, r.measures, r.corrections)
	if err != nil {
		return err
	}
	watch := func(w watch) error {
		if err := c.Watch(source.Kind(mgr.GetCache(), w.object, frame.Delayed(w.affectedBy(r.changes)), w.matters)); err != nil {
			return fmt.Errorf("watching %T: %w", w.object, err)
		}
		return nil
	}
	// A replica that does not lead needs the watch when it starts to lead.
	owners.OnStart(func(ctx context.Context, object *metav1.PartialObjectMetadata) error {
		if err := frame.IndexByController(ctx, mgr.GetFieldIndexer(), object); err != nil {
			return err
		}
		return watch(family.watchOf(object))
	})
	for _, w := range family.watches() {
		if err := watch(w); err != nil {
			return err
		}
	}
	return c.Watch(source.Func(func(ctx context.Context, q frame.Queue) error {
		nodes.OnChange(func() {
			for request := range family.spreads(ctx, nil) {
				q.Add(request)
			}
		})
		return nil
	}))
}

func addIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	if err := frame.IndexByNode(ctx, indexer); err != nil {
		return fmt.Errorf("indexing pods by %s: %w", frame.NodeField, err)
	}
	return frame.IndexByController(ctx, indexer, &corev1.Pod{}, &appsv1.Deployment{}, &appsv1.ReplicaSet{}, &appsv1.StatefulSet{}, &batchv1.Job{})
}
