package workloadspread

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	fwk "k8s.io/kube-scheduler/framework"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	schedulerconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/profile"
)

// profileName is the profile of the shipped configuration.
const profileName = "berth-scheduler"

// configured returns the shipped configuration. Each pair of replacements is a line of it and the new text.
func configured(t *testing.T, replacements ...string) *schedulerconfig.KubeSchedulerConfiguration {
	t.Helper()
	file, err := os.ReadFile("../../../../manifests/scheduler/scheduler-config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := string(file)
	for i := 0; i < len(replacements); i += 2 {
		if !strings.Contains(text, replacements[i]) {
			t.Fatalf("no %q in\n%s", replacements[i], text)
		}
		text = strings.ReplaceAll(text, replacements[i], replacements[i+1])
	}
	object, _, err := scheme.Codecs.UniversalDecoder().Decode([]byte(text), nil, nil)
	if err != nil {
		t.Fatalf("decoding\n%s\n%v", text, err)
	}
	return object.(*schedulerconfig.KubeSchedulerConfiguration)
}

// newScheduler creates the scheduler of a configuration. It has no cluster and does not run.
func newScheduler(t *testing.T, config *schedulerconfig.KubeSchedulerConfiguration) (*kubescheduler.Scheduler, *Family) {
	t.Helper()
	family, client := &Family{}, fake.NewClientset()
	made, err := kubescheduler.New(t.Context(), client, informers.NewSharedInformerFactory(client, 0), nil,
		profile.NewRecorderFactory(events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})),
		kubescheduler.WithProfiles(config.Profiles...), kubescheduler.WithExtenders(config.Extenders...),
		kubescheduler.WithKubeConfig(&restclient.Config{Host: "127.0.0.1:1"}),
		kubescheduler.WithFrameworkOutOfTreeRegistry(frameworkruntime.Registry{
			Name: family.Spread, GateName: family.Gate}))
	if err != nil {
		t.Fatalf("making the scheduler: %v", err)
	}
	return made, family
}

// stockFilters are the node-local filters of a profile that configures none of them.
func stockFilters(ctx context.Context) (filters []fwk.FilterPlugin, err error) {
	defaults, err := latest.Default()
	if err != nil {
		return nil, err
	}
	args := map[string]runtime.Object{}
	for _, config := range defaults.Profiles[0].PluginConfig {
		args[config.Name] = config.Args
	}
	stopped, stop := context.WithCancel(ctx)
	stop() // a bubble of fake time cannot end while the handle's recorder of metrics waits for its next second
	handle, err := frameworkruntime.NewFramework(stopped, nil, nil)
	if err != nil {
		return nil, err
	}
	registry := plugins.NewInTreeRegistry()
	for name := range nodeLocal {
		if name == Name {
			continue
		}
		plugin, err := registry[name](ctx, args[name], handle)
		if err != nil {
			return nil, fmt.Errorf("making %s: %w", name, err)
		}
		filters = append(filters, plugin.(fwk.FilterPlugin))
	}
	return filters, nil
}
