package workloadspread

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
)

// Admission gives a pod the node affinity and the tolerations of all subsets. Filters that look at one node are not misled by that: WorkloadSpread
// refuses nodes that only other subsets select or tolerate. Two stock plugins are misled:
//
//   - PodTopologySpread counts the domains that the pod may go to. A domain outside of the pod's subset would count as a domain without pods. As it
//     stays empty, the filter would refuse every other domain. The scores of the plugin only rank nodes of the subset, and correctly by the pods of all
//     subsets.
//   - TaintToleration ranks nodes by the PreferNoSchedule taints that the pod does not tolerate.
//
// Both store their results in the cycle state. So once the pod has its subset, the profile's own instance of the plugin is called again, for the pod
// narrowed to that subset. Its second result replaces the first one, which must come before and is not used.
const (
	// topologyState is absent if the pod has no constraint that PodTopologySpread filters by.
	topologyState = fwk.StateKey("PreFilter" + names.PodTopologySpread)
	taintState    = fwk.StateKey("PreScore" + names.TaintToleration)
)

// recount makes PodTopologySpread count for the pod in its subset, which must not be subset.None.
func (s *Spread) recount(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, d *decision, nodes []fwk.NodeInfo) *fwk.Status {
	if _, err := state.Read(topologyState); err != nil {
		if slices.ContainsFunc(pod.Spec.TopologySpreadConstraints, refusesNodes) {
			for _, at := range pointsOf(s.handle.(framework.Framework)) {
				if at.countsTooLate() {
					return fwk.AsStatus(fmt.Errorf("profile %q: plugins.%s: %s", s.handle.ProfileName(), at.name, countsTooLate))
				}
			}
		}
		return nil
	}
	narrow := d.Policy.Subsets[d.Subset].Narrow(pod, d.Own)
	if narrow == pod {
		return nil
	}
	plugin, ok := s.stockPlugin(names.PodTopologySpread).(fwk.PreFilterPlugin)
	if !ok {
		return fwk.AsStatus(fmt.Errorf("profile %q does not let WorkloadSpread read its plugin %s", s.handle.ProfileName(), names.PodTopologySpread))
	}
	_, status := plugin.PreFilter(ctx, state, narrow, nodes)
	if status.IsSkip() {
		return nil // the constraints were defaults for the pods of a service, and the service was deleted since the first count
	}
	return status
}

// rankTaints makes TaintToleration rank nodes for the pod in its subset, which must not be subset.None.
func (s *Spread) rankTaints(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, d *decision, nodes []fwk.NodeInfo) *fwk.Status {
	if _, err := state.Read(taintState); err != nil || len(d.Own) == len(pod.Spec.Tolerations) {
		return nil
	}
	if plugin, ok := s.stockPlugin(names.TaintToleration).(fwk.PreScorePlugin); ok {
		return plugin.PreScore(ctx, state, d.Policy.Subsets[d.Subset].Narrow(pod, d.Own), nodes)
	}
	return nil
}

// stockPlugin is a plugin of the profile by its name, or nil. A framework returns the plugins that register events, as all stock filters do.
func (s *Spread) stockPlugin(name string) fwk.Plugin {
	for _, plugin := range s.handle.(framework.Framework).EnqueueExtensions() {
		if plugin.Name() == name {
			return plugin
		}
	}
	return nil
}

func refusesNodes(c corev1.TopologySpreadConstraint) bool {
	return c.WhenUnsatisfiable == corev1.DoNotSchedule
}
