package workloadspread

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	schedulerconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
)

// PodTopologySpread counts the domains that a pod may go to by the pod's node affinity and tolerations, which admission made those of all subsets. A
// domain outside of the pod's subset would count as one without pods that no pod can go to, and the filter would refuse every other. So WorkloadSpread,
// once it has chosen the subset, has the profile's own instance of the plugin count again, for the pod as it is in that subset. What that
// writes takes the place of the first count, which must therefore have been made before.
//
// Only the filter is. Scores rank nodes of the subset, by the pods of all subsets in their domains, and no other domain counts.

// topologyStateKey is where PodTopologySpread keeps its count. It writes none for a pod without constraints that refuse nodes.
const topologyStateKey = fwk.StateKey("PreFilter" + names.PodTopologySpread)

// recount has PodTopologySpread count for the pod in its subset, which must not be subset.None.
func (s *Spread) recount(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, d *decision, nodes []fwk.NodeInfo) *fwk.Status {
	if _, err := state.Read(topologyStateKey); err != nil {
		if slices.ContainsFunc(pod.Spec.TopologySpreadConstraints, refusesNodes) {
			return fwk.AsStatus(checkOrder(s.handle.(framework.Framework)))
		}
		return nil
	}
	narrow := d.Policy.Subsets[d.Subset].Narrow(pod, d.Own)
	if narrow == pod {
		return nil
	}
	for _, plugin := range s.handle.(framework.Framework).EnqueueExtensions() { // these are all plugins that filter, as they were made
		if topology, filters := plugin.(fwk.PreFilterPlugin); filters && plugin.Name() == names.PodTopologySpread {
			_, status := topology.PreFilter(ctx, state, narrow, nodes)
			if status.IsSkip() {
				return nil // the constraints were defaults, which go by services, and the service is gone since the first count
			}
			return status
		}
	}
	return fwk.AsStatus(fmt.Errorf("profile %q has a count of %s and no such plugin", s.handle.ProfileName(), names.PodTopologySpread))
}

func refusesNodes(c corev1.TopologySpreadConstraint) bool {
	return c.WhenUnsatisfiable == corev1.DoNotSchedule
}

// checkOrder fails if the profile has PodTopologySpread count after WorkloadSpread, so that the count for all subsets would stand.
func checkOrder(profile framework.Framework) error {
	enabled := profile.ListPlugins().PreFilter.Enabled
	at := func(name string) int {
		return slices.IndexFunc(enabled, func(p schedulerconfig.Plugin) bool { return p.Name == name })
	}
	if at(names.PodTopologySpread) > at(Name) {
		return fmt.Errorf("profile %q: plugins.preFilter: %s must come before %s; enable %[3]s under multiPoint only, where it follows the stock plugins",
			profile.ProfileName(), names.PodTopologySpread, Name)
	}
	return nil
}
