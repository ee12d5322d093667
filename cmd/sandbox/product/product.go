// Package product says how Berth runs in a sandbox: which binaries, as which users, with which arguments and manifests.
// It starts nothing. Begin reading at Compose.
package product

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/manifests"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/endpoint"
)

// Names of the components.
const (
	Scheduler  = "scheduler"
	Controller = "controller"
	// United is the process that creates workloads. It needs Controller, which converts UnitedDeployments.
	United = "united"
	// DefaultScheduler is the stock scheduler, for pods that no spread divides, as in any cluster.
	DefaultScheduler = "kube-scheduler"
)

const (
	securePort  = "secure"
	healthPort  = "health"
	metricsPort = "metrics"
	webhookPort = "webhook"
)

// What docs/schedulers.md says that gangs of Kubernetes need: GangGates of the API server and of the scheduler, GangAPI
// of the API server.
const (
	GangGates = "--feature-gates=GenericWorkload=true,TopologyAwareWorkloadScheduling=true"
	GangAPI   = "--runtime-config=scheduling.k8s.io/v1beta1=true"
)

// Options are what may differ between sandboxes.
type Options struct {
	// Replicas of components by name, by default one each. Several replicas elect a leader; the scheduler always does.
	Replicas map[string]int
	// SchedulerConfig is a KubeSchedulerConfiguration that replaces the deployed one. Its client connection and leader
	// election are overwritten. Nil means the deployed one.
	SchedulerConfig []byte
	// Gangs turns on what schedules pod groups. It needs Kubernetes 1.37.
	Gangs bool
	// Compatibility is that of the installation. Empty means none.
	Compatibility v1beta1.Compatibility
	// Federation makes the cluster the hub of a federation.
	Federation bool
	// SidecarSets serves SidecarSets.
	SidecarSets bool
	// SpreadRules serves SpreadRules and ClusterSpreadRules.
	SpreadRules bool
	// CostMetrics measures what pods cost.
	CostMetrics bool
}

// Compose returns the config with Berth's manifests before, and its components after, those that it has already. A
// component DefaultScheduler in the config stays. A config without Controller is one without United.
func Compose(config sandbox.Config, options Options) (sandbox.Config, error) {
	schedulerConfig := options.SchedulerConfig
	if schedulerConfig == nil {
		schedulerConfig = manifests.SchedulerConfig
	}
	if _, err := schedulerConfigFor(schedulerConfig, ""); err != nil {
		return config, err
	}
	replicas := map[string]int{Scheduler: 1, Controller: 1, United: 1}
	for name, count := range options.Replicas {
		if _, ok := replicas[name]; !ok {
			return config, fmt.Errorf("replicas of %q: no such component, there are %s, %s, %s", name, Scheduler, Controller, United)
		}
		if count < 1 {
			return config, fmt.Errorf("replicas of %q: %d is not possible; to leave it out, use --without", name, count)
		}
		replicas[name] = count
	}
	install := manifests.Install()
	if options.Federation {
		install = append(install, manifests.FederationHub()...)
	}
	if options.SidecarSets {
		install = append(install, manifests.Sidecars()...)
	}
	if options.SpreadRules {
		install = append(install, manifests.Rules()...)
	}
	var schedulerFlags []string
	if options.Gangs {
		config.APIServerFlags = append(slices.Clone(config.APIServerFlags), GangGates, GangAPI)
		schedulerFlags = []string{GangGates}
	}
	config.Manifests = slices.Concat(install, [][]byte{pageManifest}, config.Manifests)
	config.Components = slices.Clone(config.Components)
	if !slices.ContainsFunc(config.Components, func(c sandbox.Component) bool { return c.Name == DefaultScheduler }) {
		config.Components = append(config.Components, defaultScheduler(schedulerFlags))
	}
	config.Components = append(config.Components, scheduler(replicas[Scheduler], schedulerConfig, schedulerFlags), controller(replicas[Controller], options), united(replicas[United], options))
	if slices.Contains(config.Without, Controller) {
		config.Without = append(slices.Clone(config.Without), United)
	}
	return config, nil
}

// memberControllers are those that workloads and nodes need, and those that clean up.
var memberControllers = []string{"deployment-controller", "statefulset-controller", "replicaset-controller", "node-lifecycle-controller", "taint-eviction-controller", "pod-garbage-collector-controller",
	"garbage-collector-controller", "namespace-controller", "serviceaccount-controller", "root-ca-certificate-publisher-controller"}

// Member returns the config as that of a member of a federation, in which Berth does not run.
func Member(config sandbox.Config) sandbox.Config {
	config.Manifests = slices.Concat(manifests.FederationMember(), config.Manifests)
	config.Components = append(slices.Clone(config.Components), defaultScheduler(nil))
	config.Controllers = memberControllers
	return config
}

