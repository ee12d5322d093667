package cli

import (
	"context"
	"fmt"
	"io"

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
}

func newPause(flags *console.Flags, streams genericiooptions.IOStreams) *cobra.Command {
	return (&pauseCommand{out: streams.Out, pauses: true}).command(flags, &cobra.Command{
		Use:   "pause SPREAD",
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
		Use:     "resume SPREAD",
		Short:   "Let the descheduler move the pods of a paused spread again",
		Example: "  kubectl berth resume web",
	})
}

func (c *pauseCommand) command(flags *console.Flags, cmd *cobra.Command) *cobra.Command {
	cmd.Args, cmd.ValidArgsFunction, cmd.RunE = cobra.ExactArgs(1), console.SpreadNames(flags), console.OnCluster(flags, c.run)
	return cmd
}

func (c *pauseCommand) run(ctx context.Context, cluster *console.Cluster, args []string) error {
	name := args[0]
	spread, err := getSpread(ctx, cluster, name)
	if err != nil {
		return err
	}
	verb := "is"
	if c.pauses == moves.IsPaused(spread) {
		verb = "was already"
	}
	before := spread.DeepCopy()
	if c.pauses {
		metav1.SetMetaDataAnnotation(&spread.ObjectMeta, v1beta1.PausedAnnotation, "true")
	} else {
		delete(spread.Annotations, v1beta1.PausedAnnotation)
	}
	if err := cluster.Patch(ctx, spread, client.MergeFrom(before)); err != nil {
		return err
	}
	text := "WorkloadSpread %[2]s %[1]s paused: the descheduler moves none of its pods. New pods still get their subset.\nTo end this: kubectl berth resume %[2]s\n"
	if !c.pauses {
		text = "WorkloadSpread %[2]s %[1]s resumed: the descheduler may move its pods.\n"
	}
	_, err = fmt.Fprintf(c.out, text, verb, name)
	return err
}
