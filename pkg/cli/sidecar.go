package cli

import (
	"context"
	"fmt"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
	"github.com/berth-project/berth/pkg/report"
)

// sidecarPrefix begins the name of a SidecarSet on the command line. They are in no namespace, so that they are not listed beside what is in one.
const sidecarPrefix = "sidecarset/"

// isSidecars is true if the arguments name a SidecarSet, or all of them.
func isSidecars(args []string) bool {
	return len(args) == 1 && (strings.HasPrefix(args[0], sidecarPrefix) || args[0] == "sidecarsets")
}

// ofSidecars prints the SidecarSet that the argument names, or all.
func (c *statusCommand) ofSidecars(ctx context.Context, cluster *console.Cluster, argument string) error {
	var list v1beta1.SidecarSetList
	if name, one := strings.CutPrefix(argument, sidecarPrefix); one {
		set := v1beta1.SidecarSet{}
		if err := cluster.Get(ctx, client.ObjectKey{Name: name}, &set); err != nil {
			return err
		}
		list.Items = append(list.Items, set)
	} else if err := cluster.List(ctx, &list); err != nil {
		return err
	}
	all := []any{}
	for i := range list.Items {
		all = append(all, report.OfSidecarSet(&list.Items[i]))
	}
	return c.print(all, "SidecarSets")
}

func (c *statusCommand) printSidecars(r *report.Sidecars) error {
	p := console.PaletteFor(c.out)
	heading := []console.Cell{{Text: r.Name}, {Text: r.Kind}, {Text: report.Pods(r.Matched, "", "")}, stateCell(r.Ready, r.Reason)}
	if err := console.PrintTable(c.out, p, [][]console.Cell{heading}); err != nil {
		return err
	}
	rows := [][]console.Cell{
		{{Text: "  REVISION"}, {Text: "UPDATED"}, {Text: "READY"}, {Text: "NOT UPDATABLE"}, {Text: "NOT INJECTED"}},
		{{Text: "  " + r.Revision}, {Text: number(r.Updated)}, {Text: number(r.Available)}, {Text: number(r.NotUpdatable)}, {Text: number(r.NotInjected)}},
	}
	if err := console.PrintTable(c.out, p, rows); err != nil {
		return err
	}
	_, err := fmt.Fprintln(c.out, "  next: "+r.Next)
	return err
}
