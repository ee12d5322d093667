package workloadspread

import (
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	nodeaffinityplugin "k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodeaffinity"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodeports"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/noderesources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodeunschedulable"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	"github.com/berth-project/berth/pkg/subset"
)

// The memo of a spread says in which subsets a pod of a certain shape finds no node, so that it passes over them without a scheduling cycle.
//
// It is exact. A verdict is made by looking at every node of the subset, with the pure predicates of the filters that look at nothing but the
// pod and one node; and every change of a node or of the pods on it gives the node a new, higher generation. So as long as no node has a
// generation above that of the verdict, the verdict stands. If some have, they alone are looked at again: if the pod fits none of them, the
// verdict stands at the new generation; if it might fit one, the subset is tried. The filters have the last word: when they refuse a node that
// the predicates let pass, PostFilter has the pod go on.
type memoKey struct {
	subset int
	shape  string
}

type memoEntry struct {
	// generation of the newest node when the subset was judged, or unproven.
	generation int64
	// why is the verdict in words: "0/40 nodes fit: 38 Insufficient cpu, 2 untolerated taint". Empty if there was none.
	why string
	// node that might take such a pod when it was last looked for. The next look begins with it.
	node string
}

const (
	// unproven is the generation of a verdict that holds for the pod's own attempt and proves nothing for the next.
	unproven int64 = -1
	// mostShapes bounds the memo of a spread. A workload has one shape for each of its revisions, unless something mutates its pods.
	mostShapes = 256
)

// nodeLocal are the filters whose verdict on a node depends on the pod and that node alone.
var nodeLocal = map[string]bool{
	names.NodeResourcesFit: true, names.NodePorts: true, names.TaintToleration: true, names.NodeUnschedulable: true,
	names.NodeAffinity: true, names.NodeName: true, Name: true,
}

// shapeOf is what the node-local filters read of a pod with tolerations of its own. Pods with equal shapes fit the same nodes as far as these filters go.
func shapeOf(pod *corev1.Pod, own []corev1.Toleration) string {
	shape := struct {
		Requests    corev1.ResourceList
		Ports       []corev1.ContainerPort
		Selector    map[string]string
		Affinity    *corev1.NodeAffinity
		Tolerations []corev1.Toleration
		Own         []corev1.Toleration
		NodeName    string
	}{
		Requests:    resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{}),
		Selector:    pod.Spec.NodeSelector,
		Tolerations: pod.Spec.Tolerations,
		Own:         own,
		NodeName:    pod.Spec.NodeName,
	}
	if pod.Spec.Affinity != nil {
		shape.Affinity = pod.Spec.Affinity.NodeAffinity
	}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			for _, port := range containers[i].Ports {
				if port.HostPort > 0 {
					shape.Ports = append(shape.Ports, port)
				}
			}
		}
	}
	encoded, err := json.Marshal(shape)
	if err != nil {
		return string(pod.UID) // no other pod is known to be like it
	}
	return string(encoded)
}

func (e *entry) shapeKey(index int) memoKey {
	if e.shape == "" {
		e.shape = shapeOf(e.pod, e.own)
	}
	return memoKey{index, e.shape}
}

// kind is what exhausted pods have in common of which one finds room where another does, as far as the node-local filters go.
type kind struct{ scope, shape string }

func (e *entry) kind() kind { return kind{e.scope, e.shapeKey(subset.None).shape} }

// closed are subsets with quota in which there is no node for the pod. It looks at them in their order and no further than the first that may
// have one. Such a subset counts as not tried if it had none when the pod tried it in this round.
func (l *ledger) closed(e *entry, pod subset.Candidate) (closed subset.Mask) {
	s := e.spread
	kept := s.tally.Kept(e.scope)
	for i := range s.policy.Subsets {
		if !s.policy.HasRoom(&s.plan, kept, i, pod) {
			continue
		}
		found := possible
		if s.policy.Patience.Simulate || l.clock.Now().Before(s.skipUntil[i]) {
			found = l.look(e, i)
		}
		switch {
		case found == nowhere:
			closed = closed.With(i)
		case found == again:
			e.tried &^= subset.Mask(0).With(i)
			return closed
		case !e.tried.Has(i):
			return closed
		}
	}
	return closed
}

