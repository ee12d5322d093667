// Command controller runs Berth's controllers, which write the status of WorkloadSpreads and PodUnavailableBudgets, and
// serves its admission webhooks. With --leader-elect several replicas may run: all serve the webhooks, and one runs the
// controllers. With --only-workloads it runs the controllers that create workloads, and serves nothing: see
// docs/decisions/0036-united-account.md.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/cluster-inventory-api/pkg/access"
	ctrl "sigs.k8s.io/controller-runtime"
	clientconfig "sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/berth-project/berth/internal/version"
	"github.com/berth-project/berth/pkg/autoscaler"
	budgetcontroller "github.com/berth-project/berth/pkg/controller/budget"
	federationcontroller "github.com/berth-project/berth/pkg/controller/federation"
	"github.com/berth-project/berth/pkg/controller/frame"
	rulecontroller "github.com/berth-project/berth/pkg/controller/rule"
	sidecarcontroller "github.com/berth-project/berth/pkg/controller/sidecar"
	spreadcontroller "github.com/berth-project/berth/pkg/controller/spread"
	unitedcontroller "github.com/berth-project/berth/pkg/controller/united"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	sidecarv1beta1 "github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
	"github.com/berth-project/berth/pkg/crd/versions"
	"github.com/berth-project/berth/pkg/guard"
	"github.com/berth-project/berth/pkg/lineage"
	"github.com/berth-project/berth/pkg/members"
	"github.com/berth-project/berth/pkg/podstate"
	"github.com/berth-project/berth/pkg/watches"
	"github.com/berth-project/berth/pkg/webhook"
)

type flags struct {
	// version is true if the program says its version and does nothing else.
	version                 bool
	metricsAddress          string
	healthAddress           string
	leaderElect             bool
	leaderElectionNamespace string
	webhooks                bool
	webhook                 webhook.Options
	shutdownDelay           time.Duration
	budgets                 bool
	budgetExpiry            time.Duration
	nodeNotices             podstate.Notices
	// onlyWorkloads is true if the process creates workloads, and does nothing else.
	onlyWorkloads bool
	// tlsMinVersion and tlsCipherSuites limit what the servers of webhooks and metrics agree to. Empty means Go's
	// defaults.
	tlsMinVersion, tlsCipherSuites string
	// united is true if UnitedDeployments are served.
	united        bool
	compatibility string
	// nodeAutoscaler says how to know whether the cluster has one.
	nodeAutoscaler string
	// costMetrics is true if there are metrics of what pods cost.
	costMetrics bool
	// federation is true if this cluster is the hub of a federation.
	federation bool
	// spreadRules is true if SpreadRules and ClusterSpreadRules are served.
	spreadRules bool
	// sidecars is true if SidecarSets are served.
	sidecars          bool
	memberNamespace   string
	accessProvidersIn string
}

// requestTimeout is how long kube-apiserver works on a request, unless its --request-timeout says otherwise.
const requestTimeout = time.Minute

func main() {
	var f flags
	f.addTo(flag.CommandLine)
	flag.Parse()
	if f.version {
		fmt.Println(version.Line("berth-controller"))
		return
	}
	ctrl.SetLogger(klog.Background())

	if err := run(ctrl.SetupSignalHandler(), f); err != nil {
		fmt.Fprintln(os.Stderr, "berth-controller:", err)
		os.Exit(1)
	}
}

