package cli

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
	"github.com/berth-project/berth/pkg/report"
)

// sidecars are the reports of the SidecarSet of a name, or of all. They are in no namespace.
func sidecars(ctx context.Context, cluster *console.Cluster, name string) (all []any, _ error) {
	var list v1beta1.SidecarSetList
	if name != "" {
		set := v1beta1.SidecarSet{}
		if err := cluster.Get(ctx, client.ObjectKey{Name: name}, &set); err != nil {
			return nil, err
		}
		list.Items = append(list.Items, set)
	} else if err := cluster.List(ctx, &list); err != nil {
		return nil, err
	}
	for i := range list.Items {
		all = append(all, report.OfSidecarSet(&list.Items[i]))
	}
	return all, nil
}

func ofSidecars(r *report.Sidecars) printed {
	return printed{next: r.Next, heading: []console.Cell{{Text: r.Name}, {Text: r.Kind}, {Text: report.Pods(r.Matched, "", "")}, stateCell(r.Ready, r.Reason)},
		tables: [][][]console.Cell{{
			{{Text: "  REVISION"}, {Text: "UPDATED"}, {Text: "READY"}, {Text: "NOT UPDATABLE"}, {Text: "NOT INJECTED"}},
			{{Text: "  " + r.Revision}, {Text: number(r.Updated)}, {Text: number(r.Available)}, {Text: number(r.NotUpdatable)}, {Text: number(r.NotInjected)}},
		}}}
}
