package whatif

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/lineage"
)

// listTimeout bounds the time to list the objects of the cluster.
const listTimeout = 30 * time.Second

// lookInNamespace makes an engine for whoever may read one namespace only. It knows no nodes.
func lookInNamespace(ctx context.Context, cluster *console.Cluster) (*Engine, error) {
	taken, err := lineage.TakeNamespace(ctx, cluster, clock.RealClock{}, cluster.Namespace)
	if err != nil {
		return nil, err
	}
	return &Engine{Snapshot: taken, clock: clock.RealClock{}}, nil
}

// look takes a snapshot of the cluster, and makes the engine for it. It lists all pods and nodes, because the
// scheduler's filters need them.
func look(ctx context.Context, cluster *console.Cluster) (*Engine, error) {
	life := ctx
	ctx, cancel := context.WithTimeoutCause(ctx, listTimeout, fmt.Errorf("listing what the scheduler's filters read took longer than %s; check that you may list nodes, pods, volumes and claims", listTimeout))
	defer cancel()
	taken, err := lineage.Take(ctx, cluster, clock.RealClock{})
	if err != nil {
		return nil, err
	}
	typed, err := kubernetes.NewForConfig(cluster.Config)
	if err != nil {
		return nil, err
	}
	factory := informers.NewSharedInformerFactory(typed, 0)
	e, err := NewEngine(life, taken, cluster, typed, factory, clock.RealClock{})
	if err != nil {
		return nil, err
	}
	factory.Start(life.Done())
	for kind, synced := range factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			return nil, fmt.Errorf("listing %s: %w", kind, context.Cause(ctx))
		}
	}
	return e, nil
}
