package fit

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// Verdict on a pod.
type Verdict uint8

const (
	// Fits: there is a node for the pod.
	Fits Verdict = iota
	// DoesNotFit: no node takes it.
	DoesNotFit
	// Unknown: a filter could not say, or the pod has what only the scheduler allocates.
	Unknown
)

// Rooms is the cluster at one moment, with what was placed on it since. It is not safe for concurrent use.
type Rooms struct {
	filters *Filters
}

// Take takes a picture of the cluster: pods that hold room, which are those on nodes that have not ended, and those nominated to one. Only one
// picture of the same Filters may be in use.
func (f *Filters) Take(pods []*corev1.Pod, nodes []*corev1.Node) (*Rooms, error) {
	var holding []*corev1.Pod
	for _, pod := range pods {
		switch {
		case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		case pod.Spec.NodeName != "":
			holding = append(holding, pod)
		case pod.Status.NominatedNodeName != "":
			nominated := pod.DeepCopy()
			nominated.Spec.NodeName = pod.Status.NominatedNodeName
			holding = append(holding, nominated)
		}
	}
	return &Rooms{filters: f}, f.picture.take(holding, nodes)
}

// Place looks for a node for a pod that has none, among the nodes for which may is true. If one fits, the pod is on it from now on, and the pod
// instead, which may be nil, is gone; the node of that pod does not count, for the move would lead nowhere. Otherwise nothing has changed.
func (r *Rooms) Place(ctx context.Context, pod, instead *corev1.Pod, may func(*corev1.Node) bool) (node string, verdict Verdict, why error) {
	if len(pod.Spec.ResourceClaims) > 0 {
		return "", Unknown, fmt.Errorf("only the scheduler can allocate the devices that the pod claims")
	}
	picture, logger := r.filters.picture, klog.FromContext(ctx)
	removed := instead != nil && picture.remove(logger, instead)
	node, verdict, why = r.find(ctx, pod, func(n *corev1.Node) bool { return (instead == nil || n.Name != instead.Spec.NodeName) && may(n) })
	if verdict == Fits {
		placed := pod.DeepCopy()
		placed.Spec.NodeName = node
		return node, Fits, picture.add(placed)
	}
	if removed {
		if err := picture.add(instead); err != nil {
			return "", Unknown, err
		}
	}
	return "", verdict, why
}

func (r *Rooms) find(ctx context.Context, pod *corev1.Pod, may func(*corev1.Node) bool) (string, Verdict, error) {
	run, state := r.filters.framework, framework.NewCycleState()
	result, status, _ := run.RunPreFilterPlugins(ctx, state, pod)
	if !status.IsSuccess() {
		if status.IsRejected() {
			return "", DoesNotFit, status.AsError()
		}
		return "", Unknown, status.AsError()
	}
	verdict, why := DoesNotFit, fmt.Errorf("no node may be used")
	for _, node := range r.filters.picture.nodes {
		if !result.AllNodes() && !result.NodeNames.Has(node.Node().Name) || !may(node.Node()) {
			continue
		}
		status := run.RunFilterPlugins(ctx, state, pod, node)
		switch {
		case status.IsSuccess():
			return node.Node().Name, Fits, nil
		case !status.IsRejected():
			verdict, why = Unknown, status.AsError()
		case verdict == DoesNotFit:
			why = status.AsError()
		}
	}
	return "", verdict, why
}

// Survey is what the filters say of nodes, without a pod being placed.
type Survey struct {
	// Nodes that were asked about, and how many of them take the pod.
	Nodes, Fit int
	// Refused counts the reasons of the others, in the filters' words. A node can have several.
	Refused map[string]int
}

// Survey asks about all nodes for which may is true. The pod instead, which may be nil, counts as gone.
func (r *Rooms) Survey(ctx context.Context, pod, instead *corev1.Pod, may func(*corev1.Node) bool) (survey Survey, err error) {
	picture, run, state := r.filters.picture, r.filters.framework, framework.NewCycleState()
	if instead != nil && picture.remove(klog.FromContext(ctx), instead) {
		defer func() {
			if addErr := picture.add(instead); err == nil {
				err = addErr
			}
		}()
	}
	survey.Refused = map[string]int{}
	refuse := func(status *fwk.Status) {
		for _, reason := range status.Reasons() {
			survey.Refused[reason]++
		}
	}
	result, before, _ := run.RunPreFilterPlugins(ctx, state, pod)
	if before.Code() == fwk.Error {
		return survey, before.AsError()
	}
	for _, node := range picture.nodes {
		if !may(node.Node()) {
			continue
		}
		survey.Nodes++
		switch {
		case !before.IsSuccess():
			refuse(before)
			continue
		case !result.AllNodes() && !result.NodeNames.Has(node.Node().Name):
			survey.Refused["node(s) didn't satisfy plugin(s) before filters"]++
			continue
		}
		switch status := run.RunFilterPlugins(ctx, state, pod, node); {
		case status.IsSuccess():
			survey.Fit++
		case status.Code() == fwk.Error:
			return survey, status.AsError()
		default:
			refuse(status)
		}
	}
	return survey, nil
}
