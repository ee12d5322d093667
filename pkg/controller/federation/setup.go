package federation

import (
	"errors"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	"github.com/berth-project/berth/pkg/members"
)

var replicaSetKind = appsv1.SchemeGroupVersion.WithKind("ReplicaSet")

// Setup adds the controller of FederatedReplicaSets to the manager of the hub.
func Setup(mgr ctrl.Manager, set *members.Set) error {
	r := &reconciler{
		client: mgr.GetClient(), live: mgr.GetAPIReader(), members: set, events: mgr.GetEventRecorder("berth-united"), clock: clock.RealClock{}, measures: newMeasures(set.List), told: frame.Pace{Interval: frame.StatusInterval},
	}
	c, err := frame.New("federatedreplicaset", mgr, r, r.measures)
	if err != nil {
		return err
	}
	return errors.Join(
		c.Watch(source.Kind(mgr.GetCache(), &v1alpha1.FederatedReplicaSet{}, &handler.TypedEnqueueRequestForObject[*v1alpha1.FederatedReplicaSet]{})),
		// A rollout of many pods is a few reconciles and writes of the status, and not one for each pod. Changes of FederatedReplicaSets do not wait.
		c.Watch(set.Source(concerned(mgr.GetClient()), frame.BatchWindow)),
		c.Watch(r.Source()), // what goes on in slow clusters
	)
}
