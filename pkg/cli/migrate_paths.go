package cli

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/workload"
)

// withoutPath are the spreads of kinds for which OpenKruise has a path to the replicas, and which name none themselves, with that path.
func (c *migrateCommand) withoutPath(ctx context.Context) (spreads []v1beta1.WorkloadSpread, paths []string, _ error) {
	configuration := &corev1.ConfigMap{}
	if err := c.cluster.Get(ctx, workload.KruiseConfiguration, configuration); err != nil {
		return nil, nil, client.IgnoreNotFound(err)
	}
	kinds, err := workload.ReadKruiseKinds(configuration)
	if err != nil || len(kinds.Workloads) == 0 {
		return nil, nil, err
	}
	var list v1beta1.WorkloadSpreadList
	if err := c.cluster.List(ctx, &list); err != nil {
		return nil, nil, err
	}
	for _, spread := range list.Items {
		filter, ref := spread.Spec.TargetFilter, spread.Spec.TargetReference
		if path := kinds.PathOf(schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)); path != "" && (filter == nil || len(filter.ReplicasPathList) == 0) {
			spreads, paths = append(spreads, spread), append(paths, path)
		}
	}
	return spreads, paths, nil
}

func (c *migrateCommand) checkPaths(ctx context.Context) (string, error) {
	spreads, _, err := c.withoutPath(ctx)
	if err != nil || len(spreads) == 0 {
		return "", err
	}
	return fmt.Sprintf("%s of custom kinds get the path to their replicas, from ConfigMap %s: write spec.targetFilter.replicasPathList to their manifests too",
		console.Count(len(spreads), "spread"), workload.KruiseConfiguration.Name), nil
}

func (c *migrateCommand) writePaths(ctx context.Context) error {
	spreads, paths, err := c.withoutPath(ctx)
	if err != nil {
		return err
	}
	for i := range spreads {
		spread := &spreads[i]
		before := spread.DeepCopy()
		if spread.Spec.TargetFilter == nil {
			spread.Spec.TargetFilter = &v1beta1.TargetFilter{}
		}
		spread.Spec.TargetFilter.ReplicasPathList = []string{paths[i]}
		patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
		if err := c.cluster.Patch(ctx, spread, patch, client.FieldOwner(fieldOwner)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("writing the path of spread %s/%s: %w", spread.Namespace, spread.Name, err)
		}
	}
	return nil
}
