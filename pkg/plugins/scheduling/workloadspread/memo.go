package workloadspread

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	"github.com/berth-project/berth/pkg/ledger"
	"github.com/berth-project/berth/pkg/subset"
)

// finder says where pods find nodes, by the scheduler's snapshot. It belongs to the scheduling loop, which runs one cycle at a time for all profiles, and
// so needs no mutex.
//
// Its memo says in which subsets a pod of a certain shape finds no node, so that the pod passes over them without a scheduling cycle. It is exact. A verdict
// is made by looking at every node of the subset, with those filters of the pod's profile that look at nothing but the pod and one node; and every change
// of a node or of the pods on it gives the node a new, higher generation. So as long as no node has a generation above that of the verdict, the
// verdict stands. If some have, they alone are looked at again: if the pod fits none of them, the verdict stands at the new generation; if it might fit
// one, the subset is tried. The other filters have the last word: when they refuse the nodes that these let pass, PostFilter has the pod go on.
type finder struct {
	predicates *predicates
	nodeSets   nodeSets
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
	// maxShapes bounds the memo of a policy. A workload has one shape for each of its revisions, unless something mutates its pods.
	maxShapes = 256
	// maxMemos bounds the policies that have a memo. An edited spread has another policy.
	maxMemos = 16384
)

// nodeLocal are the filters whose verdict on a node depends on the pod and that node alone.
var nodeLocal = map[string]bool{
	names.NodeResourcesFit: true, names.NodePorts: true, names.TaintToleration: true, names.NodeUnschedulable: true,
	names.NodeAffinity: true, names.NodeName: true, Name: true,
}

func newFinder() *finder {
	return &finder{predicates: &predicates{}, nodeSets: newNodeSets(), memos: map[*subset.Policy]memo{}}
}

// update takes in the nodes of a cycle's snapshot. Nil leaves them as they were in the last.
func (f *finder) update(nodes []fwk.NodeInfo) {
	if nodes != nil {
		f.nodeSets.update(nodes)
	}
}

// newest generation of a node in this cycle's snapshot.
func (f *finder) newest() int64 { return f.nodeSets.newest }

// members are the nodes of a subset in this cycle's snapshot, by name; nil if it selects every node.
func (f *finder) members(in *subset.Subset) sets.Set[string] { return f.nodeSets.of(in) }

// look says whether a node of a subset might take the pod.
func (f *finder) check(pod *corev1.Pod, asked *ledger.NodeCheck) ledger.CheckResult {
	in, key := &asked.Policy.Subsets[asked.Subset], memoKey{asked.Subset, asked.Shape}
	entry, known := f.memos[asked.Policy][key]
	refusal := sync.OnceValue(func() func(fwk.NodeInfo) string { return f.predicates.of(pod, asked.Own, in) })
	switch {
	case f.nodeSets.nodes == nil:
		return ledger.Feasible
	case known && entry.generation != unproven:
		members := f.nodeSets.of(in)
		if f.nodeSets.changedSince(entry.generation, func(node fwk.NodeInfo) bool {
			return (members == nil || members.Has(node.Node().Name)) && refusal()(node) == ""
		}) {
			delete(f.memos[asked.Policy], key)
			return ledger.FeasibleAgain
		}
		entry.generation = f.nodeSets.newest
		f.memos[asked.Policy][key] = entry
		memoHits.Inc()
		return ledger.Infeasible
	case asked.Tried:
		return ledger.Feasible // and yet the filters have just refused all of its nodes
	}
	seen, refusals := 0, map[string]int{}
	if node := f.nodeSets.one(in, entry.node, func(node fwk.NodeInfo) bool {
		because := refusal()(node)
		seen++
		refusals[because]++
		return because == ""
	}); node != nil {
		f.keep(asked.Policy, key, memoEntry{generation: unproven, node: node.Node().Name})
		return ledger.Feasible
	}
	f.keep(asked.Policy, key, memoEntry{generation: f.nodeSets.newest, why: verdict(seen, refusals)})
	subsetAttempts.WithLabelValues("passed").Inc()
	return ledger.Infeasible
}

// remember keeps the verdict of a scheduling cycle.
func (f *finder) remember(policy *subset.Policy, pod *corev1.Pod, index int, verdict memoEntry) {
	f.keep(policy, memoKey{index, shapeOf(pod)}, verdict)
}

