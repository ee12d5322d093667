package cli

import (
	"cmp"
	"context"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/utils/clock"

	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/snapshot"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// Branch is one object of the tree of a spread: the spread, its workload, owners between that and the pods, subsets, and pods.
type Branch struct {
	// Kind is that of the object, or Subset, or Cluster. A Subset without a name holds the pods of no subset.
	Kind string `json:"kind"`
	Name string `json:"name,omitempty"`
	// Kept is how many pods of the owner a subset keeps, and how many are available in a cluster. Nil for everything else.
	Kept *int32 `json:"kept,omitempty"`
	// Quota of a subset, or replicas that a cluster is asked for. Nil for no limit.
	Quota *int32 `json:"quota,omitempty"`
	// Node of a pod.
	Node string `json:"node,omitempty"`
	// State of a pod: Pending, Starting, Ready, Terminating or Ended; of a spread: Ready, or why it is not; and of a cluster.
	State    string     `json:"state,omitempty"`
	Created  *time.Time `json:"created,omitempty"`
	Branches []*Branch  `json:"branches,omitempty"`
}

// sub is the branch of this kind and name, which is added if there is none.
func (b *Branch) sub(kind, name string) *Branch {
	at := slices.IndexFunc(b.Branches, func(sub *Branch) bool { return sub.Kind == kind && sub.Name == name })
	if at < 0 {
		at = len(b.Branches)
		b.Branches = append(b.Branches, &Branch{Kind: kind, Name: name})
	}
	return b.Branches[at]
}

const kindSubset = "Subset"

// leaf is a pod with its place in the tree.
type leaf struct {
	subset.Pod
	terminates bool
	// owners from the workload down to the pod's controller.
	owners []workload.Owner
	// in is the subset, or the one that admission picked for a pending pod. It may be subset.None.
	in int
}

// treeOf is the tree of a spread whose pods are in the snapshot. Nodes need not be.
func treeOf(ctx context.Context, s *snapshot.Snapshot, spread *v1beta1.WorkloadSpread) (*Branch, error) {
	r := reportOf(spread)
	root := &Branch{Kind: "WorkloadSpread", Name: spread.Name, State: "Ready", Created: &spread.CreationTimestamp.Time}
	if !r.Ready {
		root.State = cmp.Or(string(r.Reason), "Unknown")
	}
	target := workload.TargetOf(spread)
	root.sub(target.Kind.Kind, target.Name)
	policy, _ := subset.Compile(spread, field.NewPath("spec"))
	if policy == nil {
		return root, nil // its state says so
	}
	leaves, err := leavesOf(ctx, s, spread, policy)
	if err != nil {
		return nil, err
	}
	plan := policy.Plan(spread.Status.ObservedReplicas)
	for _, l := range leaves {
		branch := root
		for _, owner := range l.owners {
			branch = branch.sub(owner.Kind.Kind, owner.Name)
			if object, _ := s.Owner(spread.Namespace, owner); object != nil {
				created := object.GetCreationTimestamp().Time
				branch.Created = &created
			}
		}
		name := ""
		if l.in != subset.None {
			name = policy.Subsets[l.in].Name
		}
		branch = branch.sub(kindSubset, name)
		if l.in != subset.None {
			if quota := plan.Quota[l.in]; quota != subset.NoLimit {
				branch.Quota = &quota
			}
			if branch.Kept == nil {
				branch.Kept = new(int32)
			}
			if l.Active && l.NodeName != "" {
				*branch.Kept++
			}
		}
		pod := branch.sub("Pod", l.Name)
		pod.Node, pod.State, pod.Created = l.NodeName, stateOf(&l), &l.Created
	}
	return root, nil
}

// leavesOf are the pods that the spread divides, sorted by owners, subset and name.
func leavesOf(ctx context.Context, s *snapshot.Snapshot, spread *v1beta1.WorkloadSpread, policy *subset.Policy) ([]leaf, error) {
	target := workload.TargetOf(spread)
	var leaves []leaf
	for _, pod := range s.Pods {
		of, err := s.SpreadOf(ctx, pod)
		if err != nil {
			return nil, err
		}
		if of == nil || of.Name != spread.Name {
			continue
		}
		l := leaf{Pod: subset.Observe(pod, s.Node(pod.Spec.NodeName))}
		if _, err := s.Lineage.Climb(ctx, pod.Namespace, workload.ControllerOf(pod), func(owner workload.Owner) (bool, error) {
			l.owners = append(l.owners, owner)
			return owner.Kind == target.Kind && owner.Name == target.Name, nil
		}); err != nil {
			return nil, err
		}
		slices.Reverse(l.owners)
		var adopted bool
		if l.in, adopted = policy.SubsetOf(&l.Pod, spread.Name); adopted {
			l.in = policy.Index(pod.Labels[v1beta1.SubsetLabel]) // the controller knows the node
		}
		if l.NodeName == "" {
			l.in, _ = policy.AdmittedTo(l.Admitted, spread.Name)
		}
		l.terminates = pod.DeletionTimestamp != nil
		leaves = append(leaves, l)
	}
	slices.SortFunc(leaves, func(a, b leaf) int {
		rank := func(l leaf) int { return (l.in + len(policy.Subsets) + 1) % (len(policy.Subsets) + 1) } // subset.None is last
		return cmp.Or(slices.CompareFunc(a.owners, b.owners, func(x, y workload.Owner) int { return cmp.Compare(x.Name, y.Name) }),
			cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Name, b.Name))
	})
	return leaves, nil
}

