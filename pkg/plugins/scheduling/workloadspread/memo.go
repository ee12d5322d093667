package workloadspread

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
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
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	"github.com/berth-project/berth/pkg/ledger"
	"github.com/berth-project/berth/pkg/subset"
)

// finder says where pods find nodes, by the scheduler's snapshot. It belongs to the scheduling loop, which runs one cycle at a time for all profiles, and
// so needs no mutex.
//
// Its memo says in which subsets a pod of a certain shape finds no node, so that the pod passes over them without a scheduling cycle. It is exact. A verdict
// is made by looking at every node of the subset, with the pure predicates of the filters that look at nothing but the pod and one node; and every change
// of a node or of the pods on it gives the node a new, higher generation. So as long as no node has a generation above that of the verdict, the
// verdict stands. If some have, they alone are looked at again: if the pod fits none of them, the verdict stands at the new generation; if it might fit
// one, the subset is tried. The filters have the last word: when they refuse a node that the predicates let pass, PostFilter has the pod go on.
type finder struct {
	predicates predicates
	tiers      tiers
	memos      map[*subset.Policy]memo
}

type memo map[memoKey]memoEntry

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
	// mostShapes bounds the memo of a policy. A workload has one shape for each of its revisions, unless something mutates its pods.
	mostShapes = 256
	// mostMemos bounds the policies that have a memo. An edited spread has another policy.
	mostMemos = 16384
)

// nodeLocal are the filters whose verdict on a node depends on the pod and that node alone.
var nodeLocal = map[string]bool{
	names.NodeResourcesFit: true, names.NodePorts: true, names.TaintToleration: true, names.NodeUnschedulable: true,
	names.NodeAffinity: true, names.NodeName: true, Name: true,
}

func newFinder(p predicates) *finder {
	return &finder{predicates: p, tiers: newTiers(), memos: map[*subset.Policy]memo{}}
}

// update takes in the nodes of a cycle's snapshot. Nil leaves them as they were in the last.
func (f *finder) update(nodes []fwk.NodeInfo) {
	if nodes != nil {
		f.tiers.update(nodes)
	}
}

// newest generation of a node in this cycle's snapshot.
func (f *finder) newest() int64 { return f.tiers.newest }

// members are the nodes of a subset in this cycle's snapshot, by name; nil if it selects every node.
func (f *finder) members(in *subset.Subset) sets.Set[string] { return f.tiers.of(in) }

// look says whether a node of a subset might take the pod.
func (f *finder) look(pod *corev1.Pod, look *ledger.Look) ledger.Sight {
	in, key := &look.Policy.Subsets[look.Subset], memoKey{look.Subset, look.Shape}
	entry, known := f.memos[look.Policy][key]
	refusal := f.predicates.of(pod, look.Own, in)
	switch {
	case f.tiers.nodes == nil:
		return ledger.Possible
	case known && entry.generation != unproven:
		members := f.tiers.of(in)
		if f.tiers.changedSince(entry.generation, func(node fwk.NodeInfo) bool {
			return (members == nil || members.Has(node.Node().Name)) && refusal(node) == ""
		}) {
			delete(f.memos[look.Policy], key)
			return ledger.PossibleAgain
		}
		entry.generation = f.tiers.newest
		f.memos[look.Policy][key] = entry
		memoHits.Inc()
		return ledger.Nowhere
	case look.Tried:
		return ledger.Possible // and yet the filters have just refused all of its nodes
	}
	seen, refusals := 0, map[string]int{}
	if node := f.tiers.one(in, entry.node, func(node fwk.NodeInfo) bool {
		because := refusal(node)
		seen++
		refusals[because]++
		return because == ""
	}); node != nil {
		f.keep(look.Policy, key, memoEntry{generation: unproven, node: node.Node().Name})
		return ledger.Possible
	}
	f.keep(look.Policy, key, memoEntry{generation: f.tiers.newest, why: verdict(seen, refusals)})
	subsetAttempts.WithLabelValues("passed").Inc()
	return ledger.Nowhere
}

// remember keeps the verdict of a scheduling cycle.
func (f *finder) remember(policy *subset.Policy, pod *corev1.Pod, index int, verdict memoEntry) {
	f.keep(policy, memoKey{index, shapeOf(pod)}, verdict)
}

func (f *finder) keep(policy *subset.Policy, key memoKey, entry memoEntry) {
	known := f.memos[policy]
	if known == nil {
		if len(f.memos) >= mostMemos {
			clear(f.memos)
		}
		known = memo{}
		f.memos[policy] = known
	}
	if _, found := known[key]; !found && len(known) >= mostShapes {
		clear(known)
	}
	known[key] = entry
}

// why says in words why a subset has no node for the pod. Empty if that is not known.
func (f *finder) why(policy *subset.Policy, pod *corev1.Pod, index int) string {
	return f.memos[policy][memoKey{index, shapeOf(pod)}].why
}

func shapeOf(pod *corev1.Pod) string { return ledger.Shape(pod, subset.OwnTolerations(pod)) }

// predicates are the node-local filters as functions, for a pod of a subset.
type predicates struct {
	features feature.Features
	dra      fwk.SharedDRAManager
}

// of is why one of the node-local filters refuses a node, in the words of that filter. Empty if none does. What it reads of the pod is read once.
func (p *predicates) of(pod *corev1.Pod, own []corev1.Toleration, in *subset.Subset) func(fwk.NodeInfo) string {
	var affinity *nodeaffinity.RequiredNodeAffinity
	return func(info fwk.NodeInfo) string {
		if affinity == nil {
			affinity = ptr.To(nodeaffinity.GetRequiredNodeAffinity(pod))
		}
		return p.refusal(pod, own, in, affinity, info)
	}
}

func (p *predicates) refusal(pod *corev1.Pod, own []corev1.Toleration, in *subset.Subset, affinity *nodeaffinity.RequiredNodeAffinity, info fwk.NodeInfo) string {
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
	if matches, err := affinity.Match(node); err == nil && !matches {
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
