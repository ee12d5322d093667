package cli

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/moves"
)

// pauseCommand is "kubectl berth pause" and "kubectl berth resume".
type pauseCommand struct {
	out io.Writer
	// pauses is false for resume.
	pauses bool
	dryRun string
}

func newPause(flags *console.Flags, streams genericiooptions.IOStreams) *cobra.Command {
	return (&pauseCommand{out: streams.Out, pauses: true}).command(flags, &cobra.Command{
		Use:   "pause SPREAD...",
		Short: "Keep the descheduler from moving the pods of a spread",
		Long: `Keep the descheduler from moving the pods of a spread, by the annotation ` + v1beta1.PausedAnnotation + `.

Berth's strategies then move no pod of the spread. Other strategies of the same profile move none either, if the filter SubsetEvictor is on, as it is by
default. Nothing else pauses: new pods get their subset, quotas hold, and the workload is scaled and rolled out as always. A drain evicts the pods as before;
budgets limit it.`,
		Example: "  kubectl berth pause web",
	})
}

func newResume(flags *console.Flags, streams genericiooptions.IOStreams) *cobra.Command {
	return (&pauseCommand{out: streams.Out}).command(flags, &cobra.Command{
		Use:     "resume SPREAD...",
		Short:   "Let the descheduler move the pods of a paused spread again",
		Example: "  kubectl berth resume web",
	})
}

func (c *pauseCommand) command(flags *console.Flags, cmd *cobra.Command) *cobra.Command {
	cmd.ValidArgsFunction, cmd.RunE = console.CompleteNames(flags, 1, console.Spreads), console.OnCluster(flags, c.run)
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if !slices.Contains([]string{"none", "server", "client"}, c.dryRun) {
			return fmt.Errorf("--dry-run=%s: it must be none, server or client", c.dryRun)
		}
		return nil
	}
	cmd.Flags().StringVar(&c.dryRun, "dry-run", "none", `"none", "server" (the API server tries the change) or "client" (nothing is sent).`)
	return cmd
}

func (c *pauseCommand) run(ctx context.Context, cluster *console.Cluster, args []string) error {
	names, err := console.Names(args, console.Spreads)
	if err != nil {
		return err
	}
	for _, name := range names {
		spread, err := cluster.GetSpread(ctx, name)
		if err != nil {
			return err
		}
		text := map[bool]string{true: "paused", false: "resumed"}[c.pauses]
		if c.pauses == moves.IsPaused(spread) {
			text = "already " + text
		}
		before, options := spread.DeepCopy(), []client.PatchOption{}
		if c.pauses {
			metav1.SetMetaDataAnnotation(&spread.ObjectMeta, v1beta1.PausedAnnotation, "true")
		} else {
			delete(spread.Annotations, v1beta1.PausedAnnotation)
		}
		if c.dryRun != "none" {
			text, options = text+" ("+c.dryRun+" dry run)", append(options, client.DryRunAll)
		}
		if c.dryRun != "client" {
			if err := cluster.Patch(ctx, spread, client.MergeFrom(before), options...); err != nil {
				return err
			}
		}
		if _, err := fmt.Fprintln(c.out, console.NameOf(v1beta1.Kind.Kind, v1beta1.Kind.Group, name), text); err != nil {
			return err
		}
	}
	return nil
}
