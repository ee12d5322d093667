// Package product says how Berth runs in a sandbox: which binaries, as whom, with which arguments, on which manifests. It
// starts nothing; begin reading at Compose.
package product

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/manifests"
	"github.com/berth-project/berth/pkg/sandbox"
)

// Names of the components.
const (
	Scheduler  = "scheduler"
	Controller = "controller"
)

const (
	securePort  = "secure"
	healthPort  = "health"
	metricsPort = "metrics"
	webhookPort = "webhook"
)

// Options are what may differ from sandbox to sandbox.
type Options struct {
	// Replicas of components by name, one each by default. With more than one they elect a leader.
	Replicas map[string]int
	// SchedulerConfig is a KubeSchedulerConfiguration to use in place of the one that is deployed. Its client connection and
	// whether to elect a leader are overwritten. Nil is the one that is deployed, with its first profile serving default-scheduler
	// as well: a sandbox has no other scheduler.
	SchedulerConfig []byte
}

// Compose returns the config with Berth's manifests before and its components after those that are there already.
func Compose(config sandbox.Config, options Options) (sandbox.Config, error) {
	schedulerConfig := options.SchedulerConfig
	if schedulerConfig == nil {
		var err error
		if schedulerConfig, err = withDefaultScheduler(manifests.SchedulerConfig); err != nil {
			return config, err
		}
	}
	if _, err := schedulerConfigFor(schedulerConfig, "", false); err != nil {
		return config, err
	}
	replicas := map[string]int{Scheduler: 1, Controller: 1}
	for name, count := range options.Replicas {
		if _, ok := replicas[name]; !ok {
			return config, fmt.Errorf("replicas of %q: no such component, there are %s, %s", name, Scheduler, Controller)
		}
		if count < 1 {
			return config, fmt.Errorf("replicas of %q: %d is not possible, to leave it out use without", name, count)
		}
		replicas[name] = count
	}
	config.Manifests = append(manifests.Install(), config.Manifests...)
	config.Components = append(slices.Clone(config.Components),
		scheduler(replicas[Scheduler], schedulerConfig), controller(replicas[Controller]))
	return config, nil
}

func scheduler(replicas int, config []byte) sandbox.Component {
	return sandbox.Component{
		Name:     Scheduler,
		Binary:   "berth-scheduler",
		Replicas: replicas,
		User:     serviceAccount("berth-scheduler"),
		Groups:   serviceAccountGroups(),
		Args: func(in sandbox.Instance) ([]string, error) {
			content, err := schedulerConfigFor(config, in.Kubeconfig, replicas > 1)
			if err != nil {
				return nil, err
			}
			path := filepath.Join(in.Dir, "scheduler-config.yaml")
			if err := os.WriteFile(path, content, 0o600); err != nil {
				return nil, err
			}
			return []string{
				"--config=" + path,
				"--bind-address=127.0.0.1",
				fmt.Sprintf("--secure-port=%d", in.Port(securePort)),
				"--cert-dir=" + in.Dir,
				"--authentication-kubeconfig=" + in.Kubeconfig,
				"--authorization-kubeconfig=" + in.Kubeconfig,
				"--v=2",
			}, nil
		},
		Ready: func(in sandbox.Instance) string { return "https://" + in.Address(securePort) + "/readyz" },
	}
}

func controller(replicas int) sandbox.Component {
	return sandbox.Component{
		Name:     Controller,
		Binary:   "berth-controller",
		Replicas: replicas,
		User:     serviceAccount("berth-controller"),
		Groups:   serviceAccountGroups(),
		Args: func(in sandbox.Instance) ([]string, error) {
			return []string{
				"--kubeconfig=" + in.Kubeconfig,
				"--health-probe-bind-address=" + in.Address(healthPort),
				"--metrics-bind-address=" + in.Address(metricsPort),
				fmt.Sprintf("--leader-elect=%t", replicas > 1),
				"--webhook-host=127.0.0.1",
				fmt.Sprintf("--webhook-port=%d", in.Port(webhookPort)),
				"--cert-dir=" + filepath.Join(in.Dir, "webhook-certs"),
			}, nil
		},
		Manifests: func(in sandbox.Instance) ([][]byte, error) {
			if in.Replica > 0 {
				return nil, nil // a sandbox has no Services, so that the API server can ask one replica only
			}
			configuration, err := webhookConfigurationAt(in.Port(webhookPort))
			return [][]byte{configuration}, err
		},
		Ready: func(in sandbox.Instance) string { return "http://" + in.Address(healthPort) + "/readyz" },
	}
}

// webhookConfigurationAt returns the webhook configuration with a port of this machine in place of the Service.
func webhookConfigurationAt(port int) ([]byte, error) {
	var configuration admissionregistrationv1.ValidatingWebhookConfiguration
	if err := yaml.UnmarshalStrict(manifests.WebhookConfiguration, &configuration); err != nil {
		return nil, fmt.Errorf("reading the webhook configuration: %w", err)
	}
	for i := range configuration.Webhooks {
		client := &configuration.Webhooks[i].ClientConfig
		// By name, because the webhook's certificate is for names.
		url := fmt.Sprintf("https://localhost:%d%s", port, *client.Service.Path)
		*client = admissionregistrationv1.WebhookClientConfig{URL: &url}
	}
	return yaml.Marshal(configuration)
}

const namespace = "berth-system"

func serviceAccount(name string) string { return "system:serviceaccount:" + namespace + ":" + name }

func serviceAccountGroups() []string {
	return []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace}
}

// withDefaultScheduler adds the first profile once more for the pods that name no scheduler.
func withDefaultScheduler(config []byte) ([]byte, error) {
	var fields map[string]any
	if err := yaml.Unmarshal(config, &fields); err != nil {
		return nil, fmt.Errorf("scheduler config is not YAML: %w", err)
	}
	profiles, _ := fields["profiles"].([]any)
	if len(profiles) == 0 {
		return nil, errors.New("scheduler config has no profiles")
	}
	profile, ok := profiles[0].(map[string]any)
	if !ok {
		return nil, errors.New("scheduler config: profiles[0] is not an object")
	}
	profile = maps.Clone(profile)
	profile["schedulerName"] = corev1.DefaultSchedulerName
	fields["profiles"] = append(profiles, profile)
	return yaml.Marshal(fields)
}

// schedulerConfigFor returns the KubeSchedulerConfiguration with what depends on where it runs.
func schedulerConfigFor(config []byte, kubeconfig string, electLeader bool) ([]byte, error) {
	var fields map[string]any
	if err := yaml.Unmarshal(config, &fields); err != nil {
		return nil, fmt.Errorf("scheduler config is not YAML: %s", strings.ReplaceAll(err.Error(), "\n", " "))
	}
	if kind := fields["kind"]; kind != "KubeSchedulerConfiguration" {
		return nil, fmt.Errorf("scheduler config has kind %v: want KubeSchedulerConfiguration", kind)
	}
	for section, values := range map[string]map[string]any{
		"clientConnection": {"kubeconfig": kubeconfig},
		"leaderElection":   {"leaderElect": electLeader},
	} {
		merged, ok := fields[section].(map[string]any)
		if !ok {
			merged = map[string]any{}
		}
		for key, value := range values {
			merged[key] = value
		}
		fields[section] = merged
	}
	return yaml.Marshal(fields)
}