// sight is what a look at the nodes of a subset says.
type sight uint8

const (
	// possible: a node might take the pod.
	possible sight = iota
	// nowhere: none can.
	nowhere
	// again: none could, and now one might.
	again
)

func (l *ledger) look(e *entry, index int) sight {
	s := e.spread
	in, key := &s.policy.Subsets[index], e.shapeKey(index)
	entry, known := s.memo[key]
	switch {
	case l.tiers.nodes == nil:
		return possible
	case known && entry.generation != unproven:
		members := l.tiers.of(in)
		if l.tiers.changedSince(entry.generation, func(node fwk.NodeInfo) bool {
			return (members == nil || members.Has(node.Node().Name)) && l.predicates.refusal(e.pod, e.own, in, node) == ""
		}) {
			delete(s.memo, key)
			return again
		}
		entry.generation = l.tiers.newest
		s.memo[key] = entry
		memoHits.Inc()
		return nowhere
	case e.tried.Has(index):
		return possible // and yet the filters have just refused all of its nodes
	}
	seen, refusals := 0, map[string]int{}
	if node := l.tiers.one(in, entry.node, func(node fwk.NodeInfo) bool {
		refusal := l.predicates.refusal(e.pod, e.own, in, node)
		seen++
		refusals[refusal]++
		return refusal == ""
	}); node != nil {
		s.remember(key, memoEntry{generation: unproven, node: node.Node().Name})
		return possible
	}
	s.remember(key, memoEntry{generation: l.tiers.newest, why: verdict(seen, refusals)})
	subsetAttempts.WithLabelValues("passed").Inc()
	return nowhere
}

// remember keeps a verdict.
func (s *spread) remember(key memoKey, entry memoEntry) {
	if _, known := s.memo[key]; !known && len(s.memo) >= mostShapes {
		clear(s.memo)
	}
	s.memo[key] = entry
}

// predicates are the node-local filters as functions, for a pod of a subset.
type predicates struct {
	features feature.Features
	dra      fwk.SharedDRAManager
}

// refusal is why one of the node-local filters refuses the node, in the words of that filter. Empty if none does.
func (p *predicates) refusal(pod *corev1.Pod, own []corev1.Toleration, in *subset.Subset, info fwk.NodeInfo) string {
	node := info.Node()
	if in.Fits(node, own) != v1alpha1.ReasonAdmitted {
		return untolerated
	}
	if _, found := corev1helpers.FindMatchingUntoleratedTaint(klog.Logger{}, node.Spec.Taints, pod.Spec.Tolerations, keepsAway, p.features.EnableTaintTolerationComparisonOperators); found {
		return untolerated
	}
	if node.Spec.Unschedulable && !corev1helpers.TolerationsTolerateTaint(klog.Logger{}, pod.Spec.Tolerations,
		&corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}, p.features.EnableTaintTolerationComparisonOperators) {
		return nodeunschedulable.ErrReasonUnschedulable
	}
	if matches, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); err == nil && !matches {
		return nodeaffinityplugin.ErrReasonPod
	}
	if !nodeports.Fits(pod, info) {
		return nodeports.ErrReason
	}
	options := noderesources.ResourceRequestsOptions{
		EnablePodLevelResources:   p.features.EnablePodLevelResources,
		EnableDRAExtendedResource: p.features.EnableDRAExtendedResource,
	}
	insufficient := noderesources.Fits(pod, info, p.dra, options)
	if len(insufficient) == 0 {
		return ""
	}
	return insufficient[0].Reason
}

// untolerated is what the filter TaintToleration says.
const untolerated = "node(s) had untolerated taint(s)"

func keepsAway(taint *corev1.Taint) bool { return taint.Effect != corev1.TaintEffectPreferNoSchedule }