func (f *finder) keep(policy *subset.Policy, key memoKey, entry memoEntry) {
	known := f.memos[policy]
	if known == nil {
		if len(f.memos) >= maxMemos {
			clear(f.memos)
		}
		known = memo{}
		f.memos[policy] = known
	}
	if _, found := known[key]; !found && len(known) >= maxShapes {
		clear(known)
	}
	known[key] = entry
}

// why says in words why a subset has no node for the pod. Empty if that is not known.
func (f *finder) why(policy *subset.Policy, pod *corev1.Pod, index int) string {
	return f.memos[policy][memoKey{index, shapeOf(pod)}].why
}

func shapeOf(pod *corev1.Pod) string { return ledger.Shape(pod, subset.OwnTolerations(pod)) }

// predicates are the node-local filters of each profile. They are the very plugins that the profile runs, so that they refuse a node where it would,
// whatever it configures: resources that it ignores, affinity that it adds, filters that it lacks.
type predicates struct {
	profiles sync.Map // of a profile's name to filterFor
}

// filterFor makes for a pod the function that says why the filters refuse a node; empty if none does.
type filterFor func(*corev1.Pod) func(fwk.NodeInfo) string

// add takes in a profile, whose plugins need not be complete before the first pod is judged. Of pods of other profiles, Subset.Fits alone is asked.
func (p *predicates) add(ctx context.Context, profile framework.Framework) {
	filters := sync.OnceValue(func() []fwk.FilterPlugin { return nodeLocalFilters(profile) })
	p.profiles.Store(profile.ProfileName(), filterFor(func(pod *corev1.Pod) func(fwk.NodeInfo) string { return refuse(ctx, filters(), pod) }))
}

// nodeLocalFilters are those of a profile whose plugins are complete.
func nodeLocalFilters(profile framework.Framework) (filters []fwk.FilterPlugin) {
	// A framework gives away the names of its filters, and those plugins that say which events they wait for. All of these filters do.
	plugins := map[string]fwk.FilterPlugin{}
	for _, plugin := range profile.EnqueueExtensions() {
		if filter, ok := plugin.(fwk.FilterPlugin); ok {
			plugins[plugin.Name()] = filter
		}
	}
	for _, enabled := range profile.ListPlugins().Filter.Enabled {
		if filter := plugins[enabled.Name]; filter != nil && nodeLocal[enabled.Name] && enabled.Name != Name {
			filters = append(filters, filter)
		}
	}
	return filters
}

// refuse asks the filters about nodes for the pod, in a cycle of their own.
func refuse(ctx context.Context, filters []fwk.FilterPlugin, pod *corev1.Pod) func(fwk.NodeInfo) string {
	state := framework.NewCycleState()
	concerned := make([]fwk.FilterPlugin, 0, len(filters))
	for _, filter := range filters {
		if plugin, ok := filter.(fwk.PreFilterPlugin); ok {
			// One that refuses the pod as a whole, which has nothing to do with the subset, says so in the pod's cycle.
			if _, status := plugin.PreFilter(ctx, state, pod, nil); !status.IsSuccess() {
				continue
			}
		}
		concerned = append(concerned, filter)
	}
	return func(info fwk.NodeInfo) string {
		for _, filter := range concerned {
			if status := filter.Filter(ctx, state, pod, info); status.IsRejected() {
				return status.Reasons()[0]
			}
		}
		return ""
	}
}

// of is a function that says why a node is refused to the pod in the subset, in the words of the filter that does. Empty if none does.
func (p *predicates) of(pod *corev1.Pod, own []corev1.Toleration, in *subset.Subset) func(fwk.NodeInfo) string {
	refused := func(fwk.NodeInfo) string { return "" }
	if profile, found := p.profiles.Load(pod.Spec.SchedulerName); found {
		refused = profile.(filterFor)(pod)
	}
	return func(info fwk.NodeInfo) string {
		if in.Fits(info.Node(), own) != v1alpha1.ReasonAdmitted {
			return untolerated
		}
		return refused(info)
	}
}

// untolerated is what the filter TaintToleration says.
const untolerated = "node(s) had untolerated taint(s)"
