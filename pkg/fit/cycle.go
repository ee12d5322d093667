package fit

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
)

// Plugin is one that decides together with those of kube-scheduler, after them.
type Plugin struct {
	// Profile is the schedulerName of pods that it decides about.
	Profile string
	Name    string
	// Weight of its scores.
	Weight int32
	New    frameworkruntime.PluginFactory
}

// enoughNodes are so many that no more are looked for, as in kube-scheduler with its smallest share of nodes.
const enoughNodes = 100

// schedulingCycle is what came of a scheduling cycle.
type schedulingCycle struct {
	// State is what the plugins remember of the cycle.
	State fwk.CycleState
	// Node that the plugins reserved for the pod. Empty if no node takes it.
	Node string
	// Status is why PreFilter refused the pod. It is a success if only the nodes refused it.
	Status *fwk.Status
}

// Schedule runs a scheduling cycle up to the reservation of a node: filters, scores, and what follows if no node fits.
// The caller puts the pod on the node with Bind. The error says why nothing is known about the pod.
func (r *Rooms) Schedule(ctx context.Context, pod *corev1.Pod) (schedulingCycle, error) {
	run, c := r.filters.framework, schedulingCycle{State: framework.NewCycleState()}
	if err := r.filters.unknown(pod); err != nil {
		return c, err
	}
	var result *fwk.PreFilterResult
	result, c.Status, _ = run.RunPreFilterPlugins(ctx, c.State, pod)
	statuses := framework.NewDefaultNodeToStatus()
	switch {
	case c.Status.IsRejected():
		statuses.SetAbsentNodesStatus(c.Status)
		run.RunPostFilterPlugins(ctx, c.State, pod, statuses)
		return c, nil
	case !c.Status.IsSuccess():
		return c, c.Status.AsError()
	}
	nodes, fitting := r.filters.picture.nodes, []fwk.NodeInfo(nil)
	for seen := 0; seen < len(nodes) && len(fitting) < enoughNodes; seen++ {
		node := nodes[r.next%len(nodes)]
		r.next++
		if !result.AllNodes() && !result.NodeNames.Has(node.Node().Name) {
			continue
		}
		switch status := run.RunFilterPlugins(ctx, c.State, pod, node); {
		case status.IsSuccess():
			fitting = append(fitting, node)
		case status.IsRejected():
			statuses.Set(node.Node().Name, status)
		default:
			return c, status.AsError()
		}
	}
	if len(fitting) == 0 {
		_, status := run.RunPostFilterPlugins(ctx, c.State, pod, statuses)
		if status.Code() == fwk.Error {
			return c, status.AsError()
		}
		return c, nil
	}
	node, err := r.best(ctx, c.State, pod, fitting)
	if err != nil {
		return c, err
	}
	c.Node = node
	return c, r.filters.reserve(ctx, c.State, pod, node)
}

// best is the node with the highest score.
func (r *Rooms) best(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo) (string, error) {
	if len(nodes) == 1 {
		return nodes[0].Node().Name, nil
	}
	run := r.filters.framework
	if status := run.RunPreScorePlugins(ctx, state, pod, nodes); !status.IsSuccess() {
		return "", status.AsError()
	}
	scores, status := run.RunScorePlugins(ctx, state, pod, nodes)
	if !status.IsSuccess() {
		return "", status.AsError()
	}
	best := &scores[0]
	for i := range scores {
		if scores[i].TotalScore > best.TotalScore {
			best = &scores[i]
		}
	}
	return best.Name, nil
}

// Bind puts a pod on the node that it names.
func (r *Rooms) Bind(pod *corev1.Pod) error { return r.filters.picture.add(pod) }
