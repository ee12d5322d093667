package workloadspread

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
)

func TestAConfigurationThatCannotWorkIsRefusedWithItsPlaceAndWhatToDo(t *testing.T) {
	const (
		profiles     = "profiles:\n"
		multiPoint   = "    multiPoint:\n      enabled:\n"
		filter       = "    filter:\n"
		pluginConfig = "  pluginConfig:\n"
		preemption   = "      disabled:\n      - name: DefaultPreemption\n"
		bind         = "    bind:\n      disabled:\n      - name: DefaultBinder\n      enabled:\n"
		binders      = "      - name: WorkloadSpread\n      - name: DefaultBinder\n"
		gate         = "      - name: WorkloadSpreadGate\n"
	)
	// needed is the error of an extension point without WorkloadSpread.
	needed := func(point, does string) string {
		return "profiles[berth-scheduler].plugins." + point + ": Required value: here WorkloadSpread " + does + "; enable it under multiPoint, and do not disable it here"
	}
	preempts := func(profile, point string) string {
		return "profiles[" + profile + "].plugins." + point + `: Invalid value: "DefaultPreemption": WorkloadSpread asks it when a pod has tried all of its subsets, ` +
			"and in its place for all other pods; disable it under multiPoint"
	}
	const holds = "profiles[berth-scheduler].plugins.preEnqueue: Required value: nothing holds pods with scheduling gates here; " +
		"enable WorkloadSpreadGate under multiPoint, and do not disable it here"
	const first = `profiles[berth-scheduler].plugins.bind: Invalid value: "DefaultBinder": it would bind the pods of spreads without their subset; ` +
		"disable it here and enable it again after WorkloadSpread"
	const bindVerb = `extenders[0].bindVerb: Invalid value: "bind": an extender that binds pods does not record their subset, so quotas break; ` +
		"remove bindVerb, so that WorkloadSpread binds"
	const binder = `extenders: [{urlPrefix: "http://localhost:1", bindVerb: bind}]` + "\n"
	tests := map[string]struct {
		config []string // see configured
		gates  map[string]bool
		want   []string
	}{
		"as shipped":                        {},
		"without scores":                    {config: []string{filter, "    preScore: {disabled: [{name: '*'}]}\n" + filter}},
		"without PodTopologySpread":         {config: []string{preemption, preemption + "      - name: PodTopologySpread\n"}},
		"with stock arguments":              {config: []string{pluginConfig, pluginConfig + "  - {name: DefaultPreemption, args: {minCandidateNodesAbsolute: 100}}\n"}},
		"with an extender that filters":     {config: []string{profiles, "extenders: [{urlPrefix: 'http://localhost:1', filterVerb: filter, prioritizeVerb: rank, weight: 1, preemptVerb: preempt}]\n" + profiles}},
		"with a second profile of the kind": {config: []string{profiles, profiles + "- schedulerName: stock\n"}},

		"an extender that binds": {config: []string{profiles, binder + profiles}, want: []string{bindVerb}},
		"a gate": {gates: map[string]bool{"SchedulerPopFromBackoffQ": false}, want: []string{
			"--feature-gates[SchedulerPopFromBackoffQ]: Invalid value: false: a pod would wait up to podMaxBackoffSeconds for each subset that has no node for it; leave the gate on"}},
		"a gate that is off": {gates: map[string]bool{"SchedulerAsyncAPICalls": true}, want: []string{
			"--feature-gates[SchedulerAsyncAPICalls]: Invalid value: true: WorkloadSpread sends each bind at once, and the scheduler would write the pod's condition " +
				"at any time before or after it; leave the gate off"}},
		"WorkloadSpread in no profile": {
			config: []string{"      - name: WorkloadSpread\n        weight: 2\n", "", "      - name: WorkloadSpread\n", ""},
			want:   []string{"profiles: Required value: no profile enables WorkloadSpread, so no pod would get its subset; enable it under plugins.multiPoint"}},
		"WorkloadSpread not at PreEnqueue": {
			config: []string{filter, "    preEnqueue: {disabled: [{name: WorkloadSpread}]}\n" + filter},
			want:   []string{needed("preEnqueue", "holds pods while their preemption is under way")}},
		"WorkloadSpread not at PreFilter": {
			config: []string{filter, "    preFilter: {disabled: [{name: WorkloadSpread}]}\n" + filter}, want: []string{needed("preFilter", "chooses the subset")}},
		"WorkloadSpread not at PostFilter": {
			config: []string{filter, "    postFilter: {disabled: [{name: WorkloadSpread}]}\n" + filter}, want: []string{needed("postFilter", "goes on to the next subset")}},
		"WorkloadSpread not at Reserve": {
			config: []string{filter, "    reserve: {disabled: [{name: WorkloadSpread}]}\n" + filter}, want: []string{needed("reserve", "holds the quotas")}},
		"WorkloadSpread not at Bind": {
			config: []string{binders, "      - name: DefaultBinder\n", "      disabled:\n      - name: DefaultBinder\n", "      disabled:\n      - name: DefaultBinder\n      - name: WorkloadSpread\n"},
			want:   []string{needed("bind", "writes the subset")}},
		"no section for Bind":   {config: []string{bind + binders, ""}, want: []string{first}},
		"DefaultBinder by name": {config: []string{bind + binders, "    bind: {enabled: [{name: DefaultBinder}, {name: WorkloadSpread}]}\n"}, want: []string{first}},
		"no binder for other pods": {
			config: []string{binders, "      - name: WorkloadSpread\n"}, want: []string{
				"profiles[berth-scheduler].plugins.bind: Required value: WorkloadSpread leaves pods without a spread to the next plugin; enable DefaultBinder after it"}},
		"DefaultPreemption": {
			config: []string{preemption, "      disabled:\n"}, want: []string{preempts("berth-scheduler", "preEnqueue"), preempts("berth-scheduler", "postFilter")}},
		"arguments of DefaultPreemption": {
			config: []string{pluginConfig, pluginConfig + "  - {name: DefaultPreemption, args: {minCandidateNodesAbsolute: 5}}\n"}, want: []string{
				"profiles[berth-scheduler].pluginConfig[DefaultPreemption].args: Forbidden: WorkloadSpread preempts with the stock arguments; remove them"}},
		"PodTopologySpread after WorkloadSpread": {
			config: []string{filter, "    preFilter: {enabled: [{name: WorkloadSpread}]}\n" + filter}, want: []string{
				`profiles[berth-scheduler].plugins.preFilter: Invalid value: "PodTopologySpread": WorkloadSpread must come after PodTopologySpread, because it has it count within the pod's ` +
					"subset; do not name WorkloadSpread here, or name PodTopologySpread before it"}},
		"WorkloadSpreadGate not at PreEnqueue": {
			config: []string{filter, "    preEnqueue: {disabled: [{name: WorkloadSpreadGate}]}\n" + filter}, want: []string{holds,
				"profiles[berth-scheduler].plugins.preEnqueue: Required value: WorkloadSpreadGate is enabled at other points but not here, where it holds pods " +
					"that wait for a slot; such pods would be retried without end; enable it here too, or nowhere"}},
		"without WorkloadSpreadGate":                           {config: []string{gate, ""}, want: []string{holds}},
		"SchedulingGates, as before there were gated pods":     {config: []string{"      - name: SchedulingGates\n", ""}},
		"SchedulingGates in place of the gate of waiting pods": {config: []string{"      - name: SchedulingGates\n", "", gate, ""}},
		"everything at once": {
			config: []string{preemption, "      disabled:\n", profiles, binder + profiles + "- schedulerName: other\n  plugins: {score: {enabled: [{name: WorkloadSpread}]}}\n" +
				"  pluginConfig: [{name: WorkloadSpread, args: {bindTimeout: 5s, observationTimeout: 2s}}]\n"},
			want: []string{
				bindVerb, preempts("other", "preEnqueue"), preempts("other", "postFilter"),
				strings.ReplaceAll(needed("preEnqueue", "holds pods while their preemption is under way"), "berth-scheduler", "other"),
				strings.ReplaceAll(needed("preFilter", "chooses the subset"), "berth-scheduler", "other"),
				strings.ReplaceAll(needed("filter", "keeps pods on the nodes of their subset"), "berth-scheduler", "other"),
				strings.ReplaceAll(needed("postFilter", "goes on to the next subset"), "berth-scheduler", "other"),
				strings.ReplaceAll(needed("reserve", "holds the quotas"), "berth-scheduler", "other"),
				strings.ReplaceAll(needed("bind", "writes the subset"), "berth-scheduler", "other"),
				preempts("berth-scheduler", "preEnqueue"), preempts("berth-scheduler", "postFilter"),
			}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for gate, on := range tc.gates {
				featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, featuregate.Feature(gate), on)
			}
			config := configured(t, tc.config...)
			made, family := newScheduler(t, config)
			var got []string
			var all utilerrors.Aggregate
			if err := family.Check(config, made.Profiles); errors.As(err, &all) {
				for _, err := range all.Errors() {
					got = append(got, err.Error())
				}
			}
			sortStrings := cmpopts.SortSlices(func(a, b string) bool { return a < b })
			if diff := cmp.Diff(tc.want, got, sortStrings); diff != "" {
				t.Errorf("errors (-want +got):\n%s", diff)
			}
		})
	}
}
