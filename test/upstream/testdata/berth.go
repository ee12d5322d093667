// Package util gets this file by an overlay. It adds Berth's plugins to each profile of each scheduler that a test makes, as manifests/scheduler/scheduler-config.yaml does.
package util

import (
	"maps"
	"slices"

	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"github.com/berth-project/berth/pkg/plugins/scheduling/workloadspread"
)

func init() { scheduler.Extend = withBerth }

func withBerth(profiles []config.KubeSchedulerProfile, registry frameworkruntime.Registry) (
	[]config.KubeSchedulerProfile, frameworkruntime.Registry, func(*scheduler.Scheduler)) {
	family := &workloadspread.Family{}
	extended := frameworkruntime.Registry{workloadspread.Name: family.Spread, workloadspread.GateName: family.Gate}
	maps.Copy(extended, registry)
	with := make([]config.KubeSchedulerProfile, len(profiles))
	for i := range profiles {
		with[i] = *profiles[i].DeepCopy()
		if with[i].Plugins != nil {
			add(with[i].Plugins)
		}
	}
	return with, extended, func(made *scheduler.Scheduler) {
		for name, profile := range made.Profiles {
			if !slices.ContainsFunc(profile.ListPlugins().Filter.Enabled, func(p config.Plugin) bool { return p.Name == workloadspread.Name }) {
				panic("profile " + name + " has no plugin of Berth")
			}
		}
		family.Install(made)
	}
}

// add adds the plugins to a profile. A profile that disables preemption keeps it disabled.
func add(plugins *config.Plugins) {
	spread := config.Plugin{Name: workloadspread.Name}
	replaced := func(p config.Plugin) bool {
		return p.Name == names.DefaultPreemption || p.Name == names.SchedulingGates
	}
	plugins.MultiPoint.Enabled = append(slices.DeleteFunc(plugins.MultiPoint.Enabled, replaced), spread, config.Plugin{Name: workloadspread.GateName})
	plugins.PreEnqueue.Enabled = slices.DeleteFunc(plugins.PreEnqueue.Enabled, replaced)
	plugins.PostFilter.Enabled = slices.DeleteFunc(plugins.PostFilter.Enabled, replaced)
	if slices.ContainsFunc(plugins.PostFilter.Disabled, func(p config.Plugin) bool { return p.Name == names.DefaultPreemption || p.Name == "*" }) {
		plugins.PostFilter.Disabled = append(plugins.PostFilter.Disabled, spread)
	}
	plugins.Filter.Enabled = append([]config.Plugin{spread}, plugins.Filter.Enabled...)
	plugins.Score.Enabled = append(plugins.Score.Enabled, config.Plugin{Name: workloadspread.Name, Weight: 2})
	bind := &plugins.Bind
	isDefault := func(p config.Plugin) bool { return p.Name == names.DefaultBinder }
	keepsDefault := !slices.ContainsFunc(bind.Disabled, func(p config.Plugin) bool { return isDefault(p) || p.Name == "*" })
	bind.Enabled = append([]config.Plugin{spread}, bind.Enabled...)
	if keepsDefault {
		bind.Disabled = append(bind.Disabled, config.Plugin{Name: names.DefaultBinder})
		if !slices.ContainsFunc(bind.Enabled, isDefault) {
			bind.Enabled = append(bind.Enabled, config.Plugin{Name: names.DefaultBinder})
		}
	}
}
