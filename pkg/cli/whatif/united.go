package whatif

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/report"
	engine "github.com/berth-project/berth/pkg/whatif"
	"github.com/berth-project/berth/pkg/workload"
)

// explainUnited completes the report of a pod that no spread divides, if it belongs to a UnitedDeployment.
func (r *PodReport) explainUnited(ctx context.Context, cluster *console.Cluster, e *engine.Engine, pod *corev1.Pod) error {
	var united *workload.Owner
	_, err := e.Lineage.Climb(ctx, pod.Namespace, workload.ControllerOf(pod), func(owner workload.Owner) (bool, error) {
		if owner.Kind == v1beta1.Kind.GroupKind() {
			united = &owner
		}
		return united != nil, nil
	})
	if err != nil || united == nil {
		return err
	}
	ud := &v1beta1.UnitedDeployment{}
	if err := cluster.Get(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: united.Name}, ud); err != nil {
		if meta.IsNoMatchError(err) {
			return nil
		}
		return client.IgnoreNotFound(err)
	}
	r.United, r.Subset = ud.Name, pod.Labels[v1beta1.SubsetNameLabel]
	r.Why = fmt.Sprintf("it belongs to the child of subset %s of UnitedDeployment %s", r.Subset, r.United)
	if pod.Spec.NodeName != "" {
		return nil
	}
	r.Next = report.Of(ud, e.Now()).Next
	if pod.Labels[v1beta1.ReservedPodLabel] == "true" {
		r.Why += "; it found no node and is kept as a reservation, and another subset runs a pod in its place until it is ready"
	}
	return nil
}
