package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/report"
)

// lookInterval is how often commands that wait read the cluster.
const lookInterval = time.Second

// now is the time. A command runs at one moment, and synctest controls the clock of tests.
func now() time.Time { return time.Now() } //nolint:forbidigo // see above

// reported are the kinds that status knows. A name without a type is one of the first three.
var reported = []*console.Kind{console.Spreads, console.United, console.Federated, console.SidecarSets}

// statusCommand is "kubectl berth status".
type statusCommand struct {
	out, errOut   io.Writer
	output        console.Output
	allNamespaces bool
	labels        string
	watch         bool
	costs         console.Costs
}

func newStatus(flags *console.Flags, streams genericiooptions.IOStreams) *cobra.Command {
	c := &statusCommand{out: streams.Out, errOut: streams.ErrOut}
	cmd := &cobra.Command{
		Use:   "status [NAME... | TYPE/NAME... | TYPE [NAME...]]",
		Short: "Where the pods of each spread, UnitedDeployment and FederatedReplicaSet are, what keeps others, and what happens next",
		Long: `Where the pods of each spread, UnitedDeployment and FederatedReplicaSet are, what keeps others, and what happens next.

TYPE is workloadspread (ws), uniteddeployment (ud), federatedreplicaset (frs) or sidecarset, as with kubectl get. Without it, SidecarSets are left out.`,
		Example: `  kubectl berth status
  kubectl berth status web --watch
  kubectl berth status -l team=shop
  kubectl berth status -A -o json
  kubectl berth status ws web api
  kubectl berth status sidecarset/log-agent`,
		ValidArgsFunction: console.CompleteNames(flags, 3, reported...),
		RunE:              console.OnCluster(flags, c.run),
	}
	c.output.AddTo(cmd.Flags())
	cmd.Flags().BoolVarP(&c.allNamespaces, "all-namespaces", "A", false, "Objects of all namespaces.")
	cmd.Flags().StringVarP(&c.labels, "selector", "l", "", "Objects with these labels, as in kubectl get -l.")
	c.costs.AddTo(cmd.Flags())
	cmd.Flags().BoolVarP(&c.watch, "watch", "w", false, "Print again whenever something has changed, until interrupted.")
	return cmd
}

func (c *statusCommand) run(ctx context.Context, cluster *console.Cluster, args []string) error {
	asked, err := console.ParseNames(args, 3, reported...)
	if err != nil {
		return err
	}
	var shown []byte
	for first, failing := true, false; ; first = false {
		all, err := c.findAll(ctx, cluster, asked)
		var printed bytes.Buffer
		if err == nil {
			err = c.print(&printed, all, len(asked) == 1 && asked[0].Name != "")
		}
		switch {
		case err != nil && (first || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)):
			return err
		case err != nil && !failing && ctx.Err() == nil:
			fmt.Fprintln(c.errOut, "kubectl berth:", console.Advise(err)+"; trying again")
		case err == nil && (first || !bytes.Equal(printed.Bytes(), shown)):
			shown = printed.Bytes()
			inNamespace := !c.allNamespaces && slices.ContainsFunc(asked, console.Named.Namespaced)
			if err := c.show(shown, len(all) == 0, inNamespace, cluster.Namespace); err != nil {
				return err
			}
		}
		failing = err != nil
		if !c.watch {
			return nil
		}
		select {
		case <-time.After(lookInterval):
		case <-ctx.Done():
			return nil
		}
	}
}

// show writes what was printed. If nothing was found, it says on standard error what kubectl get says.
func (c *statusCommand) show(printed []byte, none, inNamespace bool, namespace string) error {
	if c.watch && isTerminal(c.out) {
		fmt.Fprint(c.out, "\x1b[H\x1b[2J") // move the cursor to the top and clear the screen
	}
	switch {
	case none && inNamespace:
		fmt.Fprintf(c.errOut, "No resources found in %s namespace.\n", namespace)
	case none:
		fmt.Fprintln(c.errOut, "No resources found")
	}
	_, err := c.out.Write(printed)
	return err
}

