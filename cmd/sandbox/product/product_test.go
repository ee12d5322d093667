package product

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/internal/sandbox"
)

func TestSchedulerConfigDependsOnTheInstance(t *testing.T) {
	const given = `
kind: KubeSchedulerConfiguration
clientConnection: {qps: 7, kubeconfig: elsewhere}
leaderElection: {leaderElect: false, resourceName: mine}
profiles: [{schedulerName: mine}]
`
	got, err := schedulerConfigFor([]byte(given), "here")
	if err != nil {
		t.Fatal(err)
	}
	const want = `
kind: KubeSchedulerConfiguration
clientConnection: {qps: 7, kubeconfig: here}
leaderElection: {leaderElect: true, leaseDuration: 5s, renewDeadline: 4s, retryPeriod: 500ms, resourceName: mine}
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
		{DefaultScheduler, "system:kube-scheduler", 1},
		{Scheduler, "system:serviceaccount:berth-system:berth-scheduler", 2},
		{Controller, "system:serviceaccount:berth-system:berth-controller", 1},
		{United, "system:serviceaccount:berth-system:berth-united", 1},
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

func TestAStockSchedulerOfTheCallersOwnStays(t *testing.T) {
	own := sandbox.Component{Name: DefaultScheduler, Binary: "my-scheduler"}
	config, err := Compose(sandbox.Config{Components: []sandbox.Component{own}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	var binaries []string
	for _, component := range config.Components {
		binaries = append(binaries, component.Binary)
	}
	if diff := cmp.Diff([]string{"my-scheduler", "berth-scheduler", "berth-controller", "berth-controller"}, binaries); diff != "" {
		t.Errorf("binaries (-want +got):\n%s", diff)
	}
}

func TestTheWebhooksAreAskedOnThisMachine(t *testing.T) {
	contents, err := webhookConfigurationsAt(12345, Options{})
	if err != nil {
		t.Fatal(err)
	}
	var got []any
	for _, content := range contents {
		webhooks, _ := parse(t, string(content))["webhooks"].([]any)
		for _, w := range webhooks {
			got = append(got, w.(map[string]any)["clientConfig"])
		}
	}
	want := []any{
		map[string]any{"url": "https://localhost:12345"},
		map[string]any{"url": "https://localhost:12345"},
		map[string]any{"url": "https://localhost:12345"},
		map[string]any{"url": "https://localhost:12345"},
		map[string]any{"url": "https://localhost:12345"},
		map[string]any{"url": "https://localhost:12345"},
		map[string]any{"url": "https://localhost:12345"},
		map[string]any{"url": "https://localhost:12345"},
		map[string]any{"url": "https://localhost:12345"},
		map[string]any{"url": "https://localhost:12345"},
		map[string]any{"url": "https://localhost:12345"},
		map[string]any{"url": "https://localhost:12345"},
		map[string]any{"url": "https://localhost:12345"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("clientConfigs (-want +got):\n%s", diff)
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
