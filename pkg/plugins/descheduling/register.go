// Package descheduling lists Berth's descheduling plugins.
package descheduling

import (
	"sigs.k8s.io/descheduler/pkg/framework/pluginregistry"

	"github.com/berth-project/berth/pkg/descheduler/cycle"
)

// Names of the plugins in descheduler policies.
const (
	EvictUnschedulableSubsetPods = "EvictUnschedulableSubsetPods"
	EnforceSubsetMaxReplicas     = "EnforceSubsetMaxReplicas"
	RebalanceToPreferredSubset   = "RebalanceToPreferredSubset"
	SubsetEvictor                = "SubsetEvictor"
)

// Register makes all of them known. They share the world.
func Register(world *cycle.World, registry pluginregistry.Registry) {
	addStrategy(EvictUnschedulableSubsetPods, &EvictUnschedulableSubsetPodsArgs{}, world, registry)
	addStrategy(EnforceSubsetMaxReplicas, &EnforceSubsetMaxReplicasArgs{}, world, registry)
	addStrategy(RebalanceToPreferredSubset, &RebalanceToPreferredSubsetArgs{}, world, registry)
	addEvictor(world, registry)
}
