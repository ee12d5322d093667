package budget

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/berth-project/berth/pkg/budget/census"
	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/podstate"
	"github.com/berth-project/berth/pkg/workload"
)

// DefaultExpiry is the usual expiry of ledger entries.
const DefaultExpiry = 2 * time.Minute

// longestList is how long a list waits for those before it of the same namespace. A reconciliation may take 30 s.
const longestList = 20 * time.Second

// Setup adds the controller of PodUnavailableBudgets to the manager. The manager's scheme must have the types of pkg/crd/policy/v1beta1.
//
// expiry is how long the controller keeps a ledger entry whose outcome is not proven. It must exceed the time for which the API server may still process an
// allowed request; see guard.ShortestExpiry. notices announce the end of a node, whose pods are replaced first. The cache needs the index frame.NodeField.
func Setup(mgr ctrl.Manager, expiry time.Duration, notices podstate.Notices) error {
	live, err := census.NewReader(mgr.GetConfig(), client.Options{Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()}, longestList)
	if err != nil {
		return err
	}
	r := &reconciler{
		cached:  mgr.GetCache(),
		live:    live,
		writer:  mgr.GetClient(),
		census:  census.New(live, mgr.GetClient().SubResource("scale"), mgr.GetCache(), clock.RealClock{}),
		events:  mgr.GetEventRecorder("berth-controller"),
		clock:   clock.RealClock{},
		seen:    cache.NewExpiring(),
		expiry:  expiry,
		extent:  newExtents(),
		notices: notices,
	}
	c, err := frame.New("podunavailablebudget", mgr, r)
	if err != nil {
		return err
	}
	type watched struct {
		object   client.Object
		affected func(context.Context, client.Object) []string
		matters  predicate.Predicate
	}
	watches := []watched{{&v1beta1.PodUnavailableBudget{}, itself, predicate.Funcs{}}, {&corev1.Pod{}, r.ofPod, podMatters},
		{&policyv1.PodDisruptionBudget{}, r.ofDisruptionBudget, predicate.GenerationChangedPredicate{}}}
	for _, kind := range workload.Watched() {
		watches = append(watches, watched{kind.NewObject(), r.ofWorkload, workloadMatters})
	}
	for _, w := range watches {
		if err := c.Watch(source.Kind(mgr.GetCache(), w.object, frame.Named(w.affected), w.matters)); err != nil {
			return fmt.Errorf("watching %T: %w", w.object, err)
		}
	}
	return c.Watch(source.Kind[client.Object](mgr.GetCache(), &corev1.Node{}, frame.Delayed(r.ofNode), r.nodeMatters()))
}
