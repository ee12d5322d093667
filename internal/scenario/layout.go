package scenario

import (
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
)

// Layout is where the pods of one spread are, as visible to anyone who may read pods, nodes, the spread and its
// workload.
type Layout struct {
	Spread   string
	Workload Reference
	Replicas int32
	Rows     []Row
	// NoSubset are the active bound pods in no subset.
	NoSubset int32
	// Pending are the active pods without a node. Only the scheduler knows for which subset they wait.
	Pending int32
	// Finished are the pods that have succeeded or failed. They hold no slot.
	Finished int32
	// Revisions is the number of revisions of the active pods if each of them has its own quotas, and otherwise 1.
	Revisions int
}

// Row is one subset.
type Row struct {
	Subset string
	// Kept are the active bound pods of the subset, of all revisions.
	Kept int32
	// Quota of one revision or of the workload, as the spread says. subset.NoLimit if there is none.
	Quota int32
}

// Observe makes the layout of a spread. replicas and pods are those of the workload. It ignores pods that the spread's
// filter does not select. node returns nil if there is no node of the name. Then the pod is counted by its record only.
func Observe(spread *v1beta1.WorkloadSpread, replicas int32, pods []*corev1.Pod, node func(name string) *corev1.Node) (Layout, error) {
	policy, errs := subset.Compile(spread, field.NewPath("spec"))
	if len(errs) > 0 {
		return Layout{}, fmt.Errorf("reading WorkloadSpread %s: %w", spread.Name, errs.ToAggregate())
	}
	plan := policy.Plan(replicas)
	layout := Layout{
		Spread:   spread.Name,
		Workload: Reference{Kind: spread.Spec.TargetReference.Kind, Name: spread.Spec.TargetReference.Name},
		Replicas: plan.Replicas,
		Rows:     make([]Row, len(policy.Subsets)),
	}
	for i := range policy.Subsets {
		layout.Rows[i] = Row{Subset: policy.Subsets[i].Name, Quota: plan.Quota[i]}
	}
	scopes := sets.New[string]()
	for _, object := range pods {
		if !policy.Selects(object.Labels) {
			continue
		}
		pod := subset.Observe(object, node(object.Spec.NodeName))
		if !pod.Active {
			if object.DeletionTimestamp == nil {
				layout.Finished++
			}
			continue
		}
		scopes.Insert(policy.ScopeOf(pod.Revision))
		in, _ := policy.SubsetOf(&pod, spread.Name)
		switch {
		case pod.NodeName == "":
			layout.Pending++
		case in == subset.None:
			layout.NoSubset++
		default:
			layout.Rows[in].Kept++
		}
	}
	layout.Revisions = max(scopes.Len(), 1)
	return layout, nil
}

// noSubset is the row of the pods in no subset. It is no valid name of a subset.
const noSubset = "(none)"

// Table prints the layout:
//
//	web-spread  Deployment/web  replicas 8  pending 1
//	SUBSET   KEPT  QUOTA
//	normal   5     5
//	elastic  1     -
//	(none)   1     -
//
// The first line has revisions if more than one revision has its own quotas, and pending and finished if there are such
// pods. The last row exists if pods are in no subset.
func (l Layout) Table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s  replicas %d", l.Spread, l.Workload, l.Replicas)
	if l.Revisions > 1 {
		fmt.Fprintf(&b, "  revisions %d", l.Revisions)
	}
	if l.Pending > 0 {
		fmt.Fprintf(&b, "  pending %d", l.Pending)
	}
	if l.Finished > 0 {
		fmt.Fprintf(&b, "  finished %d", l.Finished)
	}
	b.WriteByte('\n')

	rows := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	row := func(cells ...string) {
		// A strings.Builder does not fail, so neither does the writer on top of it.
		_, _ = fmt.Fprintln(rows, strings.Join(cells, "\t"))
	}
	row("SUBSET", "KEPT", "QUOTA")
	for _, r := range l.Rows {
		row(r.Subset, strconv.Itoa(int(r.Kept)), subset.FormatQuota(r.Quota))
	}
	if l.NoSubset > 0 {
		row(noSubset, strconv.Itoa(int(l.NoSubset)), subset.FormatQuota(subset.NoLimit))
	}
	_ = rows.Flush() // as above
	return b.String()
}

// Tables prints layouts one below the other, with an empty line between.
func Tables(layouts []Layout) string {
	tables := make([]string, len(layouts))
	for i := range layouts {
		tables[i] = layouts[i].Table()
	}
	return strings.Join(tables, "\n")
}
