package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	federationv1alpha1 "github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	sidecarv1beta1 "github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
	unitedv1beta1 "github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/report"
)

// statusCommand is "kubectl berth status".
type statusCommand struct {
	selection
	out, errOut io.Writer
	output      console.Output
	watch       bool
}

func newStatus(flags *console.Flags, streams genericiooptions.IOStreams) *cobra.Command {
	c := &statusCommand{out: streams.Out, errOut: streams.ErrOut}
	cmd := &cobra.Command{
		Use:   "status [NAME... | TYPE/NAME... | TYPE [NAME...]]",
		Short: "Where the pods of each spread, UnitedDeployment and FederatedReplicaSet are, what keeps others, and what happens next",
		Long: `Where the pods of each spread, UnitedDeployment and FederatedReplicaSet are, what keeps others, and what happens next.

TYPE is workloadspread (ws), uniteddeployment (ud), federatedreplicaset (frs) or sidecarset, as with kubectl get. Without it, SidecarSets are left out.

--watch follows spreads only; follow the others with kubectl get --watch.`,
		Example: `  kubectl berth status
  kubectl berth status web --watch
  kubectl berth status -l team=shop
  kubectl berth status -A -o json
  kubectl berth status ws web api
  kubectl berth status sidecarset/log-agent`,
		ValidArgsFunction: console.NamesOfDivided(flags),
		RunE:              console.OnCluster(flags, c.run),
	}
	c.output.AddTo(cmd.Flags())
	c.addTo(cmd.Flags())
	cmd.Flags().BoolVarP(&c.watch, "watch", "w", false, "Print again whenever a status changes, until interrupted.")
	return cmd
}

func (c *statusCommand) run(ctx context.Context, cluster *console.Cluster, args []string) error {
	asked, err := wantedOf(args)
	if err != nil {
		return err
	}
	if c.watch {
		return c.follow(ctx, cluster, asked)
	}
	all := []any{}
	for _, w := range asked {
		found, err := c.find(ctx, cluster, w)
		if err != nil {
			return err
		}
		if len(found) == 0 && w.name != "" {
			return console.NoSuchDivided(w.name, cluster.Namespace)
		}
		all = append(all, found...)
	}
	return c.print(all, cmp.Or(asked[0].kind, v1beta1.Kind.Kind)+"s")
}

// follow prints spreads again and again.
func (c *statusCommand) follow(ctx context.Context, cluster *console.Cluster, asked []wanted) error {
	if c.output == console.AsJSON || c.output == console.AsYAML {
		return errors.New("--watch prints tables; leave -o out, or watch the objects with kubectl get workloadspreads --watch -o json")
	}
	if len(asked) > 1 || asked[0].kind != "" && asked[0].kind != v1beta1.Kind.Kind {
		return errors.New("--watch follows spreads, all or one; follow other objects with kubectl get --watch")
	}
	options, err := c.of(cluster, asked[0].name)
	if err != nil {
		return err
	}
	first := true
	return (&following{Cluster: cluster, options: options, changed: func(spreads []v1beta1.WorkloadSpread) (bool, error) {
		if first && asked[0].name != "" && len(spreads) == 0 {
			return true, console.NoSuchDivided(asked[0].name, cluster.Namespace)
		}
		first = false
		return false, c.print(reportsOf(spreads), v1beta1.Kind.Kind+"s")
	}, lost: func(err error) {
		fmt.Fprintln(c.errOut, "kubectl berth:", console.Advise(err)+"; trying again")
	}}).run(ctx)
}

func reportsOf(spreads []v1beta1.WorkloadSpread) (all []any) {
	for i := range spreads {
		all = append(all, reportOf(&spreads[i]))
	}
	return all
}

