package cycle

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodeutil "k8s.io/component-helpers/node/util"
	"k8s.io/klog/v2"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/fit"
	"github.com/berth-project/berth/pkg/moves"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// cluster answers the model's questions about the pods of one spread, for one strategy.
type cluster struct {
	*Cycle
	ctx context.Context // the model has no context to pass on
	*spread
	strategy *Strategy
}

var _ moves.Cluster = &cluster{}

// Room implements moves.Cluster.
func (c *cluster) Room(pod *moves.Pod, in int) moves.Room {
	if c.rooms == nil {
		return moves.RoomUnknown
	}
	victim := c.pods[pod.UID]
	replacement, err := c.snapshot.Replacement(victim, c.facts.Policy, c.facts.Name, in)
	if err != nil {
		klog.FromContext(c.ctx).V(4).Info("Cannot tell what would be made in place of a pod", "pod", klog.KObj(victim), "err", err)
		return moves.RoomUnknown
	}
	shape := c.shape(victim, in)
	if shape != "" && c.refused[shape] {
		return moves.NoRoom
	}
	may := func(node *corev1.Node) bool {
		return c.facts.Policy.Subset(in).Holds(node) && steady(node, c.Now, c.strategy.Stable)
	}
	var node string
	var verdict fit.Verdict
	var why error
	if c.facts.Policy.Adaptive.PreemptsFirst {
		node, verdict, why = c.rooms.PlaceByPreemption(c.ctx, replacement, victim, may, func(pod *corev1.Pod) bool { return c.budgets.spare(pod) == "" })
	} else {
		node, verdict, why = c.rooms.Place(c.ctx, replacement, victim, may)
	}
	klog.FromContext(c.ctx).V(4).Info("Looked for room", "pod", klog.KObj(victim), "subset", c.name(in), "node", node, "why", why)
	switch verdict {
	case fit.Fits:
		return moves.HasRoom
	case fit.Unknown:
		return moves.RoomUnknown
	default:
		if shape != "" {
			c.refused[shape] = true
		}
		return moves.NoRoom
	}
}

func (s *spread) name(index int) string { return s.facts.Policy.Subset(index).Name }

// shape is equal for pods of which, once one was found to have no room in a subset, none has in this cycle: room only
// becomes less there. It is empty if it may depend on the pod that goes: because its node is one of the subset's, or
// others look at it.
func (c *cluster) shape(victim *corev1.Pod, in int) string {
	affinity := victim.Spec.Affinity
	if affinity != nil && (affinity.PodAffinity != nil || affinity.PodAntiAffinity != nil) || len(victim.Spec.TopologySpreadConstraints) > 0 {
		return ""
	}
	for i := range victim.Spec.Volumes {
		if volume := &victim.Spec.Volumes[i]; volume.PersistentVolumeClaim != nil || volume.Ephemeral != nil {
			return ""
		}
	}
	if node := c.snapshot.Node(victim.Spec.NodeName); in == subset.None || node != nil && c.facts.Policy.Subsets[in].Holds(node) {
		return ""
	}
	return fmt.Sprintf("%s %d %s %s", c.strategy.Name, in, workload.ControllerUID(victim), victim.Annotations[v1beta1.ConstraintsAnnotation])
}

// steady is true for a node that has been ready, and there, for as long.
func steady(node *corev1.Node, now time.Time, window time.Duration) bool {
	if window == 0 {
		return true
	}
	if now.Sub(node.CreationTimestamp.Time) < window {
		return false
	}
	_, ready := nodeutil.GetNodeCondition(&node.Status, corev1.NodeReady)
	return ready != nil && ready.Status == corev1.ConditionTrue && now.Sub(ready.LastTransitionTime.Time) >= window
}

// Spares implements moves.Cluster.
func (c *cluster) Spares(pod *moves.Pod) v1beta1.Reason {
	victim := c.pods[pod.UID]
	reason := c.budgets.spare(victim)
	switch {
	case !Evictable(victim):
		return v1beta1.ReasonNotEvictable
	case reason != "": // before the filters, one of which may look at budgets and does not say so
		return reason
	case !c.strategy.admits(victim):
		return v1beta1.ReasonNotEvictable
	default:
		return ""
	}
}

// Take implements moves.Cluster.
func (c *cluster) Take(pod *moves.Pod) { c.budgets.take(c.pods[pod.UID]) }
