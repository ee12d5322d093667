package descheduler

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/component-base/config/validation"
	"k8s.io/utils/clock"
	"sigs.k8s.io/descheduler/cmd/descheduler/app/options"
	"sigs.k8s.io/descheduler/pkg/framework/pluginregistry"

	"github.com/berth-project/berth/pkg/descheduler/cycle"
	"github.com/berth-project/berth/pkg/podstate"
)

// Options of a descheduler.
type Options struct {
	// Server are the framework's own options.
	Server *options.DeschedulerServer
	// SyncTimeout is how long reading the cluster may take before a cycle.
	SyncTimeout time.Duration
	// CycleTimeout is how long a cycle may take.
	CycleTimeout time.Duration
	// EvictionTimeout is how long one eviction may take.
	EvictionTimeout time.Duration
	// ServerDryRun sends every eviction for the API server to try, with all of its budgets and webhooks, and evicts
	// nothing.
	ServerDryRun bool
	// NodeNotices are what announces the end of a node. No pod is moved to such a node.
	NodeNotices podstate.Notices
	// Explain prints what every cycle decided, as "table" or as "json". Empty prints nothing.
	Explain string

	// Out is where Explain prints to.
	Out io.Writer
	// Clock that strategies decide by. Nil is the API server's clock.
	Clock clock.WithTicker
	// Register makes Berth's plugins known.
	Register func(*cycle.World, pluginregistry.Registry)
}

const (
	// The API server limits requests by its priority and fairness.
	defaultQPS   = 1000
	defaultBurst = 1000

	// tripAfter is after how many failures in a row the cycle sends no more evictions. A refusal by a budget is no
	// failure.
	tripAfter = 3

	leaseName, leaseNamespace = "berth-descheduler", "berth-system"
)

// NewOptions are the defaults.
func NewOptions(register func(*cycle.World, pluginregistry.Registry)) (*Options, error) {
	server, err := options.NewDeschedulerServer()
	if err != nil {
		return nil, fmt.Errorf("making the framework's options: %w", err)
	}
	server.ClientConnection.QPS, server.ClientConnection.Burst = defaultQPS, defaultBurst
	election := &server.LeaderElection
	election.ResourceNamespace, election.ResourceName = leaseNamespace, leaseName
	election.LeaseDuration, election.RenewDeadline, election.RetryPeriod =
		metav1.Duration{Duration: 15 * time.Second}, metav1.Duration{Duration: 10 * time.Second}, metav1.Duration{Duration: 2 * time.Second}
	return &Options{
		Server:          server,
		SyncTimeout:     time.Minute,
		CycleTimeout:    100 * time.Second,
		EvictionTimeout: 5 * time.Second,
		NodeNotices:     podstate.DefaultNotices(),
		Register:        register,
	}, nil
}

// AddFlags adds those of the framework and Berth's.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	o.Server.AddFlags(flags)
	flags.DurationVar(&o.SyncTimeout, "sync-timeout", o.SyncTimeout, "How long reading the cluster may take before a cycle. After that the command ends with exit code 1.")
	flags.DurationVar(&o.CycleTimeout, "cycle-timeout", o.CycleTimeout, "How long a cycle may take. The next cycle does what is left.")
	flags.DurationVar(&o.EvictionTimeout, "eviction-timeout", o.EvictionTimeout, "How long one eviction may take.")
	flags.BoolVar(&o.ServerDryRun, "server-dry-run", o.ServerDryRun, "Send every eviction as a dry run, so that budgets and webhooks are asked and nothing is evicted. "+
		"Unlike this, --dry-run sends nothing.")
	flags.Var(&o.NodeNotices, "node-notices", podstate.NoticesUsage+" No pod is moved to such a node. Berth's scheduler has the same list in nodeNotices.")
	flags.StringVar(&o.Explain, "explain", o.Explain, "Print what every cycle decided, as table or as json.")
}

// Validate returns the first mistake in the options.
func (o *Options) Validate() error {
	election := &o.Server.LeaderElection
	switch {
	case o.Server.PolicyConfigFile == "":
		return fmt.Errorf("--policy-config-file is required")
	case o.Explain != "" && o.Explain != "table" && o.Explain != "json":
		return fmt.Errorf("--explain=%s: want table or json", o.Explain)
	case o.SyncTimeout <= 0 || o.CycleTimeout <= 0 || o.EvictionTimeout <= 0:
		return fmt.Errorf("--sync-timeout, --cycle-timeout and --eviction-timeout must be above 0")
	case o.ServerDryRun && o.Server.DryRun:
		return fmt.Errorf("--dry-run sends no eviction and --server-dry-run sends all of them as dry runs; give only one of the two")
	case election.LeaderElect && o.Server.DeschedulingInterval == 0:
		return fmt.Errorf("--leader-elect needs a descheduler that runs repeatedly: set --descheduling-interval, or leave --leader-elect out")
	}
	// With durations that do not fit each other, the framework's leader election panics.
	if election.LeaderElect && election.RenewDeadline.Seconds() <= election.RetryPeriod.Seconds()*leaderelection.JitterFactor {
		return fmt.Errorf("--leader-elect-renew-deadline must be more than %v times --leader-elect-retry-period", leaderelection.JitterFactor)
	}
	return validation.ValidateLeaderElectionConfiguration(election, field.NewPath("leader-elect")).ToAggregate()
}

func (o *Options) isDryRun() bool { return o.ServerDryRun || o.Server.DryRun }