func (f *flags) addTo(set *flag.FlagSet) {
	set.BoolVar(&f.version, "version", false, "Print the version and exit.")
	set.StringVar(&f.metricsAddress, "metrics-bind-address", "127.0.0.1:8443",
		"Address that serves /metrics; 0 disables it. At 127.0.0.1 it is plain HTTP. At any other address it is HTTPS with a certificate that the replica signs itself, and the client needs a token that may get /metrics.")
	set.StringVar(&f.healthAddress, "health-probe-bind-address", ":8081", "Address that serves /healthz and /readyz; 0 disables them.")
	set.BoolVar(&f.leaderElect, "leader-elect", true, "Run controllers only while holding a lease, so that several replicas can run: "+leaseOf(false)+", or "+leaseOf(true)+" with --only-workloads.")
	set.StringVar(&f.leaderElectionNamespace, "leader-election-namespace", "berth-system", "Namespace of the lease.")
	set.BoolVar(&f.onlyWorkloads, "only-workloads", false,
		"Run the controllers that create workloads or spreads, those of UnitedDeployments, FederatedReplicaSets and rules, and nothing else. Without the flag these do not run. The flags of webhooks, "+
			"spreads, budgets and sidecars have no effect then.")
	set.StringVar(&f.tlsMinVersion, "tls-min-version", "",
		"Lowest version of TLS that the webhooks and /metrics take: "+strings.Join(cliflag.TLSPossibleVersions(), ", ")+". Empty: VersionTLS12.")
	set.StringVar(&f.tlsCipherSuites, "tls-cipher-suites", "",
		"Cipher suites that the webhooks and /metrics take with TLS 1.2, separated by commas, by the names that kube-apiserver has for them. Empty: those that Go prefers. TLS 1.3 has no choice.")
	set.BoolVar(&f.webhooks, "webhooks", true, "Serve the admission webhooks. If false, --budgets must be false too.")
	set.StringVar(&f.webhook.Host, "webhook-host", "", "Address that serves the webhooks (default: all addresses).")
	set.IntVar(&f.webhook.Port, "webhook-port", 9443, "Port that serves the webhooks.")
	set.StringVar(&f.webhook.CertDir, "cert-dir", "/run/berth/webhook-certs", "Directory of the webhooks' tls.crt and tls.key.")
	set.StringVar((*string)(&f.webhook.Certificates), "webhook-certs", string(webhook.ManagedCertificates),
		"managed: Berth creates and renews the certificate in Secret berth-system/berth-webhook-cert, copies it into --cert-dir, and makes the API server trust it; "+
			"provided: another tool, such as cert-manager, does this.")
	set.StringVar(&f.webhook.ClientCA, "webhook-client-ca", "",
		"PEM file of certificate authorities. The webhooks then answer only clients with a certificate of one of them, and others get 401. The authorities must sign "+
			"for API servers only, and the API server must be configured to present its certificate. The file is read at the start. Without the flag the webhooks "+
			"answer every client that calls the secret path in the webhook configurations, and others get 404.")
	set.DurationVar(&f.shutdownDelay, "shutdown-delay", 10*time.Second,
		"How long the replica continues to serve after SIGTERM. It is not ready during this time, so that no request reaches its webhooks when they end. The pod's "+
			"terminationGracePeriodSeconds must exceed it by 30 s. 0 means that it ends at once.")
	set.BoolVar(&f.budgets, "budgets", true, "Enforce PodUnavailableBudgets. If false, nothing of manifests/budget may be installed.")
	set.DurationVar(&f.budgetExpiry, "budget-expiry", budgetcontroller.DefaultExpiry,
		"How long a PodUnavailableBudget counts an operation that it allowed, if the operation does not happen. At least "+guard.ShortestExpiry(requestTimeout).String()+
			". If the API server's --request-timeout is above 1m, add the difference.")
	f.nodeNotices = podstate.DefaultNotices()
	set.Var(&f.nodeNotices, "node-notices", podstate.NoticesUsage+" Pods on such a node are replaced first, if their budget has replaceFirst.")
	set.StringVar(&f.compatibility, "compatibility", "",
		"kruise: WorkloadSpreads behave as OpenKruise's in everything that clients can observe, except those with another value in annotation "+
			v1beta1.CompatibilityAnnotation+"; none or empty: only those with value kruise in the annotation do.")
	set.StringVar(&f.nodeAutoscaler, "node-autoscaler", string(autoscaler.Auto),
		"Whether the cluster has a node autoscaler, so that WorkloadSpreads with binding Auto gate their pods. auto: look every 30 s for the API group karpenter.sh "+
			"and for ConfigMap kube-system/cluster-autoscaler-status; present or absent: do not look.")
	set.BoolVar(&f.costMetrics, "cost-metrics", false, "Measure what a pod costs an hour in each subset, by label "+v1beta1.HourlyPriceLabel+" of nodes. The process then keeps what each pod of the cluster requests.")
	set.BoolVar(&f.united, "united-deployments", true, "Serve UnitedDeployments, as soon as the API server has the kind. If false, they and their children stay as they are.")
	set.BoolVar(&f.spreadRules, "spread-rules", false, "Serve SpreadRules and ClusterSpreadRules: review them and let pods of a new workload wait for its spread or, with --only-workloads, make the spreads. "+
		"The API server must have both kinds. If false, the spreads that rules have made stay as they are.")
	set.BoolVar(&f.sidecars, "sidecar-sets", false, "Serve SidecarSets. The API server must have the kind. If false, pods keep the sidecars that they have, and new ones get none.")
	set.BoolVar(&f.federation, "federation", false, "Be the hub of a federation: review FederatedReplicaSets or, with --only-workloads, connect to the clusters that ClusterProfiles stand for. "+
		"The API server must have the kind ClusterProfile.")
	set.StringVar(&f.memberNamespace, "federation-namespace", members.DefaultNamespace, "Namespace of the ClusterProfiles and of the Secrets with kubeconfigs that they name.")
	set.StringVar(&f.accessProvidersIn, "clusterprofile-provider-file", "",
		"JSON file with the credential plugins that ClusterProfiles may choose from in status.accessProviders. The file is read at the start. Empty means none.")
	clientconfig.RegisterFlags(set)
	klog.InitFlags(set)
}

