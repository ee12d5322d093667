package cli

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	"github.com/berth-project/berth/pkg/report"
)

const (
	kindCluster    = "Cluster"
	kindReplicaSet = "ReplicaSet"
)

// listFederated lists FederatedReplicaSets. Only a hub has them.
func listFederated(ctx context.Context, cluster *console.Cluster, options []client.ListOption) ([]v1alpha1.FederatedReplicaSet, error) {
	var list v1alpha1.FederatedReplicaSetList
	err := listIfServed(ctx, cluster, &list, options)
	return list.Items, err
}

func (c *statusCommand) ofFederated(r *report.Federated) printed {
	is := printed{next: r.Next, heading: []console.Cell{{Text: c.nameOf(r.Namespace, r.Name)}, {Text: r.Kind}, {Text: report.Pods(r.Replicas, "asked for", "asked for")}, stateCell(r.Ready, r.Reason)}}
	if len(r.Clusters) > 0 {
		rows := [][]console.Cell{{{Text: "  CLUSTER"}, {Text: "AVAILABLE"}, {Text: "ASKED"}, {Text: "SHARE"}, {Text: "CAPACITY"}, {Text: "STATE"}, {Text: "MESSAGE"}}}
		for _, in := range r.Clusters {
			capacity := "-"
			if in.Capacity != nil {
				capacity = number(*in.Capacity)
			}
			if in.Until != nil {
				capacity += " for " + in.Until.Sub(now()).Round(time.Second).String()
			}
			state := console.Cell{Text: string(in.State)}
			if in.State != v1alpha1.ClusterReady {
				state.Color = console.Yellow
			}
			rows = append(rows, []console.Cell{
				{Text: "  " + in.Name}, {Text: number(in.Available)}, {Text: number(in.Replicas)}, {Text: number(in.Share)}, {Text: capacity}, state, {Text: in.Message},
			})
		}
		is.tables = [][][]console.Cell{rows}
	}
	if r.MayExceedBy > 0 && r.Reason != v1alpha1.ReasonUnreachable { // otherwise the next step says it
		is.notes = append(is.notes, fmt.Sprintf("up to %s above the total may run", report.Pods(r.MayExceedBy, "", "")))
	}
	if r.Unplaced != "" && r.Unplaced != r.Next {
		is.notes = append(is.notes, r.Unplaced)
	}
	return is
}

// stateCell is the state of an object as a heading shows it.
func stateCell(ready bool, reason string) console.Cell {
	if ready {
		return console.Cell{Text: "Ready", Color: console.Green}
	}
	return console.Cell{Text: cmp.Or(reason, "Unknown"), Color: console.Yellow}
}

// treeOfFederated is the tree of a FederatedReplicaSet: its clusters with their ReplicaSets, as its status has them. Their pods are in the clusters.
func treeOfFederated(frs *v1alpha1.FederatedReplicaSet) *Branch {
	r := report.OfFederated(frs, now())
	root := &Branch{Kind: r.Kind, Name: r.Name, State: stateCell(r.Ready, r.Reason).Text, Created: &frs.CreationTimestamp.Time}
	for _, in := range r.Clusters {
		branch := root.sub(kindCluster, in.Name)
		branch.State, branch.Kept, branch.Quota = string(in.State), &in.Available, &in.Replicas
		if in.Replicas > 0 || in.Available > 0 {
			branch.sub(kindReplicaSet, frs.Name)
		}
	}
	return root
}
