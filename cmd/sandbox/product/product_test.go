package product

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/sandbox"
)

func TestSchedulerConfigDependsOnTheInstance(t *testing.T) {
	const given = `
kind: KubeSchedulerConfiguration
clientConnection: {qps: 7, kubeconfig: elsewhere}
leaderElection: {leaderElect: false, resourceName: mine}
profiles: [{schedulerName: mine}]
`
	got, err := schedulerConfigFor([]byte(given), "here", true)
	if err != nil {
		t.Fatal(err)
	}
	const want = `
kind: KubeSchedulerConfiguration
clientConnection: {qps: 7, kubeconfig: here}
leaderElection: {leaderElect: true, resourceName: mine}
profiles: [{schedulerName: mine}]
`
	if diff := cmp.Diff(parse(t, want), parse(t, string(got))); diff != "" {
		t.Errorf("scheduler config (-want +got):\n%s", diff)
	}
}

func TestComponentsRunAsTheirServiceAccounts(t *testing.T) {
	config, err := Compose(sandbox.Config{}, Options{Replicas: map[string]int{Scheduler: 2}})
	if err != nil {
		t.Fatal(err)
	}
	type identity struct {
		Name, User string
		Replicas   int
	}
	var got []identity
	for _, component := range config.Components {
		got = append(got, identity{component.Name, component.User, component.Replicas})
	}
	want := []identity{
		{Scheduler, "system:serviceaccount:berth-system:berth-scheduler", 2},
		{Controller, "system:serviceaccount:berth-system:berth-controller", 1},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("components (-want +got):\n%s", diff)
	}
}

func TestWhatCannotBeComposedIsExplained(t *testing.T) {
	for name, options := range map[string]Options{
		"replicas of something else":     {Replicas: map[string]int{"other": 1}},
		"no replicas":                    {Replicas: map[string]int{Scheduler: 0}},
		"a scheduler config of no kind":  {SchedulerConfig: []byte("{}")},
		"a scheduler config, but broken": {SchedulerConfig: []byte("kind: [")},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Compose(sandbox.Config{}, options); err == nil {
				t.Error("want an error")
			}
		})
	}
}

func TestTheWebhookIsAskedOnThisMachine(t *testing.T) {
	content, err := webhookConfigurationAt(12345)
	if err != nil {
		t.Fatal(err)
	}
	webhooks, _ := parse(t, string(content))["webhooks"].([]any)
	if len(webhooks) == 0 {
		t.Fatalf("no webhooks in\n%s", content)
	}
	for _, w := range webhooks {
		want := map[string]any{"url": "https://localhost:12345/validate-workloadspread"}
		if diff := cmp.Diff(want, w.(map[string]any)["clientConfig"]); diff != "" {
			t.Errorf("clientConfig (-want +got):\n%s", diff)
		}
	}
}

func parse(t *testing.T, text string) map[string]any {
	t.Helper()
	var fields map[string]any
	if err := yaml.Unmarshal([]byte(text), &fields); err != nil {
		t.Fatal(err)
	}
	return fields
}
