package fit

import (
	"context"
	"fmt"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	schedulermetrics "k8s.io/kubernetes/pkg/scheduler/metrics"
)

// Filters are those of kube-scheduler, on a picture of the cluster that is yet to be taken.
type Filters struct {
	framework framework.Framework
	picture   *picture
}

// leftOut are plugins that filter by what this package has no part in: devices, whose allocation is made up while a pod is scheduled, and preemption.
// Pods with device claims are Unknown.
var leftOut = map[string]bool{names.DynamicResources: true, names.DefaultPreemption: true, names.GangScheduling: true}

// NewFilters makes the filters. They register their informers with the factory, which the caller starts; they must have synced before a pod is
// placed. The context bounds the life of the filters.
func NewFilters(ctx context.Context, client kubernetes.Interface, factory informers.SharedInformerFactory) (*Filters, error) {
	schedulermetrics.Register() // the framework writes them
	defaults, err := latest.Default()
	if err != nil {
		return nil, fmt.Errorf("reading the scheduler's defaults: %w", err)
	}
	profile := defaults.Profiles[0]
	var enabled []config.Plugin
	for _, plugin := range profile.Plugins.MultiPoint.Enabled {
		if !leftOut[plugin.Name] {
			enabled = append(enabled, plugin)
		}
	}
	profile.Plugins.MultiPoint.Enabled = enabled
	p := newPicture()
	f, err := frameworkruntime.NewFramework(ctx, plugins.NewInTreeRegistry(), &profile,
		frameworkruntime.WithClientSet(client),
		frameworkruntime.WithInformerFactory(factory),
		frameworkruntime.WithSnapshotSharedLister(p),
		frameworkruntime.WithSharedCSIManager(nodevolumelimits.NewCSIManager(factory.Storage().V1().CSINodes().Lister())),
	)
	if err != nil {
		return nil, fmt.Errorf("making the scheduler's filters: %w", err)
	}
	return &Filters{framework: f, picture: p}, nil
}

// Close gives up what the filters hold.
func (f *Filters) Close() error { return f.framework.Close() }