// tls is what the servers of webhooks and metrics do to their configuration.
func (f *flags) tls() (func(*tls.Config), error) {
	version, err := cliflag.TLSVersion(f.tlsMinVersion)
	if err != nil {
		return nil, fmt.Errorf("--tls-min-version: %w", err)
	}
	var suites []uint16
	if f.tlsCipherSuites != "" {
		if suites, err = cliflag.TLSCipherSuites(strings.Split(f.tlsCipherSuites, ",")); err != nil {
			return nil, fmt.Errorf("--tls-cipher-suites: %w", err)
		}
	}
	return func(config *tls.Config) { config.MinVersion, config.CipherSuites = version, suites }, nil
}

// metrics are served to everybody at 127.0.0.1, and else to clients that the API server authenticates and lets get
// /metrics.
func (f *flags) metrics(change func(*tls.Config)) metricsserver.Options {
	options := metricsserver.Options{BindAddress: f.metricsAddress, TLSOpts: []func(*tls.Config){change}}
	if host, _, err := net.SplitHostPort(f.metricsAddress); err == nil && host != "127.0.0.1" {
		options.SecureServing, options.FilterProvider = true, filters.WithAuthenticationAndAuthorization
	}
	return options
}

func run(ctx context.Context, f flags) error {
	if f.shutdownDelay < 0 {
		return fmt.Errorf("--shutdown-delay is %s: must not be negative", f.shutdownDelay)
	}
	switch v1beta1.Compatibility(f.compatibility) {
	case "", v1beta1.CompatibleWithKruise, v1beta1.NoCompatibility:
	default:
		return fmt.Errorf("--compatibility is %q: must be %s or %s", f.compatibility, v1beta1.CompatibleWithKruise, v1beta1.NoCompatibility)
	}
	if f.budgets && !f.webhooks {
		return errors.New("--webhooks=false needs --budgets=false: without the webhooks no protected pod could be deleted")
	}
	if f.onlyWorkloads && !f.united && !f.federation && !f.spreadRules {
		return errors.New("--only-workloads needs --united-deployments, --federation or --spread-rules: no other part of Berth creates workloads or spreads")
	}
	if shortest := guard.ShortestExpiry(requestTimeout); f.budgetExpiry < shortest {
		return fmt.Errorf("--budget-expiry is %s: must be at least %s, because an allowed request may take that long to happen", f.budgetExpiry, shortest)
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), apiextensionsv1.AddToScheme(scheme), versions.AddStored(scheme)); err != nil {
		return fmt.Errorf("registering types: %w", err)
	}
	var err error
	if f.webhook.TLS, err = f.tls(); err != nil {
		return err
	}
	f.webhook.IgnoreUnitedDeployments, f.webhook.SidecarSets, f.webhook.Budgets, f.webhook.SpreadRules = !f.united, f.sidecars, f.budgets, f.spreadRules
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("finding the API server: %w", err)
	}
	// Priority and fairness of the API server limits requests, for each tenant alone. A limit here would make all wait
	// for one.
	config.QPS = -1
	config.DisableCompression = true // compression takes longer than it saves, and deletions wait for lists of pods
	watchedSets, options := watches.NewState(clock.RealClock{}), frame.CacheOptions(f.costMetrics)
	options.NewInformer = watchedSets.NewInformer(&sidecarv1beta1.SidecarSet{})
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                        scheme,
		MapperProvider:                newKinds,
		Cache:                         options,
		Metrics:                       f.metrics(f.webhook.TLS),
		HealthProbeBindAddress:        f.healthAddress,
		LeaderElection:                f.leaderElect,
		LeaderElectionID:              leaseOf(f.onlyWorkloads),
		LeaderElectionNamespace:       f.leaderElectionNamespace,
		LeaderElectionReleaseOnCancel: true,
	})
	if err != nil {
		return fmt.Errorf("making the manager: %w", err)
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	serving, staying := leaveSlowly(ctx, f.shutdownDelay)
	if err := mgr.AddReadyzCheck("staying", staying); err != nil {
		return err
	}
	if f.onlyWorkloads {
		err = f.createWorkloads(ctx, mgr)
	} else {
		err = f.answerAndReport(ctx, mgr, watchedSets)
	}
	if err != nil {
		return err
	}
	return mgr.Start(serving)
}