// defaultScheduler is kube-scheduler with its defaults, and the client limits that Berth's scheduler has.
func defaultScheduler(flags []string) sandbox.Component {
	return sandbox.Component{
		Name:     DefaultScheduler,
		Binary:   "kube-scheduler",
		Replicas: 1,
		User:     "system:kube-scheduler",
		Args: func(in sandbox.Instance) ([]string, error) {
			return slices.Concat(schedulerArgs(in), []string{
				"--kubeconfig=" + in.Kubeconfig,
				"--kube-api-qps=1000",
				"--kube-api-burst=1000",
				"--leader-elect=false",
			}, flags), nil
		},
		Ready: func(in sandbox.Instance) string { return "https://" + in.Address(securePort) + "/readyz" },
	}
}

// schedulerArgs are those that any scheduler needs to serve its endpoint in a sandbox.
func schedulerArgs(in sandbox.Instance) []string {
	return []string{
		"--bind-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", in.Port(securePort)),
		"--cert-dir=" + in.Dir,
		"--authentication-kubeconfig=" + in.Kubeconfig,
		"--authorization-kubeconfig=" + in.Kubeconfig,
		"--v=2",
	}
}

func scheduler(replicas int, config []byte, flags []string) sandbox.Component {
	return sandbox.Component{
		Name:     Scheduler,
		Binary:   "berth-scheduler",
		Replicas: replicas,
		User:     serviceAccount("berth-scheduler"),
		Groups:   serviceAccountGroups(),
		Args: func(in sandbox.Instance) ([]string, error) {
			content, err := schedulerConfigFor(config, in.Kubeconfig)
			if err != nil {
				return nil, err
			}
			path := filepath.Join(in.Dir, "scheduler-config.yaml")
			if err := os.WriteFile(path, content, 0o600); err != nil {
				return nil, err
			}
			return slices.Concat(schedulerArgs(in), []string{"--config=" + path}, flags), nil
		},
		Ready: func(in sandbox.Instance) string { return "https://" + in.Address(securePort) + "/readyz" },
	}
}

// sandboxCertificate is for how long the controller of a sandbox does not renew its certificate.
const sandboxCertificate = 365 * 24 * time.Hour

func controller(replicas int, options Options) sandbox.Component {
	return sandbox.Component{
		Name:     Controller,
		Binary:   "berth-controller",
		Replicas: replicas,
		User:     serviceAccount("berth-controller"),
		Groups:   serviceAccountGroups(),
		Args: func(in sandbox.Instance) ([]string, error) {
			return []string{
				"--kubeconfig=" + in.Kubeconfig,
				"--metrics-bind-address=" + in.Address(metricsPort), // the first, which the status shows
				"--health-probe-bind-address=" + in.Address(healthPort),
				fmt.Sprintf("--leader-elect=%t", replicas > 1),
				"--shutdown-delay=0", // nobody has to be told first
				"--compatibility=" + string(options.Compatibility),
				fmt.Sprintf("--federation=%t", options.Federation),
				fmt.Sprintf("--sidecar-sets=%t", options.SidecarSets),
				fmt.Sprintf("--spread-rules=%t", options.SpreadRules),
				fmt.Sprintf("--cost-metrics=%t", options.CostMetrics),
				"--webhook-host=127.0.0.1",
				fmt.Sprintf("--webhook-port=%d", in.Port(webhookPort)),
				"--cert-dir=" + filepath.Join(in.Dir, "webhook-certs"),
			}, nil
		},
		Manifests: func(in sandbox.Instance) ([][]byte, error) {
			if in.Replica > 0 {
				return nil, nil // a sandbox has no Services, so that the API server can ask one replica only
			}
			configurations, err := webhookConfigurationsAt(in.Port(webhookPort), options)
			if err != nil {
				return nil, err
			}
			// The definitions have the authority from the start. If the controller added it, the API server would end
			// all watches of spreads and budgets then, and for about a second nobody would see new ones.
			secret, err := endpoint.NewCertificate(time.Now(), sandboxCertificate)
			if err != nil {
				return nil, err
			}
			content, err := yaml.Marshal(secret)
			if err != nil {
				return nil, err
			}
			definitions, err := DefinitionsAt(fmt.Sprintf("https://localhost:%d%s", in.Port(webhookPort), endpoint.Conversion), secret.Data[endpoint.AuthorityFile])
			return slices.Concat(definitions, configurations, [][]byte{content}), err
		},
		Ready: func(in sandbox.Instance) string { return "http://" + in.Address(healthPort) + "/readyz" },
	}
}

