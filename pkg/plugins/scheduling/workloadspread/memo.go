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
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodeports"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/noderesources"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	"github.com/berth-project/berth/pkg/subset"
)

// The memo of a spread says in which subsets a pod of a certain shape finds no node, so that the next such pod need not try.
//
// It is exact. Every node of the subset was refused by a filter that looks at nothing but the pod and this node, and every change of a node
// or of the pods on it gives the node a new, higher generation. So as long as no node has a generation above that of the verdict, the
// verdict stands. If some have, they alone are looked at again, with the filters' own pure predicates: if the pod fits none of them,
// the verdict stands at the new generation; if it might fit one, the subset is tried again.
type memoKey struct {
	subset int
	shape  string
}

type memoEntry struct {
	// generation of the newest node when the subset was judged, or unproven.
	generation int64
	// why is the verdict in words: "0/40 nodes fit: 38 Insufficient cpu, 2 untolerated taint".
	why string
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

// shapeOf is what the node-local filters read of a pod. Pods with equal shapes fit the same nodes as far as these filters go.
func shapeOf(pod *corev1.Pod) string {
	shape := struct {
		Requests    corev1.ResourceList
		Ports       []corev1.ContainerPort
		Selector    map[string]string
		Affinity    *corev1.NodeAffinity
		Tolerations []corev1.Toleration
		NodeName    string
	}{
		Requests:    resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{}),
		Selector:    pod.Spec.NodeSelector,
		Tolerations: pod.Spec.Tolerations,
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
		e.shape = shapeOf(e.pod)
	}
	return memoKey{index, e.shape}
}

// closed are the subsets in which no node is known for the pod: those that select no node at all, and those of the memo. A subset of the memo
// in which there may be a node now counts as not tried.
func (l *ledger) closed(e *entry) subset.Mask {
	s := e.spread
	var closed subset.Mask
	for i := range s.policy.Subsets {
		if !s.policy.Patience.Simulate && !l.clock.Now().Before(s.skipUntil[i]) {
			continue // the pod waits there for a node
		}
		if members := l.tiers.of(&s.policy.Subsets[i]); members != nil && len(members) == 0 {
			closed = closed.With(i)
			continue
		}
		if len(s.memo) == 0 {
			continue
		}
		key := e.shapeKey(i)
		entry, found := s.memo[key]
		if !found || entry.generation == unproven {
			continue
		}
		if l.mightFitOne(e.pod, &s.policy.Subsets[i], entry.generation) {
			delete(s.memo, key)
			e.tried &^= subset.Mask(0).With(i) // also if the pod itself tried it a moment ago, in this round
			continue
		}
		entry.generation = l.tiers.newest
		s.memo[key] = entry
		closed = closed.With(i)
		memoHits.Inc()
	}
	return closed
}

// mightFitOne looks at the nodes of the subset that have changed since the generation.
func (l *ledger) mightFitOne(pod *corev1.Pod, in *subset.Subset, since int64) bool {
	members := l.tiers.of(in)
	return l.tiers.changedSince(since, func(node fwk.NodeInfo) bool {
		return (members == nil || members.Has(node.Node().Name)) && l.predicates.fit(pod, in, node)
	})
}

// remember keeps a verdict.
func (s *spread) remember(key memoKey, entry memoEntry) {
	if len(s.memo) >= mostShapes {
		clear(s.memo)
	}
	s.memo[key] = entry
}

// predicates are the node-local filters as functions, for a pod of a subset.
type predicates struct {
	features feature.Features
	dra      fwk.SharedDRAManager
}

// fit is false only if one of the node-local filters refuses the node.
func (p *predicates) fit(pod *corev1.Pod, in *subset.Subset, info fwk.NodeInfo) bool {
	node := info.Node()
	if in.Fits(node, pod.Spec.Tolerations) != v1alpha1.ReasonAdmitted {
		return false
	}
	if _, untolerated := corev1helpers.FindMatchingUntoleratedTaint(klog.Logger{}, node.Spec.Taints, pod.Spec.Tolerations, keepsAway, p.features.EnableTaintTolerationComparisonOperators); untolerated {
		return false
	}
	if node.Spec.Unschedulable && !corev1helpers.TolerationsTolerateTaint(klog.Logger{}, pod.Spec.Tolerations,
		&corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}, p.features.EnableTaintTolerationComparisonOperators) {
		return false
	}
	if matches, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); err == nil && !matches {
		return false
	}
	if !nodeports.Fits(pod, info) {
		return false
	}
	options := noderesources.ResourceRequestsOptions{
		EnablePodLevelResources:   p.features.EnablePodLevelResources,
		EnableDRAExtendedResource: p.features.EnableDRAExtendedResource,
	}
	return len(noderesources.Fits(pod, info, p.dra, options)) == 0
}

func keepsAway(taint *corev1.Taint) bool { return taint.Effect != corev1.TaintEffectPreferNoSchedule }
