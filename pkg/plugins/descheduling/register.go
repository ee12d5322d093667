// Package descheduling lists Berth's descheduling plugins.
package descheduling

import (
	"sigs.k8s.io/descheduler/pkg/framework/pluginregistry"

	"github.com/berth-project/berth/pkg/descheduler/cycle"
)

// Names of the plugins in descheduler policies.
const (
	evictUnschedulableSubsetPods = "EvictUnschedulableSubsetPods"
	enforceSubsetMaxReplicas     = "EnforceSubsetMaxReplicas"
	rebalanceToPreferredSubset   = "RebalanceToPreferredSubset"
	subsetEvictor                = "SubsetEvictor"
)

// Register makes all of them known. They share the world.
func Register(world *cycle.World, registry pluginregistry.Registry) {
	addStrategy(evictUnschedulableSubsetPods, &EvictUnschedulableSubsetPodsArgs{}, world, registry)
	addStrategy(enforceSubsetMaxReplicas, &EnforceSubsetMaxReplicasArgs{}, world, registry)
	addStrategy(rebalanceToPreferredSubset, &RebalanceToPreferredSubsetArgs{}, world, registry)
	addEvictor(world, registry)
}
