package cli

import (
	"cmp"
	"context"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/report"
	"github.com/berth-project/berth/pkg/snapshot"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// listUnited lists UnitedDeployments. A cluster without the kind has none.
func listUnited(ctx context.Context, cluster *console.Cluster, options []client.ListOption) ([]v1beta1.UnitedDeployment, error) {
	var list v1beta1.UnitedDeploymentList
	err := listIfServed(ctx, cluster, &list, options)
	return list.Items, err
}

// listIfServed lists objects. A cluster without the kind has none.
func listIfServed(ctx context.Context, cluster *console.Cluster, list client.ObjectList, options []client.ListOption) error {
	if err := cluster.List(ctx, list, options...); err != nil && !meta.IsNoMatchError(err) {
		return err
	}
	return nil
}

func (c *statusCommand) ofUnited(r *report.United) printed {
	is := printed{next: r.Next, heading: []console.Cell{{Text: c.nameOf(r.Namespace, r.Name)}, {Text: "UnitedDeployment"}, {Text: r.Strategy}, {Text: report.Pods(r.Replicas, "asked for", "asked for")},
		stateCell(r.Ready, string(r.Reason))}}
	if len(r.Subsets) == 0 {
		return is
	}
	rows := [][]console.Cell{{{Text: "  SUBSET"}, {Text: "READY"}, {Text: "REPLICAS"}, {Text: "RESERVED"}, {Text: "PARTITION"}, {Text: "SCHEDULABLE"}}}
	elsewhere := slices.ContainsFunc(r.Subsets, func(s report.UnitedSubset) bool { return s.Cluster != "" })
	if elsewhere {
		rows[0] = append(rows[0], console.Cell{Text: "CLUSTER"})
	}
	if c.output == console.AsWide {
		rows[0] = append(rows[0], console.Cell{Text: "MESSAGE"})
	}
	for _, s := range r.Subsets {
		schedulable := console.Cell{Text: "yes"}
		if !s.Schedulable {
			schedulable = console.Cell{Text: "no", Color: console.Yellow}
		}
		row := []console.Cell{{Text: "  " + s.Name}, {Text: number(s.Ready)}, {Text: number(s.Replicas)}, {Text: number(s.Reserved)}, {Text: number(s.Partition)}, schedulable}
		if elsewhere {
			row = append(row, console.Cell{Text: cmp.Or(s.Cluster, "-")})
		}
		if c.output == console.AsWide {
			row = append(row, console.Cell{Text: s.Message})
		}
		rows = append(rows, row)
	}
	is.tables = [][][]console.Cell{rows}
	return is
}

func number(n int32) string { return strconv.Itoa(int(n)) }

// treeOfUnited is the tree of a UnitedDeployment: its subsets, their children, the owners between these and the pods, and the pods.
func treeOfUnited(ctx context.Context, s *snapshot.Snapshot, ud *v1beta1.UnitedDeployment) (*Branch, error) {
	r := report.OfUnited(ud, now())
	root := &Branch{Kind: "UnitedDeployment", Name: ud.Name, State: stateCell(r.Ready, string(r.Reason)).Text, Created: &ud.CreationTimestamp.Time}
	for _, is := range r.Subsets {
		branch := root.sub(kindSubset, is.Name)
		branch.Kept, branch.Quota = new(int32), &is.Replicas
	}
	pods := slices.SortedFunc(slices.Values(s.Pods), func(a, b *corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	for _, pod := range pods {
		owners, err := ownersBelow(ctx, s, pod, ud)
		if err != nil {
			return nil, err
		}
		if owners == nil {
			continue
		}
		in := root.sub(kindSubset, pod.Labels[v1beta1.SubsetNameLabel])
		branch := in
		for _, owner := range owners {
			branch = branch.sub(owner.Kind.Kind, owner.Name)
			if object, _ := s.Owner(ud.Namespace, owner); object != nil {
				created := object.GetCreationTimestamp().Time
				branch.Created = &created
			}
		}
		l := leaf{Pod: subset.Observe(pod, s.Node(pod.Spec.NodeName)), terminates: pod.DeletionTimestamp != nil}
		if in.Kept != nil && l.Active && l.NodeName != "" {
			*in.Kept++
		}
		branch = branch.sub("Pod", l.Name)
		branch.Node, branch.State, branch.Created = l.NodeName, stateOf(&l), &l.Created
	}
	return root, nil
}

// ownersBelow are the owners of a pod from the child of a UnitedDeployment down. It is nil for a pod of something else.
func ownersBelow(ctx context.Context, s *snapshot.Snapshot, pod *corev1.Pod, ud *v1beta1.UnitedDeployment) ([]workload.Owner, error) {
	var owners, below []workload.Owner
	_, err := s.Lineage.Climb(ctx, pod.Namespace, workload.ControllerOf(pod), func(owner workload.Owner) (bool, error) {
		if owner.Kind == v1beta1.Kind.GroupKind() && owner.UID == ud.UID {
			below = owners
			return true, nil
		}
		owners = append(owners, owner)
		return false, nil
	})
	slices.Reverse(below)
	return below, err
}
