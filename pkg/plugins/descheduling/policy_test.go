package descheduling

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/descheduler/pkg/api"
	framework "sigs.k8s.io/descheduler/pkg/descheduler"
	"sigs.k8s.io/descheduler/pkg/framework/pluginregistry"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/manifests"
)

// load reads a policy as the command does.
func load(t *testing.T, text string) (*api.DeschedulerPolicy, error) {
	t.Helper()
	registry := pluginregistry.NewRegistry()
	Register(nil, registry)
	framework.RegisterDefaultPlugins(registry)
	pluginregistry.PluginRegistry = registry // the framework decodes by it
	path := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return framework.LoadPolicyConfig(path, fake.NewClientset(), registry)
}

func deployedPolicy(t *testing.T) string {
	t.Helper()
	var object corev1.ConfigMap
	if err := yaml.UnmarshalStrict(manifests.DeschedulerPolicy, &object); err != nil {
		t.Fatal(err)
	}
	return object.Data["policy.yaml"]
}

func TestTheDeployedPolicySaysTheDefaults(t *testing.T) {
	policy, err := load(t, deployedPolicy(t))
	if err != nil {
		t.Fatal(err)
	}
	bare, err := load(t, policyWith("{}"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{evictUnschedulableSubsetPods, enforceSubsetMaxReplicas, rebalanceToPreferredSubset, subsetEvictor} {
		deployed, defaults := argsOf(t, policy, name), argsOf(t, bare, name)
		if deployed != defaults {
			t.Errorf("%s is deployed with\n%s\nand its defaults are\n%s", name, deployed, defaults)
		}
	}
}

func argsOf(t *testing.T, policy *api.DeschedulerPolicy, name string) string {
	t.Helper()
	config, _ := framework.GetPluginConfig(name, policy.Profiles[0].PluginConfigs)
	if config == nil {
		t.Fatalf("%s has no entry", name)
	}
	text, err := yaml.Marshal(config.Args)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// policyWith is a policy with all plugins, each with the same args.
func policyWith(args string) string {
	text := "apiVersion: descheduler/v1alpha2\nkind: DeschedulerPolicy\nprofiles:\n- name: berth\n  pluginConfig:\n"
	for _, name := range []string{evictUnschedulableSubsetPods, enforceSubsetMaxReplicas, rebalanceToPreferredSubset, subsetEvictor} {
		text += "  - {name: " + name + ", args: " + args + "}\n"
	}
	return text
}

// Case 33: unknown fields are errors, and zero values are valid. The command reports all mistakes at once with their
// paths.
func TestMistakesInArgsAreNamed(t *testing.T) {
	one := func(name, args string) string {
		return "apiVersion: descheduler/v1alpha2\nkind: DeschedulerPolicy\nprofiles:\n- name: berth\n  pluginConfig:\n  - {name: " + name + ", args: " + args + "}\n"
	}
	for name, tc := range map[string]struct {
		policy string
		want   []string
	}{
		"an unknown field":                    {one(evictUnschedulableSubsetPods, "{maxPerSubsets: 3}"), []string{`unknown field "maxPerSubsets"`}},
		"an unknown field of an inner object": {one(enforceSubsetMaxReplicas, "{backoff: {bass: 3s}}"), []string{`unknown field "backoff.bass"`}},
		"a wrong type":                        {one(rebalanceToPreferredSubset, "{cooldown: 5}"), []string{"cooldown"}},
		"several mistakes":                    {one(enforceSubsetMaxReplicas, "{settleTime: 48h, maxUnavailable: 0}"), []string{"settleTime: Invalid value", "maxUnavailable: Invalid value"}},
		"unschedulable":                       {one(evictUnschedulableSubsetPods, `{schedulerNames: [""], skewTolerance: 1h, backoff: {base: 1ms}}`), []string{"schedulerNames[0]", "skewTolerance", "backoff.base"}},
		"rebalance":                           {one(rebalanceToPreferredSubset, "{maxMovesPerSpread: 0, minResidence: -1s, stabilizationWindow: 25h}"), []string{"maxMovesPerSpread", "minResidence", "stabilizationWindow"}},
		"the filter":                          {one(subsetEvictor, "{namespaces: {include: [a], exclude: [b]}}"), []string{"namespaces"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := load(t, tc.policy)
			if err == nil {
				t.Fatal("the policy was taken")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want %q in it", err, want)
				}
			}
		})
	}
}

func TestEveryPluginIsDocumented(t *testing.T) {
	registry := pluginregistry.NewRegistry()
	Register(nil, registry)
	for name := range sets.KeySet(registry) {
		readme, err := os.ReadFile(filepath.Join(strings.ToLower(name), "README.md"))
		if err != nil || !strings.HasPrefix(string(readme), "# "+name+"\n") {
			t.Errorf("%s: no README with its name: %v", name, err)
		}
	}
}
