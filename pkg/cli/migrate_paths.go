package cli

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/workload"
)

const (
	kruiseConfiguration = "kruise-configuration"
	// kruiseKinds is the key of the list of custom kinds in kruiseConfiguration.
	kruiseKinds = "WorkloadSpread_Watch_Custom_Workload_WhiteList"
)

// pathsOf are the paths to the replicas of custom kinds, as OpenKruise is configured. Berth reads the scale subresource of a kind, so a spread needs a path
// only where OpenKruise has one. The other fields of the list are about owners, which Berth finds without a list.
func pathsOf(configuration *corev1.ConfigMap) (map[schema.GroupKind]string, error) {
	paths := map[schema.GroupKind]string{}
	text := configuration.Data[kruiseKinds]
	if text == "" {
		return paths, nil
	}
	var list struct {
		Workloads []struct {
			Group, Kind, ReplicasPath string
		}
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return nil, fmt.Errorf("reading %s in ConfigMap %s/%s: %w", kruiseKinds, kruiseNamespace, kruiseConfiguration, err)
	}
	for _, one := range list.Workloads {
		if one.ReplicasPath != "" {
			paths[schema.GroupKind{Group: one.Group, Kind: one.Kind}] = one.ReplicasPath
		}
	}
	return paths, nil
}

// withoutPath are the spreads of kinds for which OpenKruise has a path to the replicas, and which name none themselves, with that path.
func (c *migrateCommand) withoutPath(ctx context.Context) (spreads []v1beta1.WorkloadSpread, paths []string, _ error) {
	configuration := &corev1.ConfigMap{}
	if err := c.cluster.Get(ctx, client.ObjectKey{Namespace: kruiseNamespace, Name: kruiseConfiguration}, configuration); err != nil {
		return nil, nil, client.IgnoreNotFound(err)
	}
	of, err := pathsOf(configuration)
	if err != nil || len(of) == 0 {
		return nil, nil, err
	}
	var list v1beta1.WorkloadSpreadList
	if err := c.cluster.List(ctx, &list); err != nil {
		return nil, nil, err
	}
	for _, spread := range list.Items {
		filter := spread.Spec.TargetFilter
		if path := of[workload.TargetOf(&spread).Kind]; path != "" && (filter == nil || len(filter.ReplicasPathList) == 0) {
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
		console.Count(len(spreads), "spread"), kruiseConfiguration), nil
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
