package controller

import (
	"context"
	"fmt"
	"strconv"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	"github.com/berth-project/berth/pkg/workload"
)

// readCosts are the controllers that look at the deletion cost of their pods when they scale down. For others it is not worth a write.
var readCosts = map[schema.GroupKind]bool{
	replicaSetKind: true,
	{Group: v1alpha1.GroupVersion.Group, Kind: "CloneSet"}: true,
}

// scalesByCost is true if the pod's controller reads its deletion cost.
func scalesByCost(pod *corev1.Pod) bool {
	owner := workload.ControllerOf(pod)
	return owner != nil && readCosts[owner.Kind]
}

// concurrentCostWrites is how many pods of one spread are written at a time.
const concurrentCostWrites = 8

// writeCosts gives the pods whose deletion cost is wrong the right one. It goes by the cache, so that a pod may be written twice; that is
// the same write again. A pod that is gone needs none.
func (r *reconciler) writeCosts(ctx context.Context, spread *v1alpha1.WorkloadSpread, f *facts) error {
	if f.policy == nil || f.older != "" || f.podsUnknown || f.workload.problem != nil {
		return nil // who is kept is not known
	}
	plan := f.policy.Plan(f.workload.replicas)
	var writes errgroup.Group
	writes.SetLimit(concurrentCostWrites)
	written := 0
	for _, want := range f.policy.Costs(&plan, f.pods, spread.Name) {
		if !f.scaledByCost[want.Pod.Owner] || want.Pod.Cost != nil && *want.Pod.Cost == want.Cost {
			continue
		}
		written++
		writes.Go(func() error { return r.writeCost(ctx, spread.Namespace, want.Pod.Name, want.Pod.UID, want.Cost) })
	}
	if written > 0 {
		klog.FromContext(ctx).V(2).Info("Wrote deletion costs", "spread", klog.KObj(spread), "pods", written)
	}
	return writes.Wait()
}

// writeCost relies on the UID in the patch, by which the API server refuses to write another pod of the same name.
func (r *reconciler) writeCost(ctx context.Context, namespace, name string, uid types.UID, cost int32) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"annotations":{%q:%q}}}`, uid, v1alpha1.PodDeletionCostAnnotation, strconv.Itoa(int(cost)))
	err := r.client.Patch(ctx, pod, client.RawPatch(types.MergePatchType, patch))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // it is another pod by now, or none
	}
	if err != nil {
		return fmt.Errorf("writing the deletion cost of pod %s: %w", name, err)
	}
	return nil
}
