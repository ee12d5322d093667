package whatif

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/manifests"
	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/descheduler"
	"github.com/berth-project/berth/pkg/descheduler/cycle"
)

// rebalanceCommand is "kubectl berth rebalance". It shows what the descheduler would do, and does nothing.
type rebalanceCommand struct {
	streams       genericiooptions.IOStreams
	output        console.Output
	allNamespaces bool
	dryRun        bool
	policyFile    string
	strategies    Strategies
	// notes are what the reader of the plan should know in addition.
	notes []string
}

// errNotDryRun is the error without --dry-run.
var errNotDryRun = errors.New("pods are moved by the descheduler, not by this command; see what it would do with --dry-run, and have it done now with " +
	"kubectl -n berth-system create job --from=cronjob/berth-descheduler berth-descheduler-now")

func newRebalance(flags *console.Flags, streams genericiooptions.IOStreams, strategies Strategies) *cobra.Command {
	c := &rebalanceCommand{streams: streams, strategies: strategies}
	cmd := &cobra.Command{
		Use:   console.Rebalance.Use,
		Short: console.Rebalance.Short,
		Example: `  kubectl berth rebalance --dry-run
  kubectl berth rebalance web --dry-run -o json
  kubectl berth rebalance -A --dry-run --policy-config-file=policy.yaml`,
		ValidArgsFunction: console.CompleteNames(flags, 1, console.Spreads),
		PreRunE: func(*cobra.Command, []string) error {
			if !c.dryRun {
				return errNotDryRun
			}
			return nil
		},
		RunE: console.OnCluster(flags, c.run),
	}
	c.output.AddTo(cmd.Flags())
	cmd.Flags().BoolVarP(&c.allNamespaces, "all-namespaces", "A", false, "Spreads of all namespaces.")
	cmd.Flags().BoolVar(&c.dryRun, "dry-run", false, "Required. Evictions are sent for the API server to try, with its budgets and webhooks, if you may evict pods. Nothing is evicted or written.")
	cmd.Flags().StringVar(&c.policyFile, "policy-config-file", "", "The descheduler's policy. By default the one in the cluster, or else the one that is deployed with Berth.")
	return cmd
}

func (c *rebalanceCommand) run(ctx context.Context, cluster *console.Cluster, args []string) error {
	asked, err := console.ParseNames(args, 1, console.Spreads)
	if err != nil {
		return err
	}
	var names []string
	for _, spread := range asked {
		if spread.Name == "" {
			err = cluster.List(ctx, &v1beta1.WorkloadSpreadList{}, client.Limit(1)) // an error if the cluster does not have the kind
		} else if names = append(names, spread.Name); c.allNamespaces {
			err = errors.New("a name and --all-namespaces do not go together; name the namespace with -n")
		} else {
			_, err = cluster.GetSpread(ctx, spread.Name)
		}
		if err != nil {
			return err
		}
	}
	policyFile, remove, err := c.policy(ctx, cluster)
	if err != nil {
		return err
	}
	defer remove()
	options, err := descheduler.NewOptions(c.strategies)
	if err != nil {
		return err
	}
	options.Config, options.Server.PolicyConfigFile = cluster.Config, policyFile
	if options.ServerDryRun, err = c.mayEvict(ctx, cluster); err != nil {
		return err
	}
	if !c.allNamespaces {
		options.ServerDryRunIn = cluster.Namespace
	}
	options.Server.DryRun = !options.ServerDryRun
	plan, err := descheduler.Plan(ctx, options)
	if err != nil {
		return firstOf(err)
	}
	if plan.Unread != nil {
		c.note("not everything could be read: %v", firstOf(plan.Unread))
	}
	plan.Lines = slices.DeleteFunc(plan.Lines, func(line cycle.Line) bool {
		return !c.allNamespaces && line.Namespace != cluster.Namespace || len(names) > 0 && !slices.Contains(names, line.Spread)
	})
	for _, note := range c.notes {
		fmt.Fprintln(c.streams.ErrOut, "note: "+note)
	}
	return c.print(plan)
}

// firstOf is the first of several errors, with the number of the others.
func firstOf(err error) error {
	var several interface{ Unwrap() []error }
	if !errors.As(err, &several) || len(several.Unwrap()) < 2 {
		return err
	}
	all := several.Unwrap()
	return fmt.Errorf("%w (and %s)", all[0], console.Count(len(all)-1, "more error"))
}

// policy returns the file with the descheduler's policy, and a function to call after it was read.
func (c *rebalanceCommand) policy(ctx context.Context, cluster *console.Cluster) (path string, remove func(), _ error) {
	if c.policyFile != "" {
		return c.policyFile, func() {}, nil
	}
	var deployed, current corev1.ConfigMap
	if err := yaml.UnmarshalStrict(manifests.DeschedulerPolicy, &deployed); err != nil {
		return "", nil, fmt.Errorf("reading the policy that is deployed with Berth: %w", err)
	}
	err := cluster.Get(ctx, client.ObjectKeyFromObject(&deployed), &current)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		c.note("uses the policy that is deployed with Berth, because the policy in the cluster cannot be read: %v", err)
		current = deployed
	case err != nil:
		return "", nil, err
	}
	const key = "policy.yaml"
	text, found := current.Data[key]
	if !found {
		return "", nil, fmt.Errorf("ConfigMap %s/%s has no %s; give a policy with --policy-config-file", current.Namespace, current.Name, key)
	}
	dir, err := os.MkdirTemp("", "berth-policy-")
	if err != nil {
		return "", nil, err
	}
	remove = func() { _ = os.RemoveAll(dir) } // the system cleans its temporary directory
	path = filepath.Join(dir, key)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		remove()
		return "", nil, err
	}
	return path, remove, nil
}

// mayEvict is true if evictions can be sent to the API server as dry runs.
func (c *rebalanceCommand) mayEvict(ctx context.Context, cluster *console.Cluster) (bool, error) {
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
		Verb: "create", Version: "v1", Resource: "pods", Subresource: "eviction"}}}
	where := "in all namespaces"
	if !c.allNamespaces {
		review.Spec.ResourceAttributes.Namespace, where = cluster.Namespace, "in namespace "+cluster.Namespace
	}
	if err := cluster.Create(ctx, review); err != nil {
		return false, fmt.Errorf("asking what you may do: %w", err)
	}
	if !review.Status.Allowed {
		c.note("you may not evict pods %s, so budgets are judged by their status alone, and webhooks are not asked", where)
	}
	return review.Status.Allowed, nil
}

func (c *rebalanceCommand) note(format string, args ...any) {
	c.notes = append(c.notes, fmt.Sprintf(format, args...))
}

func (c *rebalanceCommand) print(plan *cycle.Report) error {
	if plan.Lines == nil {
		plan.Lines = []cycle.Line{}
	}
	if done, err := c.output.Structured(c.streams.Out, "Plan", plan); done {
		return err
	}
	switch {
	case len(plan.Lines) == 0:
		_, err := io.WriteString(c.streams.Out, "Nothing to move: every pod is where the descheduler would have it.\n")
		return err
	default:
		return plan.WriteTable(c.streams.Out, c.output.IsWide(), c.output.NoHeaders)
	}
}
