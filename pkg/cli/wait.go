package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/lineage"
	"github.com/berth-project/berth/pkg/report"
)

// waitCommand is "kubectl berth wait".
type waitCommand struct {
	out     io.Writer
	timeout time.Duration
}

func newWait(flags *console.Flags, streams genericiooptions.IOStreams) *cobra.Command {
	c := &waitCommand{out: streams.Out}
	cmd := &cobra.Command{
		Use:   "wait SPREAD...",
		Short: "Wait until every pod of a spread has a node in the subset that the plan wants",
		Long: `Wait until spreads are placed, and end with exit code 0. After the timeout, end with exit code 1 and say what is missing.

A spread is placed when its status says all of this about its present spec, and about as many replicas as the workload asks for now:
- it is ready;
- all pods exist and have a node, and there are no more pods than the workload asks for;
- all pods are of one revision, as after a rollout;
- every subset holds as many pods as the plan wants, the first subsets up to their quotas. Pods run in no subset only if all quotas together are too small.

Pods of strategy Adaptive that went on to a later subset are not placed until they are back. Pods need not be ready; kubectl rollout status waits for that.
A Job is placed while all pods run that it runs at the same time.`,
		Example: `  kubectl berth wait web
  kubectl apply -f web.yaml && kubectl rollout status deployment/web && kubectl berth wait web --timeout 1m`,
		ValidArgsFunction: console.CompleteNames(flags, 1, console.Spreads),
		RunE:              console.OnCluster(flags, c.run),
	}
	cmd.Flags().DurationVar(&c.timeout, "timeout", 5*time.Minute, "How long to wait. 0 looks once.")
	return cmd
}

func (c *waitCommand) run(ctx context.Context, cluster *console.Cluster, args []string) error {
	names, err := console.Names(args, console.Spreads)
	if err != nil {
		return err
	}
	until := now().Add(c.timeout)
	for _, name := range names {
		for seen := false; ; seen = true {
			missing, err := missingOf(ctx, cluster, name)
			var unreachable *url.Error
			switch left := until.Sub(now()); {
			case err != nil && (!seen || !errors.As(err, &unreachable)):
				return err
			case err == nil && len(missing) == 0:
			case left <= 0 && err != nil:
				return err
			case left <= 0:
				return fmt.Errorf("WorkloadSpread %s is not placed after %s: %s", name, c.timeout, strings.Join(missing, "; "))
			default:
				select {
				case <-time.After(min(lookInterval, left)):
					continue
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			break
		}
		if _, err := fmt.Fprintf(c.out, "WorkloadSpread %s is placed.\n", name); err != nil {
			return err
		}
	}
	return nil
}

// missingOf says what is left until a spread is placed. It is empty for a placed spread.
func missingOf(ctx context.Context, cluster *console.Cluster, name string) ([]string, error) {
	spread, err := cluster.GetSpread(ctx, name)
	if err != nil {
		return nil, err
	}
	r := report.Of(spread, now())
	if missing := r.Missing(); len(missing) > 0 {
		return missing, nil
	}
	replicas, err := lineage.LiveReplicas(ctx, cluster, spread)
	switch {
	case apierrors.IsNotFound(err):
		return []string{r.Target + " does not exist"}, nil
	case err == nil && replicas != r.Replicas: // the controller will write a status for the new number
		return []string{fmt.Sprintf("its status is of %s, and %s asks for %d", report.Pods(r.Replicas, "", ""), r.Target, replicas)}, nil
	}
	return nil, err
}