func (c *statusCommand) findAll(ctx context.Context, cluster *console.Cluster, asked []console.Named) ([]report.Report, error) {
	all, addCost := []report.Report{}, c.costs.NewCostReader(cluster)
	for i := range asked {
		found, err := c.find(ctx, cluster, &asked[i], addCost)
		if err != nil {
			return nil, err
		}
		if len(found) == 0 && asked[i].Name != "" {
			return nil, asked[i].NoSuch(cluster.Namespace)
		}
		all = append(all, found...)
	}
	return all, nil
}

// find are the reports of what the command line names.
func (c *statusCommand) find(
	ctx context.Context, cluster *console.Cluster, n *console.Named, addCost func(context.Context, *v1beta1.WorkloadSpread, *report.Report) error,
) (all []report.Report, _ error) {
	var options []client.ListOption
	switch {
	case n.Name != "" && (c.allNamespaces || c.labels != ""):
		return nil, errors.New("a name and --all-namespaces or --selector do not go together; name the namespace with -n")
	case n.Name != "":
		options = append(options, client.MatchingFields{"metadata.name": n.Name})
	case c.labels != "":
		selector, err := labels.Parse(c.labels)
		if err != nil {
			return nil, fmt.Errorf("--selector: %w", err)
		}
		options = append(options, client.MatchingLabelsSelector{Selector: selector})
	}
	for _, kind := range n.Kinds {
		list, in := kind.NewList(), options
		if !c.allNamespaces && !kind.Everywhere {
			in = append(slices.Clone(options), client.InNamespace(cluster.Namespace))
		}
		err := cluster.List(ctx, list, in...)
		switch optional := len(n.Kinds) > 1 && kind != console.Spreads; {
		case err == nil:
		case optional && meta.IsNoMatchError(err):
			continue
		case optional && apierrors.IsForbidden(err): // a role may be from a time before the kind
			fmt.Fprintf(c.errOut, "kubectl berth: without %ss: %s\n", kind.Kind, console.Advise(err))
			continue
		default:
			return nil, err
		}
		if err := meta.EachListItem(list, func(item runtime.Object) error {
			all = append(all, report.Of(item.(metav1.Object), now()))
			if spread, is := item.(*v1beta1.WorkloadSpread); is {
				return addCost(ctx, spread, &all[len(all)-1])
			}
			return nil
		}); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// print prints reports. isOne is true if the command line names one object.
func (c *statusCommand) print(w io.Writer, all []report.Report, isOne bool) error {
	var names []string
	for i := range all {
		names = append(names, console.NameOf(all[i].Of.Kind, all[i].Of.Group, all[i].Metadata.Name))
	}
	var content any = all
	if isOne && len(all) == 1 {
		content = &all[0]
	}
	if done, err := c.output.Structured(w, "Report", content, names...); done {
		return err
	}
	for i := range all {
		if i > 0 {
			fmt.Fprintln(w)
		}
		if err := c.printOne(w, &all[i]); err != nil {
			return err
		}
	}
	return nil
}

func (c *statusCommand) printOne(w io.Writer, r *report.Report) error {
	state := "Ready"
	if !r.Ready {
		state = cmp.Or(r.Reason, "Unknown")
	}
	name := r.Metadata.Name
	if r.Of.Kind != console.Spreads.Kind {
		name = strings.ToLower(r.Of.Kind) + "/" + name
	}
	heading := []string{name, r.Target, r.Strategy}
	if c.allNamespaces {
		heading = slices.Insert(heading, 0, r.Metadata.Namespace)
	}
	if r.Target != "" {
		heading = append(heading, report.Pods(r.Replicas, "asked for", "asked for"))
	}
	heading = slices.DeleteFunc(append(heading, state), func(cell string) bool { return cell == "" })
	if err := console.PrintTable(w, [][]string{heading}); err != nil {
		return err
	}
	for _, table := range [][][]string{c.subsetRows(r), c.moveRows(r)} {
		if len(table) > 1 {
			if err := c.output.Table(w, table); err != nil {
				return err
			}
		}
	}
	for _, note := range notes(r) {
		fmt.Fprintln(w, "  "+note)
	}
	_, err := fmt.Fprintln(w, "  next: "+r.Next)
	return err
}

// notes are what a person should know besides the tables.
func notes(r *report.Report) (notes []string) {
	for _, of := range []struct {
		n    int32
		what string
	}{{r.Pending, "pending"}, {r.Unplaced, "in no subset"}, {r.Adopted, "bound by others"}, {r.Surplus, "above quota"}} {
		if of.n > 0 {
			notes = append(notes, report.Pods(of.n, of.what, of.what))
		}
	}
	if r.Paused {
		notes = append(notes, "paused: the descheduler moves none of its pods")
	}
	return append(notes, r.Notes...)
}

// moveRows are the last moves of the descheduler, for -o wide.
func (c *statusCommand) moveRows(r *report.Report) [][]string {
	if !c.output.IsWide() {
		return nil
	}
	rows := [][]string{{"  MOVED", "FROM", "TO", "REASON", "ROUND", "IN FLIGHT"}}
	for i := range r.Moves {
		m := &r.Moves[i]
		var pods []string
		for _, pod := range m.InFlight {
			pods = append(pods, pod.Name)
		}
		rows = append(rows, []string{"  " + duration.HumanDuration(now().Sub(m.Time.Time)) + " ago", cmp.Or(m.From, "-"), cmp.Or(m.To, "-"), m.Reason, number(m.Round), cmp.Or(strings.Join(pods, " "), "-")})
	}
	return rows
}

func (c *statusCommand) subsetRows(r *report.Report) (rows [][]string) {
	// While there are several revisions, each has a row of its own, because it has the quota for itself.
	divided := slices.ContainsFunc(r.Subsets, func(s report.Subset) bool { return len(s.Revisions) > 0 })
	elsewhere := slices.ContainsFunc(r.Subsets, func(s report.Subset) bool { return s.Cluster != "" })
	add := func(name, revision, kept, quota, target, price, fill, schedulable, cluster, message string) {
		row := []string{"  " + name}
		if divided {
			row = append(row, revision)
		}
		row = append(row, kept, quota)
		if r.ByTarget || c.output.IsWide() {
			row = append(row, target)
		}
		if c.costs.Shown() {
			row = append(row, price)
		}
		row = append(row, fill, schedulable)
		if elsewhere {
			row = append(row, cmp.Or(cluster, "-"))
		}
		if c.output.IsWide() {
			row = append(row, cmp.Or(message, "-"))
		}
		rows = append(rows, row)
	}
	add("SUBSET", "REVISION", "KEPT", "QUOTA", "TARGET", "POD/HOUR", "FILL", "SCHEDULABLE", "CLUSTER", "MESSAGE")
	for _, s := range r.Subsets {
		quota, schedulable, price := "-", "yes", "-"
		if s.PodPrice != nil {
			price = report.Price(*s.PodPrice)
		}
		if s.Quota != nil {
			quota = number(*s.Quota)
		}
		if !s.Schedulable {
			schedulable = "no"
		}
		for _, scope := range s.Scopes() {
			add(s.Name, scope.Name, number(scope.Pods), quota, number(s.Target), price, bar(s, scope.Pods, r.ByTarget), schedulable, s.Cluster, s.Message)
		}
	}
	return rows
}

func number(n int32) string { return strconv.Itoa(int(n)) }

// barWidth is the width of a full quota.
const barWidth = 20

// bar shows how much of its quota a subset holds, by the pods of one quota scope. Without a quota, and if asked for, it
// shows how much of its target.
func bar(s report.Subset, pods int32, byTarget bool) string {
	whole := s.Target
	if s.Quota != nil && !byTarget {
		whole = *s.Quota
	}
	filled := barWidth
	if pods <= whole {
		filled = int(pods) * barWidth / max(int(whole), 1)
	}
	return strings.Repeat("█", filled) + strings.Repeat("·", barWidth-filled)
}

// isTerminal is true for a file that is a terminal.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}
