package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/report"
)

// MovesReport are the last moves of a spread, the oldest first, and what holds the next.
type MovesReport struct {
	Namespace string `json:"namespace"`
	Spread    string `json:"spread"`
	// Moves has the last move between each two subsets.
	Moves []v1beta1.Move `json:"moves"`
	// Wait is what keeps pods of later subsets from returning now. Nil if none should, or if nothing is known that keeps them.
	Wait *report.Wait `json:"wait,omitempty"`
	// Next is what happens next, as status says it.
	Next string `json:"next"`
}

// movesCommand is "kubectl berth moves".
type movesCommand struct {
	out    io.Writer
	output console.Output
}

func newMoves(flags *console.Flags, streams genericiooptions.IOStreams) *cobra.Command {
	c := &movesCommand{out: streams.Out}
	cmd := &cobra.Command{
		Use:   "moves SPREAD",
		Short: "When the descheduler moved pods of a spread, and for how long it holds the next move",
		Long: `The last move between each two subsets, the oldest first, from the status of the spread. The status keeps a move for at most two days.

Below, the next step as in kubectl berth status. The time that is left is that of the descheduler's default arguments: the command does not know the policy.`,
		Example:           "  kubectl berth moves web",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: console.SpreadNames(flags),
		RunE:              console.OnCluster(flags, c.run),
	}
	c.output.AddTo(cmd.Flags())
	return cmd
}

func (c *movesCommand) run(ctx context.Context, cluster *console.Cluster, args []string) error {
	name := args[0]
	spread, err := getSpread(ctx, cluster, name)
	if err != nil {
		return err
	}
	of := reportOf(spread)
	r := MovesReport{Namespace: spread.Namespace, Spread: spread.Name, Moves: append([]v1beta1.Move{}, spread.Status.Moves...), Wait: of.Wait, Next: of.Next}
	slices.SortStableFunc(r.Moves, func(a, b v1beta1.Move) int { return a.Time.Compare(b.Time.Time) })
	if done, err := c.output.Structured(c.out, r); done {
		return err
	}
	rows := [][]console.Cell{{{Text: "AGE"}, {Text: "FROM"}, {Text: "TO"}, {Text: "REASON"}, {Text: "ROUND"}, {Text: "IN FLIGHT"}}}
	for _, m := range r.Moves {
		var pods []string
		for _, pod := range m.InFlight {
			pods = append(pods, pod.Name)
		}
		rows = append(rows, []console.Cell{{Text: duration.HumanDuration(now().Sub(m.Time.Time))}, {Text: cmp.Or(m.From, "-")}, {Text: cmp.Or(m.To, "-")}, {Text: m.Reason},
			{Text: strconv.Itoa(int(m.Round))}, {Text: cmp.Or(strings.Join(pods, " "), "-")}})
	}
	p := console.PaletteFor(c.out)
	if len(r.Moves) == 0 {
		_, err = fmt.Fprintf(c.out, "No moves of WorkloadSpread %s are recorded.\n", name)
	} else {
		err = console.PrintTable(c.out, p, rows)
	}
	if err == nil && r.Wait != nil && r.Wait.Until != nil {
		_, err = fmt.Fprintf(c.out, "  held for %s: %s\n", p.Paint(console.Yellow, duration.HumanDuration(r.Wait.Until.Sub(now()).Round(time.Second))), r.Wait.Reason)
	}
	if err == nil {
		_, err = fmt.Fprintln(c.out, "  next: "+r.Next)
	}
	return err
}