// find are the reports of what the command line names.
func (c *statusCommand) find(ctx context.Context, cluster *console.Cluster, w wanted) ([]any, error) {
	if w.kind == sidecarv1beta1.Kind.Kind {
		return sidecars(ctx, cluster, w.name)
	}
	options, err := c.of(cluster, w.name)
	if err != nil {
		return nil, err
	}
	var all []any
	if w.kind == "" || w.kind == v1beta1.Kind.Kind {
		var list v1beta1.WorkloadSpreadList
		if err := cluster.List(ctx, &list, options...); err != nil {
			return nil, err
		}
		all = reportsOf(list.Items)
	}
	// A role may be from a time before the other kinds. They are left out then, and a line says so.
	if w.kind == "" || w.kind == unitedv1beta1.Kind.Kind {
		list, err := listUnited(ctx, cluster, options)
		if err := c.without("UnitedDeployments", err); err != nil {
			return nil, err
		}
		for i := range list {
			all = append(all, report.OfUnited(&list[i], now()))
		}
	}
	if w.kind == "" || w.kind == federationv1alpha1.Kind.Kind {
		list, err := listFederated(ctx, cluster, options)
		if err := c.without("FederatedReplicaSets", err); err != nil {
			return nil, err
		}
		for i := range list {
			all = append(all, report.OfFederated(&list[i], now()))
		}
	}
	return all, nil
}

// without says that a kind is left out, if it may not be listed. It returns any other error.
func (c *statusCommand) without(kind string, err error) error {
	if !apierrors.IsForbidden(err) {
		return err
	}
	fmt.Fprintf(c.errOut, "kubectl berth: without %s: %s\n", kind, console.Advise(err))
	return nil
}

// print prints reports of kinds.
func (c *statusCommand) print(all []any, kinds string) error {
	if done, err := c.output.Structured(c.out, all); done {
		return err
	}
	if c.watch && console.IsTerminal(c.out) {
		fmt.Fprint(c.out, "\x1b[H\x1b[2J") // move the cursor to the top and clear the screen
	}
	if len(all) == 0 {
		_, err := fmt.Fprintf(c.out, "No %s found.\n", kinds)
		return err
	}
	for i, r := range all {
		if i > 0 {
			fmt.Fprintln(c.out)
		}
		var is printed
		switch r := r.(type) {
		case report.Spread:
			is = c.ofSpread(&r)
		case report.United:
			is = c.ofUnited(&r)
		case report.Federated:
			is = c.ofFederated(&r)
		case report.Sidecars:
			is = ofSidecars(&r)
		}
		if err := is.to(c.out); err != nil {
			return err
		}
	}
	return nil
}

// printed is a report as the terminal shows it.
type printed struct {
	heading []console.Cell
	// tables come below the heading, and notes below these.
	tables [][][]console.Cell
	notes  []string
	next   string
}

