package workload

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
)

func OfDeployment(d *appsv1.Deployment) int32   { return orOne(d.Spec.Replicas) }
func OfReplicaSet(r *appsv1.ReplicaSet) int32   { return orOne(r.Spec.Replicas) }
func OfStatefulSet(s *appsv1.StatefulSet) int32 { return orOne(s.Spec.Replicas) }
func OfJob(j *batchv1.Job) int32                { return orOne(j.Spec.Parallelism) }
func AtPaths(object map[string]any, paths []string) (int32, error) { return 0, nil }
func Wins(a, b *v1alpha1.WorkloadSpread) bool {
	return a.CreationTimestamp.Before(&b.CreationTimestamp) || a.CreationTimestamp.Equal(&b.CreationTimestamp) && a.Name < b.Name
}
func orOne(n *int32) int32 {
	if n == nil {
		return 1
	}
	return *n
}
