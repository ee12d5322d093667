package workloadspread

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/features"
	schedulerconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/profile"
)

// Check returns everything in the configuration of a scheduler that keeps the plugins from working, each with its place and what to do. A program
// calls it when the scheduler is built, for instance by app.Setup, and runs the scheduler only if the result is nil.
func (f *Family) Check(config *schedulerconfig.KubeSchedulerConfiguration, profiles profile.Map) error {
	var errs field.ErrorList
	if !utilfeature.DefaultFeatureGate.Enabled(features.SchedulerPopFromBackoffQ) {
		errs = append(errs, field.Invalid(field.NewPath("--feature-gates").Key(string(features.SchedulerPopFromBackoffQ)), false,
			"a pod would wait up to podMaxBackoffSeconds for each subset that has no node for it; leave the gate on"))
	}
	if utilfeature.DefaultFeatureGate.Enabled(features.SchedulerAsyncAPICalls) {
		errs = append(errs, field.Invalid(field.NewPath("--feature-gates").Key(string(features.SchedulerAsyncAPICalls)), true,
			"WorkloadSpread sends each bind at once, and the scheduler would write the pod's condition at any time before or after it; leave the gate off"))
	}
	for i := range config.Extenders {
		if verb := config.Extenders[i].BindVerb; verb != "" {
			errs = append(errs, field.Invalid(field.NewPath("extenders").Index(i).Child("bindVerb"), verb,
				"an extender that binds pods does not record their subset, so quotas break; remove bindVerb, so that WorkloadSpread binds"))
		}
	}
	found := false
	for i := range config.Profiles {
		p := &config.Profiles[i]
		enabled, path := pointsOf(profiles[p.SchedulerName]), field.NewPath("profiles").Key(p.SchedulerName)
		if !slices.ContainsFunc(enabled, func(at point) bool { return at.has(Name) }) {
			continue
		}
		found = true
		errs = append(errs, checkPoints(path.Child("plugins"), enabled)...)
		errs = append(errs, checkPreemptionArgs(path.Child("pluginConfig"), p.PluginConfig)...)
		if _, gated := f.gated.Load(p.SchedulerName); gated && !slices.ContainsFunc(enabled, func(at point) bool { return at.has(GateName) }) {
			errs = append(errs, field.Required(path.Child("plugins", "preEnqueue"),
				"WorkloadSpreadGate is enabled at other points but not here, where it holds pods that wait for a slot; such pods would be retried without end; enable it here too, or nowhere"))
		}
	}
	if !found {
		errs = append(errs, field.Required(field.NewPath("profiles"), "no profile enables WorkloadSpread, so no pod would get its subset; enable it under plugins.multiPoint"))
	}
	return errs.ToAggregate()
}

// point is an extension point of a profile.
type point struct {
	name    string
	plugins []schedulerconfig.Plugin // in the order in which they are called
	// need is what only WorkloadSpread does at this point. Empty if the scheduler can do without.
	need string
}

func pointsOf(profile framework.Framework) []point {
	plugins := profile.ListPlugins()
	return []point{
		{name: "preEnqueue", plugins: plugins.PreEnqueue.Enabled, need: "holds pods while their preemption is under way"},
		{name: "preFilter", plugins: plugins.PreFilter.Enabled, need: "chooses the subset"},
		{name: "filter", plugins: plugins.Filter.Enabled, need: "keeps pods on the nodes of their subset"},
		{name: "postFilter", plugins: plugins.PostFilter.Enabled, need: "goes on to the next subset"},
		{name: "preScore", plugins: plugins.PreScore.Enabled},
		{name: "score", plugins: plugins.Score.Enabled},
		{name: "reserve", plugins: plugins.Reserve.Enabled, need: "holds the quotas"},
		{name: "bind", plugins: plugins.Bind.Enabled, need: "writes the subset"},
	}
}

// at is the position of a plugin at this point, -1 if it is not enabled there.
func (p *point) at(name string) int {
	return slices.IndexFunc(p.plugins, func(plugin schedulerconfig.Plugin) bool { return plugin.Name == name })
}

func (p *point) has(name string) bool { return p.at(name) >= 0 }

// countsTooLate is true if PodTopologySpread runs after WorkloadSpread. Its count over all subsets would then be the last one.
func (p *point) countsTooLate() bool {
	return p.name == "preFilter" && p.has(Name) && p.at(names.PodTopologySpread) > p.at(Name)
}

const countsTooLate = "WorkloadSpread must come after PodTopologySpread, because it has it count within the pod's subset; " +
	"do not name WorkloadSpread here, or name PodTopologySpread before it"

func checkPoints(path *field.Path, enabled []point) (errs field.ErrorList) {
	for i := range enabled {
		at := &enabled[i]
		path := path.Child(at.name)
		ours := at.at(Name)
		if ours < 0 && at.need != "" {
			errs = append(errs, field.Required(path, "here WorkloadSpread "+at.need+"; enable it under multiPoint, and do not disable it here"))
		}
		if at.name == "preEnqueue" && !at.has(GateName) && !at.has(names.SchedulingGates) {
			errs = append(errs, field.Required(path, "nothing holds pods with scheduling gates here; enable WorkloadSpreadGate under multiPoint, and do not disable it here"))
		}
		if at.has(names.SchedulingGates) { // as in every configuration from before there was binding: Gated
			klog.Background().Info("Pods of WorkloadSpreads with binding: Gated will wait for ever, because the stock plugin holds all pods with a scheduling gate; "+
				"disable it under multiPoint, and enable WorkloadSpreadGate, which holds the gates of others", "plugin", names.SchedulingGates, "at", path)
		}
		if at.has(names.DefaultPreemption) {
			errs = append(errs, field.Invalid(path, names.DefaultPreemption,
				"WorkloadSpread asks it when a pod has tried all of its subsets, and in its place for all other pods; disable it under multiPoint"))
		}
		if at.countsTooLate() {
			errs = append(errs, field.Invalid(path, names.PodTopologySpread, countsTooLate))
		}
		if at.name != "bind" {
			continue
		}
		if ours > 0 {
			errs = append(errs, field.Invalid(path, at.plugins[0].Name,
				"it would bind the pods of spreads without their subset; disable it here and enable it again after WorkloadSpread"))
		}
		if len(at.plugins) == 1 && ours == 0 {
			errs = append(errs, field.Required(path, "WorkloadSpread leaves pods without a spread to the next plugin; enable DefaultBinder after it"))
		}
	}
	return errs
}

// checkPreemptionArgs refuses arguments that nothing would read.
func checkPreemptionArgs(path *field.Path, configs []schedulerconfig.PluginConfig) (errs field.ErrorList) {
	for i := range configs {
		args, ok := configs[i].Args.(*schedulerconfig.DefaultPreemptionArgs)
		stock := defaultPreemptionArgs()
		if ok && (args.MinCandidateNodesPercentage != stock.MinCandidateNodesPercentage || args.MinCandidateNodesAbsolute != stock.MinCandidateNodesAbsolute) {
			errs = append(errs, field.Forbidden(path.Key(configs[i].Name).Child("args"), "WorkloadSpread preempts with the stock arguments; remove them"))
		}
	}
	return errs
}