func stateOf(l *leaf) string {
	switch {
	case l.terminates:
		return "Terminating"
	case !l.Active:
		return "Ended"
	case l.NodeName == "":
		return "Pending"
	case l.Ready:
		return "Ready"
	default:
		return "Starting"
	}
}

// treeCommand is "kubectl berth tree".
type treeCommand struct {
	out    io.Writer
	output console.Output
}

func newTree(flags *console.Flags, streams genericiooptions.IOStreams) *cobra.Command {
	c := &treeCommand{out: streams.Out}
	cmd := &cobra.Command{
		Use:   "tree NAME",
		Short: "The workload of a spread, the children of a UnitedDeployment or the clusters of a FederatedReplicaSet, and the pods by subset",
		Long: `The workload of a spread, the owners between it and its pods, such as ReplicaSets, and for each owner its pods by subset, with node, state and age.
Of a UnitedDeployment it shows the subsets with their children and pods, and of a FederatedReplicaSet the clusters with their ReplicaSets, available pods and replicas. If several have
the name, it shows the first of these.

It lists the spreads, pods and built-in workloads of the namespace, and no nodes. For a pod that Berth did not bind, the subset is the one of its label
` + v1beta1.SubsetLabel + `, which the controller sets.`,
		Example:           "  kubectl berth tree web",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: console.NamesOfDivided(flags),
		RunE:              console.OnCluster(flags, c.run),
	}
	c.output.AddTo(cmd.Flags())
	return cmd
}

func (c *treeCommand) run(ctx context.Context, cluster *console.Cluster, args []string) error {
	name := args[0]
	s, err := snapshot.TakeNamespace(ctx, cluster, clock.RealClock{}, cluster.Namespace)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(s.Spreads, func(spread v1beta1.WorkloadSpread) bool { return spread.Name == name })
	var root *Branch
	if at >= 0 {
		root, err = treeOf(ctx, s, &s.Spreads[at])
	} else {
		united, failed := listUnited(ctx, cluster, named(cluster, name))
		if failed != nil {
			return failed
		}
		federated, failed := listFederated(ctx, cluster, named(cluster, name))
		if failed != nil && len(united) == 0 {
			return failed
		}
		switch {
		case len(united) > 0:
			root, err = treeOfUnited(ctx, s, &united[0])
		case len(federated) > 0:
			root = treeOfFederated(&federated[0])
		default:
			return console.NoSuchDivided(name, cluster.Namespace)
		}
	}
	if err != nil {
		return err
	}
	if done, err := c.output.Structured(c.out, root); done {
		return err
	}
	rows := [][]console.Cell{{{Text: "NAME"}, {Text: "KEPT"}, {Text: "QUOTA"}, {Text: "NODE"}, {Text: "STATE"}, {Text: "AGE"}}}
	return console.PrintTable(c.out, console.PaletteFor(c.out), root.rows(rows, "", ""))
}

// rows appends the branch and everything below it. first precedes its name, and rest the names below it.
func (b *Branch) rows(rows [][]console.Cell, first, rest string) [][]console.Cell {
	name, kept, quota, age := b.Kind+"/"+b.Name, "", "", ""
	if b.Kind == kindCluster {
		name = "cluster " + b.Name
	}
	if b.Kind == kindSubset {
		name = "no subset"
		if b.Name != "" {
			name, quota = "subset "+b.Name, "-"
		}
	}
	if b.Kept != nil {
		kept = strconv.Itoa(int(*b.Kept))
	}
	if b.Quota != nil {
		quota = strconv.Itoa(int(*b.Quota))
	}
	if b.Created != nil {
		age = duration.HumanDuration(now().Sub(*b.Created))
	}
	state := console.Cell{Text: b.State}
	if b.State != "" && b.State != "Ready" {
		state.Color = console.Yellow
	}
	rows = append(rows, []console.Cell{{Text: first + name}, {Text: kept}, {Text: quota}, {Text: b.Node}, state, {Text: age}})
	for i, sub := range b.Branches {
		if i < len(b.Branches)-1 {
			rows = sub.rows(rows, rest+"├─ ", rest+"│  ")
		} else {
			rows = sub.rows(rows, rest+"└─ ", rest+"   ")
		}
	}
	return rows
}
