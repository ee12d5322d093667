package united

import (
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-project/berth/pkg/sites"
)

// Policy is a valid UnitedDeployment, compiled for use. It is immutable.
type Policy struct {
	// Name and Namespace of the UnitedDeployment.
	Namespace, Name string
	// Replicas is the total.
	Replicas int32
	// LabelSelector of the pods of all children, without the subset.
	LabelSelector *metav1.LabelSelector
	// Template of the children. Nil if the template is empty: the children stay as they are.
	Template *Template
	// Subsets in order.
	Subsets []Subset
	// ClusterNamespaces are those of the clusters that subsets may name, or empty, and ClusterSelector the labels that they must have.
	ClusterNamespaces []string
	ClusterSelector   map[string]string
	// Adaptive is nil with strategy Fixed.
	Adaptive *adaptive
	// Paused keeps changed templates and patches from children.
	Paused bool
	// InOrder updates a subset when all earlier ones have been updated and are ready.
	InOrder bool
	// Surge is how many replicas all children together may have above the total while replicas move. At least 1.
	Surge int32
	// History is how many old revisions are kept.
	History int32
	// Warnings are about a spec that is valid, but probably not what was meant. Each begins with the path of a field.
	Warnings []string
}

// Template is the template of the children.
type Template struct {
	// Kind of the children.
	Kind schema.GroupKind
	// Metadata and Spec as decoded from JSON. They must not be changed.
	Metadata, Spec map[string]any
}

// Kinds of children.
var (
	DeploymentKind          = schema.GroupKind{Group: "apps", Kind: "Deployment"}
	StatefulSetKind         = schema.GroupKind{Group: "apps", Kind: "StatefulSet"}
	AdvancedStatefulSetKind = schema.GroupKind{Group: "apps.kruise.io", Kind: "StatefulSet"}
	CloneSetKind            = schema.GroupKind{Group: "apps.kruise.io", Kind: "CloneSet"}
)

// Subset is a compiled subset.
type Subset struct {
	Name string
	// Cluster of the child, and its namespace if the spec says one. Empty is the cluster of the UnitedDeployment.
	Cluster, ClusterNamespace string
	// Term selects the nodes. Nil selects every node.
	Term        *corev1.NodeSelectorTerm
	Tolerations []corev1.Toleration
	// Replicas are specified, or not. Min and Max bound them, or not.
	Replicas, Min, Max replicaCount
	// PatchText is the strategic merge patch of the pod template as the user wrote it, in JSON. Empty if there is none.
	PatchText string
	// Partition is how many replicas keep the previous template.
	Partition int32
}

// adaptive is the strategy Adaptive.
type adaptive struct {
	// Critical is for how long a pod may find no node before its replica goes to another subset.
	Critical time.Duration
	// Unschedulable is for how long the subset then gets no new replicas. Each time that a trial fails, it is twice as long.
	Unschedulable time.Duration
	// Lost is for how long a cluster may not answer before other subsets run its replicas.
	Lost time.Duration
	// Reserve keeps pods that find no node, while another subset runs pods in their place.
	Reserve bool
}

// Pause is for how long a subset gets no new replicas after so many trials in a row that have failed.
func (a *adaptive) Pause(failedTrials int32) time.Duration {
	return sites.Backoff(a.Unschedulable, failedTrials)
}

// Clusters are the names of the clusters of subsets, but for that of the UnitedDeployment, in order.
func (p *Policy) Clusters() []string {
	var names []string
	for i := range p.Subsets {
		if name := p.Subsets[i].Cluster; name != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// replicaCount is a number of replicas, or a percentage of the total. Its zero value is neither.
type replicaCount struct {
	// IsSet is true for both.
	IsSet     bool
	IsPercent bool
	Value     int32
}

// Of is the number of replicas out of a total. A percentage is rounded to the nearest number, and a half upwards. It is 0 if the count is not set.
func (c replicaCount) Of(total int32) int32 {
	if !c.IsPercent {
		return c.Value
	}
	return int32(min((int64(c.Value)*int64(total)+50)/100, math.MaxInt32))
}
