package cycle

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/berth-project/berth/pkg/moves"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// placed is a pod of a spread.
type placed struct {
	spread *spread
	pod    *moves.Pod
}

// shared is what pods have in common for which the same nodes of a subset fit: their controller makes them all alike.
type shared struct {
	spread     *spread
	subset     int
	controller types.UID
}

// ComesBack is true if the pod that would be made in place of this one goes to the same node again: its subset is due
// for it, and no other node of the subset is for it. The eviction of such a pod changes nothing, and another strategy
// would ask for it in each cycle. ComesBack does not look at the room on nodes.
func (c *Cycle) ComesBack(pod *corev1.Pod) bool {
	if c.placed == nil {
		c.placed, c.alone = map[types.UID]placed{}, map[shared]string{}
		for _, s := range c.spreads {
			pods := make([]subset.Pod, len(s.facts.Pods))
			for i := range s.facts.Pods {
				pods[i] = s.facts.Pods[i].Pod
				c.placed[pods[i].UID] = placed{s, &s.facts.Pods[i]}
			}
			s.tally = s.facts.Policy.Count(pods, s.facts.Name)
		}
	}
	at, found := c.placed[pod.UID]
	if !found {
		return false
	}
	policy := at.spread.facts.Policy
	index, _ := policy.SubsetOf(&at.pod.Pod, at.spread.facts.Name)
	if index == subset.None {
		return false
	}
	plan := policy.Plan(at.spread.facts.Replicas)
	replacement := policy.At(&plan, at.pod.Position, subset.Candidate{Holds: subset.Mask(0).With(index)})
	if policy.Admit(&plan, at.spread.tally.Kept(policy.ScopeOf(at.pod.Revision)), replacement).Subset != index {
		return false
	}
	key := shared{at.spread, index, workload.ControllerUID(pod)}
	node, known := c.alone[key]
	if !known {
		node = c.onlyNode(pod, &policy.Subsets[index])
		c.alone[key] = node
	}
	return node != "" && node == pod.Spec.NodeName
}

// onlyNode is the node of the subset that is for pods like this one, if there is exactly one.
func (c *Cycle) onlyNode(pod *corev1.Pod, in *subset.Subset) (only string) {
	affinity := nodeaffinity.GetRequiredNodeAffinity(pod)
	for _, node := range c.snapshot.Nodes {
		matches, err := affinity.Match(node)
		if err != nil || !matches || !in.Holds(node) || !in.Tolerates(node, pod.Spec.Tolerations) {
			continue
		}
		if only != "" {
			return ""
		}
		only = node.Name
	}
	return only
}
