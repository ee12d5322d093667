package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/report"
	"github.com/berth-project/berth/pkg/snapshot"
)

// forPlaced is the only value of --for.
const forPlaced = "placed"

// waitCommand is "kubectl berth wait".
type waitCommand struct {
	out     io.Writer
	what    string
	timeout time.Duration
}

func newWait(flags *console.Flags, streams genericiooptions.IOStreams) *cobra.Command {
	c := &waitCommand{out: streams.Out}
	cmd := &cobra.Command{
		Use:   "wait SPREAD",
		Short: "Wait until every pod of a spread has a node in the subset that the plan wants",
		Long: `Wait until a spread is placed, and end with exit code 0. After the timeout, end with exit code 1 and say what is missing.

A spread is placed when its status says all of this about its present spec, and about as many replicas as the workload asks for now:
- it is ready;
- all pods exist and have a node, and there are no more pods than the workload asks for;
- all pods are of one revision, as after a rollout;
- every subset holds as many pods as the plan wants, the first subsets up to their quotas. Pods run in no subset only if all quotas together are too small.

Pods of strategy Adaptive that went on to a later subset are not placed until they are back. Pods need not be ready; kubectl rollout status waits for that.
A Job is placed while all pods run that it runs at the same time.`,
		Example: `  kubectl berth wait web
  kubectl apply -f web.yaml && kubectl rollout status deployment/web && kubectl berth wait web --timeout 1m`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: console.SpreadNames(flags),
		PreRunE: func(*cobra.Command, []string) error {
			if c.what != forPlaced {
				return fmt.Errorf("--for=%s: it must be one of %s", c.what, forPlaced)
			}
			return nil
		},
		RunE: console.OnCluster(flags, c.run),
	}
	cmd.Flags().StringVar(&c.what, "for", forPlaced, "What to wait for: "+forPlaced+".")
	cmd.Flags().DurationVar(&c.timeout, "timeout", 5*time.Minute, "How long to wait. 0 looks once.")
	if err := cmd.RegisterFlagCompletionFunc("for", cobra.FixedCompletions([]string{forPlaced}, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // the flag exists
	}
	return cmd
}

func (c *waitCommand) run(ctx context.Context, cluster *console.Cluster, args []string) error {
	name := args[0]
	if c.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.timeout)
		defer cancel()
	}
	missing, seen, placed := []string{"the API server has not answered"}, false, false
	err := (&following{Cluster: cluster, options: named(cluster, name), lost: func(error) {}, changed: func(spreads []v1beta1.WorkloadSpread) (bool, error) {
		switch {
		case len(spreads) == 0 && seen:
			return true, fmt.Errorf("WorkloadSpread %s is gone", name)
		case len(spreads) == 0:
			return true, console.NoSuchSpread(name, cluster.Namespace)
		}
		seen = true
		r := reportOf(&spreads[0])
		if missing = r.Missing(); len(missing) == 0 {
			replicas, err := snapshot.LiveReplicas(ctx, cluster, &spreads[0])
			switch {
			case apierrors.IsNotFound(err):
				missing = []string{r.Target + " does not exist"}
			case err != nil && ctx.Err() == nil:
				return true, err
			case err != nil || replicas != r.Replicas: // the controller will write a status for the new number
				missing = []string{fmt.Sprintf("its status is of %s, and %s asks for %d", report.Pods(r.Replicas, "", ""), r.Target, replicas)}
			default:
				placed = true
			}
		}
		return placed || c.timeout == 0, nil
	}}).run(ctx)
	if err != nil {
		return err
	}
	if !placed {
		return fmt.Errorf("WorkloadSpread %s is not placed after %s: %s", name, c.timeout, strings.Join(missing, "; "))
	}
	_, err = fmt.Fprintf(c.out, "WorkloadSpread %s is placed.\n", name)
	return err
}
