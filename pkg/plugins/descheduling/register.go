// Package descheduling lists Berth's descheduling plugins.
package descheduling

import (
	"sigs.k8s.io/descheduler/pkg/framework/pluginregistry"

	"github.com/berth-project/berth/pkg/descheduler/cycle"
	"github.com/berth-project/berth/pkg/plugins/descheduling/enforcesubsetmaxreplicas"
	"github.com/berth-project/berth/pkg/plugins/descheduling/evictunschedulablesubsetpods"
	"github.com/berth-project/berth/pkg/plugins/descheduling/rebalancetopreferredsubset"
	"github.com/berth-project/berth/pkg/plugins/descheduling/subsetevictor"
)

// AddTo makes all of them known to a descheduler of your own. Call it after the framework's SetupPlugins, which empties the registry.
func AddTo(registry pluginregistry.Registry) { Register(cycle.NewWorld(cycle.Options{}), registry) }

// Register makes all of them known. They share the world.
func Register(world *cycle.World, registry pluginregistry.Registry) {
	evictunschedulablesubsetpods.Register(world, registry)
	enforcesubsetmaxreplicas.Register(world, registry)
	rebalancetopreferredsubset.Register(world, registry)
	subsetevictor.Register(world, registry)
}