// leaseOf is the name of the lease of a process, and of its Deployment.
func leaseOf(onlyWorkloads bool) string {
	if onlyWorkloads {
		return "berth-united"
	}
	return "berth-controller"
}

// createWorkloads sets up what creates workloads, here and in the members of a federation. Nobody on the network can
// call it.
func (f *flags) createWorkloads(ctx context.Context, mgr ctrl.Manager) error {
	var set *members.Set
	if f.federation {
		var providers *access.Config
		var err error
		if f.accessProvidersIn != "" {
			if providers, err = access.NewFromFile(f.accessProvidersIn); err != nil {
				return fmt.Errorf("--clusterprofile-provider-file: %w", err)
			}
		}
		if set, err = members.Setup(mgr, members.Options{Namespace: f.memberNamespace, Providers: providers}); err != nil {
			return fmt.Errorf("connecting to the members of the federation: %w", err)
		}
		if err := federationcontroller.Setup(mgr, set); err != nil {
			return err
		}
	}
	if f.spreadRules {
		if err := rulecontroller.Setup(ctx, mgr); err != nil {
			return err
		}
	}
	if f.united {
		return unitedcontroller.Setup(ctx, mgr, set)
	}
	return nil
}

// answerAndReport sets up the webhooks, and what reports on spreads, budgets and SidecarSets.
// watchedSets is the state of the manager's watch of SidecarSets.
func (f *flags) answerAndReport(ctx context.Context, mgr ctrl.Manager, watchedSets *watches.State) error {
	owners, err := lineage.New(ctx, mgr, lineage.Options{Compatibility: v1beta1.Compatibility(f.compatibility)})
	if err != nil {
		return err
	}
	if f.webhook.NodeAutoscaler, err = autoscaler.Setup(ctx, mgr, autoscaler.Setting(f.nodeAutoscaler)); err != nil {
		return err
	}
	if err := spreadcontroller.Setup(ctx, mgr, owners, f.webhook.NodeAutoscaler, f.costMetrics); err != nil {
		return err
	}
	if f.federation {
		f.webhook.Members = func(ctx context.Context) ([]string, error) {
			return members.Names(ctx, mgr.GetAPIReader(), f.memberNamespace)
		}
	}
	var more []func(register func(path string, hook http.Handler)) error
	if f.budgets {
		if err := budgetcontroller.Setup(mgr, f.budgetExpiry, f.nodeNotices); err != nil {
			return err
		}
		more = append(more, func(register func(path string, hook http.Handler)) error {
			return guard.Setup(ctx, mgr, register, guard.Options{})
		})
	}
	if f.sidecars {
		if err := sidecarcontroller.Setup(ctx, mgr, watchedSets, f.leaderElectionNamespace); err != nil {
			return err
		}
		more = append(more, func(register func(path string, hook http.Handler)) error {
			return webhook.SetupSidecars(ctx, mgr, owners, watchedSets, f.leaderElectionNamespace, register)
		})
	}
	if f.webhooks {
		return webhook.Setup(ctx, mgr, owners, f.webhook, more...)
	}
	return nil
}
