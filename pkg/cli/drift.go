package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/report"
)

// Drift is one place where pods differ from the plan of their spread.
type Drift struct {
	Namespace string `json:"namespace"`
	Spread    string `json:"spread"`
	// Subset is empty for pods of no subset.
	Subset string `json:"subset,omitempty"`
	// Pods that are there, and how many the plan has.
	Pods    int32 `json:"pods"`
	Planned int32 `json:"planned"`
	// What is wrong.
	What string `json:"what"`
	// Mends says what corrects it.
	Mends string `json:"mends"`
}

// driftsIn compares a report with its plan. A subset with too few pods is reported only if other subsets hold them; otherwise they are pending.
func driftsIn(r *report.Spread) []Drift {
	var drifts []Drift
	add := func(subset string, pods, planned int32, what, mends string) {
		drifts = append(drifts, Drift{r.Namespace, r.Name, subset, pods, planned, what, mends})
	}
	elsewhere := "its pods went to later subsets"
	if r.ByTarget {
		elsewhere = "its pods are in other subsets"
	}
	for i := range r.Subsets {
		in := &r.Subsets[i]
		switch {
		case in.Over > 0:
			add(in.Name, in.Pods, in.Target, "above quota", r.Descheduler("EnforceSubsetMaxReplicas")+", or scaling down")
		case r.CouldTake(i) > 0:
			add(in.Name, in.Pods, in.Target, elsewhere, r.Descheduler("RebalanceToPreferredSubset")+", when it has room"+in.Wait.Clause())
		case !in.Schedulable:
			add(in.Name, in.Pods, in.Target, "pods wait for a node", "a node that takes them; for early-bound pods "+r.Descheduler("EvictUnschedulableSubsetPods"))
		}
	}
	if r.Unplaced > 0 {
		add("", r.Unplaced, 0, "in no subset", r.Descheduler("EnforceSubsetMaxReplicas")+", or scaling down")
	}
	return drifts
}

// driftCommand is "kubectl berth drift".
type driftCommand struct {
	selection
	out    io.Writer
	output console.Output
}

func newDrift(flags *console.Flags, streams genericiooptions.IOStreams) *cobra.Command {
	c := &driftCommand{out: streams.Out}
	cmd := &cobra.Command{
		Use:   "drift",
		Short: "Where pods differ from what their spreads say, and what corrects it",
		Args:  cobra.NoArgs,
		RunE:  console.OnCluster(flags, c.run),
	}
	c.output.AddTo(cmd.Flags())
	c.addTo(cmd.Flags())
	return cmd
}

func (c *driftCommand) run(ctx context.Context, cluster *console.Cluster, _ []string) error {
	options, err := c.of(cluster, nil)
	if err != nil {
		return err
	}
	var spreads v1beta1.WorkloadSpreadList
	if err := cluster.List(ctx, &spreads, options...); err != nil {
		return err
	}
	drifts := []Drift{}
	for i := range spreads.Items {
		found := reportOf(&spreads.Items[i])
		drifts = append(drifts, driftsIn(&found)...)
	}
	if done, err := c.output.Structured(c.out, drifts); done {
		return err
	}
	if len(drifts) == 0 {
		_, err := fmt.Fprintf(c.out, "No drift in %s.\n", console.Count(len(spreads.Items), "WorkloadSpread"))
		return err
	}
	rows := [][]console.Cell{{{Text: "SPREAD"}, {Text: "SUBSET"}, {Text: "KEPT"}, {Text: "PLANNED"}, {Text: "WHAT"}, {Text: "MENDED BY"}}}
	for _, d := range drifts {
		rows = append(rows, []console.Cell{{Text: c.nameOf(d.Namespace, d.Spread)}, {Text: cmp.Or(d.Subset, "-")}, {Text: strconv.Itoa(int(d.Pods))}, {Text: strconv.Itoa(int(d.Planned))}, {Text: d.What, Color: console.Yellow}, {Text: d.Mends}})
	}
	return console.PrintTable(c.out, console.PaletteFor(c.out), rows)
}
