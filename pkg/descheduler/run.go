package descheduler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	metricsclient "k8s.io/metrics/pkg/client/clientset/versioned"
	deschedulermetrics "sigs.k8s.io/descheduler/metrics"
	"sigs.k8s.io/descheduler/pkg/api"
	framework "sigs.k8s.io/descheduler/pkg/descheduler"
	eutils "sigs.k8s.io/descheduler/pkg/descheduler/evictions/utils"
	"sigs.k8s.io/descheduler/pkg/features"
	"sigs.k8s.io/descheduler/pkg/framework/pluginregistry"

	"github.com/berth-project/berth/pkg/descheduler/cycle"
)

// descheduler is the one of a process.
type descheduler struct {
	options *Options
	config  *rest.Config
	guard   *cycle.Client
	world   *cycle.World
	watch   *watch

	policy        *api.DeschedulerPolicy
	policyVersion string
}

// Run runs one cycle, or with a descheduling interval one after the other until the context ends. ExitCode says what
// the error means.
//
// It takes the place of Run in the framework's packages app and descheduler, which make their own clients. Evictions
// through those name a pod by its name only, and are repeated for as long as a budget asks for that. The framework's
// Run also waits forever for what it may not read, knows no limit for the time of a cycle, and ends well whatever
// happens. The cycle itself and the election of a leader are the framework's.
//
// The framework keeps its plugins in a variable of its package, so only one Run may be under way in a process.
func Run(ctx context.Context, options *Options) error {
	if err := options.Validate(); err != nil {
		return err
	}
	if err := options.Server.Apply(); err != nil {
		return err
	}
	stopServing, err := serve(ctx, options)
	if err != nil {
		return err
	}
	defer stopServing()
	d, err := prepare(ctx, options)
	if err != nil {
		return err
	}
	switch {
	case options.Server.DeschedulingInterval == 0:
		return d.runOnce(ctx)
	case options.Server.LeaderElection.LeaderElect && !options.isDryRun():
		return d.lead(ctx)
	default:
		d.runForever(ctx)
		return nil
	}
}

// errNotLeading ends a process that has lost its lease. What it was about to do is in the spreads' statuses, which the
// next leader reads.
var errNotLeading = errors.New("the lease was lost")

// lead runs cycles while this process holds the lease.
func (d *descheduler) lead(ctx context.Context) error {
	leading, stop := context.WithCancel(ctx)
	defer stop()
	cycles := func() error {
		d.runForever(leading)
		return nil
	}
	if err := framework.NewLeaderElection(cycles, d.guard, &d.options.Server.LeaderElection, ctx); err != nil {
		return fmt.Errorf("electing a leader: %w", err)
	}
	if ctx.Err() != nil {
		return nil
	}
	return errNotLeading
}

// prepare makes a descheduler, and reads its policy.
func prepare(ctx context.Context, options *Options) (*descheduler, error) {
	server := options.Server
	config, err := options.config()
	if err != nil {
		return nil, fmt.Errorf("finding the API server: %w", err)
	}
	typed := rest.CopyConfig(config)
	typed.ContentType, typed.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	plain, err := kubernetes.NewForConfig(typed)
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	d := &descheduler{options: options, config: config, watch: &watch{}}
	d.world = cycle.NewWorld(cycle.Options{Clock: options.Clock, DryRun: options.isDryRun(), CallTimeout: options.EvictionTimeout, Notices: options.NodeNotices})
	d.guard = cycle.NewClient(plain, cycle.GuardOptions{Timeout: options.EvictionTimeout, DryRun: options.isDryRun(),
		Silent: options.Server.DryRun, TripAfter: tripAfter, Settled: d.world.Settle})
	server.Client, server.EventClient = d.guard, d.guard
	return d, d.load(ctx, rest.CopyConfig(typed))
}

// look is how often an API server that does not answer is asked again.
const look = 500 * time.Millisecond

// load reads the policy, and waits until the API server answers. The calls of the framework take no context, so the
// client that they use has a deadline.
func (d *descheduler) load(ctx context.Context, asking *rest.Config) error {
	deschedulermetrics.Register()
	asking.Timeout = d.options.SyncTimeout
	client, err := kubernetes.NewForConfig(asking)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	registry := pluginregistry.NewRegistry()
	d.options.Register(d.world, registry)
	framework.RegisterDefaultPlugins(registry)
	pluginregistry.PluginRegistry = watched(registry, d.guard, d.watch)
	if d.policy, err = framework.LoadPolicyConfig(d.options.Server.PolicyConfigFile, client, pluginregistry.PluginRegistry); err != nil {
		return err
	}
	if d.sendsAhead() {
		d.guard.SendAhead(d.policy.GracePeriodSeconds)
	}
	if unknown := enabledIn(d.policy).Difference(sets.KeySet(registry)); unknown.Len() > 0 {
		return fmt.Errorf("the policy enables plugins that do not exist: %v; correct their names", sets.List(unknown))
	}
	var unanswered error
	if err := wait.PollUntilContextTimeout(ctx, look, d.options.SyncTimeout, true, func(context.Context) (bool, error) {
		d.policyVersion, unanswered = eutils.SupportEviction(client)
		return unanswered == nil, nil
	}); err != nil {
		return errors.Join(d.notRead(), unanswered)
	}
	if d.policyVersion == "" {
		return errors.New("the API server does not serve the eviction API (policy/v1)")
	}
	return d.connectMetrics()
}

