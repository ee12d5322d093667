package whatif

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	"github.com/berth-project/berth/pkg/fit"
	"github.com/berth-project/berth/pkg/lineage"
	"github.com/berth-project/berth/pkg/snapshot"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// view is a snapshot of the whole cluster.
type view struct {
	*snapshot.Snapshot
}

// dividing is a spread with the pods that it divides.
type dividing struct {
	spread *v1alpha1.WorkloadSpread
	// policy is nil if the spread is invalid. invalid then says why.
	policy   *subset.Policy
	invalid  field.ErrorList
	replicas int32
	// pods that it divides.
	pods  []*corev1.Pod
	tally *subset.Tally
}

// listTimeout bounds the time to list the objects of the cluster.
const listTimeout = 30 * time.Second

// look takes a view, and makes the scheduler's filters for it. It lists all pods and nodes, because the filters need them.
func look(ctx context.Context, cluster *console.Cluster) (*view, *fit.Filters, error) {
	life := ctx
	ctx, cancel := context.WithTimeoutCause(ctx, listTimeout, fmt.Errorf("listing what the scheduler's filters read took longer than %s; check that you may list nodes, pods, volumes and claims", listTimeout))
	defer cancel()
	taken, err := snapshot.Take(ctx, cluster, clock.RealClock{})
	if err != nil {
		return nil, nil, err
	}
	typed, err := kubernetes.NewForConfig(cluster.Config)
	if err != nil {
		return nil, nil, err
	}
	factory := informers.NewSharedInformerFactory(typed, 0)
	filters, err := fit.NewFilters(life, typed, factory)
	if err != nil {
		return nil, nil, err
	}
	factory.Start(life.Done())
	for kind, synced := range factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			return nil, nil, fmt.Errorf("listing %s: %w", kind, context.Cause(ctx))
		}
	}
	return &view{taken}, filters, nil
}

// dividedBy is the spread that divides a pod, with all of its pods counted. It is nil if none does.
func (v *view) dividedBy(ctx context.Context, pod *corev1.Pod) (*dividing, error) {
	found, err := v.SpreadOf(ctx, pod)
	if err != nil || found == nil {
		return nil, err
	}
	for i := range v.Spreads {
		if spread := &v.Spreads[i]; spread.Namespace == pod.Namespace && spread.Name == found.Name {
			return v.divides(ctx, spread, found)
		}
	}
	return nil, fmt.Errorf("WorkloadSpread %s/%s is gone", pod.Namespace, found.Name)
}

func (v *view) divides(ctx context.Context, spread *v1alpha1.WorkloadSpread, compiled *lineage.Spread) (*dividing, error) {
	d := &dividing{spread: spread, policy: compiled.Policy, invalid: compiled.Invalid}
	if d.policy == nil {
		return d, nil
	}
	target, err := v.Lineage.Read(ctx, spread.Namespace, workload.TargetOf(spread))
	if err != nil {
		return nil, err
	}
	if target == nil {
		return nil, fmt.Errorf("%s/%s, the workload of WorkloadSpread %s, does not exist", spread.Spec.TargetReference.Kind, spread.Spec.TargetReference.Name, spread.Name)
	}
	if d.replicas, err = v.Replicas(ctx, spread, target); err != nil {
		return nil, err
	}
	var pods []subset.Pod
	for _, pod := range v.Pods {
		if pod.Namespace != spread.Namespace {
			continue
		}
		of, err := v.SpreadOf(ctx, pod)
		if err != nil {
			return nil, err
		}
		if of != nil && of.Name == spread.Name {
			d.pods = append(d.pods, pod)
			pods = append(pods, subset.Observe(pod, v.Node(pod.Spec.NodeName)))
		}
	}
	d.tally = d.policy.Count(pods, spread.Name)
	return d, nil
}