// united creates workloads. It has no port but those that say how it does.
func united(replicas int, options Options) sandbox.Component {
	return sandbox.Component{
		Name:     United,
		Binary:   "berth-controller",
		Replicas: replicas,
		User:     serviceAccount("berth-united"),
		Groups:   serviceAccountGroups(),
		Args: func(in sandbox.Instance) ([]string, error) {
			return []string{
				"--only-workloads",
				"--kubeconfig=" + in.Kubeconfig,
				"--metrics-bind-address=" + in.Address(metricsPort), // the first, which the status shows
				"--health-probe-bind-address=" + in.Address(healthPort),
				fmt.Sprintf("--leader-elect=%t", replicas > 1),
				"--shutdown-delay=0",
				fmt.Sprintf("--federation=%t", options.Federation),
				fmt.Sprintf("--spread-rules=%t", options.SpreadRules),
			}, nil
		},
		Ready: func(in sandbox.Instance) string { return "http://" + in.Address(healthPort) + "/readyz" },
	}
}

// webhookConfigurationsAt returns the webhook configurations with a port of this machine instead of the Service. The
// URL has a host name, because the webhook's certificate is for names. It has no path; the controller adds one.
func webhookConfigurationsAt(port int, options Options) ([][]byte, error) {
	url := fmt.Sprintf("https://localhost:%d", port)
	type one struct {
		content       []byte
		configuration runtime.Object
	}
	all := []one{
		{manifests.ValidatingWebhook, &admissionregistrationv1.ValidatingWebhookConfiguration{}},
		{manifests.MutatingWebhook, &admissionregistrationv1.MutatingWebhookConfiguration{}},
		{manifests.BudgetWebhook, &admissionregistrationv1.ValidatingWebhookConfiguration{}},
		{manifests.EvictionWebhook, &admissionregistrationv1.MutatingWebhookConfiguration{}},
	}
	if options.SidecarSets {
		all = append(all, one{manifests.SidecarMutatingWebhook, &admissionregistrationv1.MutatingWebhookConfiguration{}},
			one{manifests.SidecarValidatingWebhook, &admissionregistrationv1.ValidatingWebhookConfiguration{}})
	}
	var contents [][]byte
	for _, one := range all {
		if err := yaml.UnmarshalStrict(one.content, one.configuration); err != nil {
			return nil, fmt.Errorf("reading a webhook configuration: %w", err)
		}
		for _, webhook := range endpoint.WebhooksOf(one.configuration) {
			*webhook.Client = admissionregistrationv1.WebhookClientConfig{URL: &url}
		}
		content, err := yaml.Marshal(one.configuration)
		if err != nil {
			return nil, err
		}
		contents = append(contents, content)
	}
	return contents, nil
}

// DefinitionsAt returns the definitions with a URL for conversion instead of the Service, and with the authority to
// trust there. Without an authority the controller adds one.
func DefinitionsAt(url string, authority []byte) ([][]byte, error) {
	var contents [][]byte
	for _, content := range manifests.CRDs() {
		var definition apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(content, &definition); err != nil {
			return nil, fmt.Errorf("reading a definition: %w", err)
		}
		definition.Spec.Conversion.Webhook.ClientConfig = &apiextensionsv1.WebhookClientConfig{URL: &url, CABundle: authority}
		object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&definition)
		if err != nil {
			return nil, err
		}
		delete(object, "status")
		content, err := yaml.Marshal(object)
		if err != nil {
			return nil, err
		}
		contents = append(contents, content)
	}
	return contents, nil
}

const namespace = "berth-system"

func serviceAccount(name string) string { return "system:serviceaccount:" + namespace + ":" + name }

func serviceAccountGroups() []string {
	return []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace}
}

// schedulerConfigFor returns the KubeSchedulerConfiguration with the settings that depend on where it runs. A single
// scheduler uses leader election too: only a lease tells it that no bind of an earlier scheduler is under way. The
// lease is shorter than in a cluster, where it lasts 15 s, so that a killed scheduler is replaced sooner.
func schedulerConfigFor(config []byte, kubeconfig string) ([]byte, error) {
	var fields map[string]any
	if err := yaml.Unmarshal(config, &fields); err != nil {
		return nil, fmt.Errorf("scheduler config is not YAML: %s", strings.ReplaceAll(err.Error(), "\n", " "))
	}
	if kind := fields["kind"]; kind != "KubeSchedulerConfiguration" {
		return nil, fmt.Errorf("scheduler config has kind %v: want KubeSchedulerConfiguration", kind)
	}
	for section, values := range map[string]map[string]any{
		"clientConnection": {"kubeconfig": kubeconfig},
		"leaderElection":   {"leaderElect": true, "leaseDuration": "5s", "renewDeadline": "4s", "retryPeriod": "500ms"},
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