// enabledIn are the plugins that a policy enables.
func enabledIn(policy *api.DeschedulerPolicy) sets.Set[string] {
	enabled := sets.New[string]()
	for i := range policy.Profiles {
		p := &policy.Profiles[i].Plugins
		for _, set := range []api.PluginSet{p.Deschedule, p.Balance, p.Filter, p.PreEvictionFilter} {
			enabled.Insert(set.Enabled...)
		}
	}
	return enabled
}

// notRead is the error of whoever waited too long. The log says what could not be listed.
func (d *descheduler) notRead() error {
	return fmt.Errorf("not everything could be read within %s", d.options.SyncTimeout)
}

// sendsAhead is true if the framework sends every eviction that a plugin asks for.
func (d *descheduler) sendsAhead() bool {
	p := d.policy
	return !d.options.Server.DefaultFeatureGates.Enabled(features.EvictionsInBackground) &&
		p.MaxNoOfPodsToEvictPerNode == nil && p.MaxNoOfPodsToEvictPerNamespace == nil && p.MaxNoOfPodsToEvictTotal == nil
}

// connectMetrics makes the client for strategies of the framework that go by the usage of nodes.
func (d *descheduler) connectMetrics() error {
	wanted := d.policy.MetricsCollector != nil && d.policy.MetricsCollector.Enabled // deprecated, and still valid in policies
	for i := range d.policy.MetricsProviders {
		wanted = wanted || d.policy.MetricsProviders[i].Source == api.KubernetesMetrics
	}
	if !wanted {
		return nil
	}
	metricsClient, err := metricsclient.NewForConfig(d.config)
	if err != nil {
		return fmt.Errorf("making a client for metrics: %w", err)
	}
	d.options.Server.MetricsClient = metricsClient
	return nil
}

// config is the configuration of the client, with the limits of the options.
func (o *Options) config() (config *rest.Config, err error) {
	connection := &o.Server.ClientConnection
	if connection.Kubeconfig == "" {
		config, err = rest.InClusterConfig()
	} else {
		config, err = clientcmd.BuildConfigFromFlags("", connection.Kubeconfig)
	}
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = connection.QPS, int(connection.Burst)
	if config.UserAgent == "" {
		config.UserAgent = "berth-descheduler"
	}
	return config, nil
}

// runForever runs a cycle at every interval. Each has new informers, so that it begins with fresh lists. An error of a
// cycle is logged and counted.
func (d *descheduler) runForever(ctx context.Context) {
	wait.NonSlidingUntilWithContext(ctx, func(ctx context.Context) {
		if err := d.runOnce(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "The cycle went wrong")
		}
	}, d.options.Server.DeschedulingInterval)
}

// runOnce runs a cycle, and prints what it decided if the options ask for that.
func (d *descheduler) runOnce(ctx context.Context) error {
	report, err := d.runCycle(ctx)
	err = errors.Join(err, report.Unread)
	if explainErr := d.explain(report); err == nil {
		err = explainErr
	}
	return err
}

// runCycle has the framework run one cycle. Spreads that could not be read are only in the report.
func (d *descheduler) runCycle(ctx context.Context) (*cycle.Report, error) {
	began := time.Now() //nolint:forbidigo // a metric
	ctx, stop := context.WithTimeoutCause(ctx, d.options.CycleTimeout, fmt.Errorf("the cycle took longer than %s", d.options.CycleTimeout))
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	d.watch.begin(cancel)
	d.guard.BeginCycle()
	tooLate := time.AfterFunc(d.options.SyncTimeout, func() {
		if !d.watch.started() {
			cancel(d.notRead())
		}
	})
	defer tooLate.Stop()

	once := *d.options.Server
	once.DeschedulingInterval = 0
	// The guard keeps evictions back. The framework's own dry run goes by a copy of the cluster and does not wait for
	// it: pods and nodes may be missing.
	once.DryRun = false
	err := framework.RunDeschedulerStrategies(ctx, &once, d.policy, d.policyVersion)
	report := d.world.End()
	err = errors.Join(err, d.watch.err(), context.Cause(ctx))
	cycleSeconds.Observe(time.Since(began).Seconds())
	tally := d.guard.Tally()
	klog.FromContext(ctx).Info("Cycle done", "dryRun", d.options.isDryRun(), "evictions", tally.Attempted, "succeeded", tally.Succeeded, "err", errors.Join(err, report.Unread))
	read := err == nil && report.Unread == nil
	if read && tally.Attempted > 0 && tally.Succeeded == 0 {
		return report, errNothingEvicted
	}
	if read {
		lastSuccess.SetToCurrentTime()
	}
	return report, err
}

func (d *descheduler) explain(report *cycle.Report) error {
	switch d.options.Explain {
	case "table":
		return report.WriteTable(d.options.Out)
	case "json":
		return report.WriteJSON(d.options.Out)
	default:
		return nil
	}
}