func (r *printed) to(w io.Writer) error {
	p := console.PaletteFor(w)
	for _, table := range append([][][]console.Cell{{r.heading}}, r.tables...) {
		if err := console.PrintTable(w, p, table); err != nil {
			return err
		}
	}
	for _, note := range r.notes {
		if _, err := fmt.Fprintf(w, "  %s\n", p.Paint(console.Yellow, note)); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(w, "  next: "+r.next)
	return err
}

func (c *statusCommand) ofSpread(r *report.Spread) printed {
	state := console.Cell{Text: "Ready", Color: console.Green}
	if !r.Ready {
		state = console.Cell{Text: string(r.Reason), Color: console.Red}
		if r.Reason == "" {
			state = console.Cell{Text: "Unknown", Color: console.Yellow}
		}
	}
	is := printed{next: r.Next, tables: [][][]console.Cell{c.subsetRows(r)},
		heading: []console.Cell{{Text: c.nameOf(r.Namespace, r.Name)}, {Text: r.Target}, {Text: r.Strategy}, {Text: report.Pods(r.Replicas, "asked for", "asked for")}, state}}
	for _, of := range []struct {
		n    int32
		what string
	}{{r.Pending, "pending"}, {r.Unplaced, "in no subset"}, {r.Adopted, "bound by others"}, {r.Surplus, "above quota"}} {
		if of.n > 0 {
			is.notes = append(is.notes, report.Pods(of.n, of.what, of.what))
		}
	}
	if r.Paused {
		is.notes = append(is.notes, "paused: the descheduler moves none of its pods")
	}
	if len(r.Moves) > 0 && c.output == console.AsWide {
		rows := [][]console.Cell{{{Text: "  MOVED"}, {Text: "FROM"}, {Text: "TO"}, {Text: "REASON"}, {Text: "ROUND"}, {Text: "IN FLIGHT"}}}
		for i := range r.Moves {
			m := &r.Moves[i]
			var pods []string
			for _, pod := range m.InFlight {
				pods = append(pods, pod.Name)
			}
			rows = append(rows, []console.Cell{{Text: "  " + duration.HumanDuration(now().Sub(m.Time.Time)) + " ago"}, {Text: cmp.Or(m.From, "-")}, {Text: cmp.Or(m.To, "-")}, {Text: m.Reason},
				{Text: number(m.Round)}, {Text: cmp.Or(strings.Join(pods, " "), "-")}})
		}
		is.tables = append(is.tables, rows)
	}
	return is
}

func (c *statusCommand) subsetRows(r *report.Spread) [][]console.Cell {
	if len(r.Subsets) == 0 {
		return nil
	}
	// While there are several revisions, each has a row of its own, because it has the quota for itself.
	divided := slices.ContainsFunc(r.Subsets, func(s report.Subset) bool { return len(s.Revisions) > 0 })
	head := []console.Cell{{Text: "  SUBSET"}, {Text: "KEPT"}, {Text: "QUOTA"}, {Text: "FILL"}, {Text: "SCHEDULABLE"}}
	if r.ByTarget {
		head = slices.Insert(head, 3, console.Cell{Text: "TARGET"})
	}
	if divided {
		head = slices.Insert(head, 1, console.Cell{Text: "REVISION"})
	}
	if c.output == console.AsWide {
		head = append(head, console.Cell{Text: "PLANNED"}, console.Cell{Text: "MESSAGE"})
	}
	rows := [][]console.Cell{head}
	for _, s := range r.Subsets {
		quota := "-"
		if s.Quota != nil {
			quota = strconv.Itoa(int(*s.Quota))
		}
		schedulable := console.Cell{Text: "yes"}
		if !s.Schedulable {
			schedulable = console.Cell{Text: "no", Color: console.Yellow}
		}
		for _, scope := range s.Scopes() {
			row := []console.Cell{{Text: "  " + s.Name}, {Text: strconv.Itoa(int(scope.Pods))}, {Text: quota}, bar(s, scope.Pods, r.ByTarget), schedulable}
			if r.ByTarget {
				row = slices.Insert(row, 3, console.Cell{Text: strconv.Itoa(int(s.Target))})
			}
			if divided {
				row = slices.Insert(row, 1, console.Cell{Text: scope.Name})
			}
			if c.output == console.AsWide {
				row = append(row, console.Cell{Text: strconv.Itoa(int(s.Target))}, console.Cell{Text: s.Message})
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// barWidth is the width of a full quota.
const barWidth = 20

// bar shows how much of its quota a subset holds, by the pods of one quota scope. Without a quota, and if asked for, it shows how much of its target.
func bar(s report.Subset, pods int32, byTarget bool) console.Cell {
	whole, of := s.Target, console.Plain
	if s.Quota != nil && !byTarget {
		whole = *s.Quota
	}
	filled := barWidth
	switch {
	case pods > whole:
		if s.Over > 0 {
			of = console.Red
		}
	case whole == 0:
		filled = 0
	default:
		filled = int(pods) * barWidth / int(whole)
		if pods == whole {
			of = console.Green
		}
	}
	return console.Cell{Text: strings.Repeat("█", filled) + strings.Repeat("·", barWidth-filled), Color: of}
}
