package workloadspread

import (
	"context"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	schedutil "k8s.io/kubernetes/pkg/scheduler/util"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/ledger"
	"github.com/berth-project/berth/pkg/podstate"
	"github.com/berth-project/berth/pkg/subset"
)

// finder says where pods find nodes, by the scheduler's snapshot. Only the scheduling loop uses it, which runs one cycle at a time for all profiles.
// So it needs no mutex.
//
// Its memo says in which subsets a pod of a certain shape finds no node. The pod skips them without a scheduling cycle. The memo is exact. A verdict
// comes from checking every node of the subset with those filters of the pod's profile that look at nothing but the pod and one node. Every change of
// a node, or of the pods on it, gives the node a new, higher generation. So the verdict is valid as long as no node has a higher generation than it.
// If some have, only these nodes are checked again. If the pod fits none of them, the verdict is valid at the new generation. If it may fit one, the
// subset is tried. The other filters decide last: if they refuse the nodes that these accept, PostFilter makes the pod go on.
//
// From Kubernetes 1.36 on, NodeResourcesFit leaves extended resources to DynamicResources if a DeviceClass serves them. So a verdict is only about pods whose
// resources are served by classes in the same way.
type finder struct {
	predicates *predicates
	nodeSets   nodeSets
	memos      map[*subset.Policy]memo
}

type memo map[memoKey]memoEntry

type memoKey struct {
	subset int
	shape  string
	// served are the extended resources of the pod that a DeviceClass serves. Empty if there are none.
	served string
}

type memoEntry struct {
	// generation of the newest node when the verdict was made, or unproven.
	generation int64
	// why is the verdict as text: "0/40 nodes fit: 38 Insufficient cpu, 2 untolerated taint". Empty if the text is not known.
	why string
	// node that might take such a pod when it was last checked. The next check begins with it.
	node string
}

const (
	// unproven is the generation of a verdict that counts for the pod's own attempt only, and not for other pods.
	unproven int64 = -1
	// maxShapes bounds the memo of a policy. A workload has one shape for each revision, unless something mutates its pods.
	maxShapes = 256
	// maxMemos bounds the policies with a memo. An edited spread has a new policy.
	maxMemos = 16384
)

// nodeLocal are the filters whose verdict on a node depends on the pod and that node alone.
var nodeLocal = map[string]bool{
	names.NodeResourcesFit: true, names.NodePorts: true, names.TaintToleration: true, names.NodeUnschedulable: true,
	names.NodeAffinity: true, names.NodeName: true, Name: true,
}

func newFinder(notices podstate.Notices) *finder {
	return &finder{predicates: &predicates{}, nodeSets: newNodeSets(notices), memos: map[*subset.Policy]memo{}}
}

// update reads the nodes of a cycle's snapshot. Nil means that they are the same as before.
func (f *finder) update(nodes []fwk.NodeInfo) {
	if nodes != nil {
		f.nodeSets.update(nodes)
	}
}

// withoutMemo is the finder in a cycle of a pod group: the snapshot has pods on nodes whose generation does not show it.
func (f *finder) withoutMemo() *finder {
	return &finder{predicates: f.predicates, nodeSets: f.nodeSets, memos: map[*subset.Policy]memo{}}
}

// newest generation of a node in the snapshot of this cycle.
func (f *finder) newest() int64 { return f.nodeSets.newest }

// members are the names of a subset's nodes in the snapshot of this cycle. Nil if the subset selects every node.
func (f *finder) members(in *subset.Subset) sets.Set[string] { return f.nodeSets.of(in) }

// check says whether a node of a subset may take the pod.
func (f *finder) check(pod *corev1.Pod, asked *ledger.NodeCheck) ledger.CheckResult {
	in, key := &asked.Policy.Subsets[asked.Subset], memoKey{asked.Subset, asked.Shape, f.predicates.served(pod)}
	entry, known := f.memos[asked.Policy][key]
	refusal := sync.OnceValue(func() func(fwk.NodeInfo) string { return f.predicates.of(pod, asked.Own, in) })
	switch {
	case f.nodeSets.nodes == nil:
		return ledger.Feasible
	case known && entry.generation != unproven:
		if f.nodeSets.one(in, entry.generation, "", func(node fwk.NodeInfo) bool { return refusal()(node) == "" }) != nil {
			delete(f.memos[asked.Policy], key)
			return ledger.FeasibleAgain
		}
		entry.generation = f.nodeSets.newest
		f.memos[asked.Policy][key] = entry
		memoHits.Inc()
		return ledger.Infeasible
	case asked.Tried:
		return ledger.Feasible // although the filters have just refused all of its nodes
	}
	seen, refusals := 0, map[string]int{}
	if node := f.nodeSets.one(in, unproven, entry.node, func(node fwk.NodeInfo) bool {
		because := refusal()(node)
		seen++
		refusals[because]++
		return because == ""
	}); node != nil {
		f.keep(asked.Policy, key, memoEntry{generation: unproven, node: node.Node().Name})
		return ledger.Feasible
	}
	f.keep(asked.Policy, key, memoEntry{generation: f.nodeSets.newest, why: verdict(seen, f.nodeSets.set(in).ending, refusals)})
	subsetAttempts.WithLabelValues("passed").Inc()
	return ledger.Infeasible
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

// why says why a subset has no node for the pod. Empty if that is not known.
func (f *finder) why(policy *subset.Policy, pod *corev1.Pod, index int) string {
	return f.memos[policy][f.keyOf(pod, index)].why
}

func (f *finder) keyOf(pod *corev1.Pod, index int) memoKey {
	return memoKey{index, ledger.Shape(pod, subset.OwnTolerations(pod)), f.predicates.served(pod)}
}

// predicates are the node-local filters of each profile. They are the plugin instances that the profile runs, so they refuse the same nodes, whatever
// the profile configures: ignored resources, added affinity, filters that are off.
type predicates struct {
	profiles sync.Map // from the name of a profile to filters
}

type filters struct {
	of filterFor
	// devices are what NodeResourcesFit asks for classes. Nil without dynamic resource allocation.
	devices fwk.SharedDRAManager
}

// filterFor makes, for a pod, the function that says why the filters refuse a node. Its result is empty if none does.
type filterFor func(*corev1.Pod) func(fwk.NodeInfo) string

// add adds a profile. Its plugins need not be complete before the first pod is checked. For pods of other profiles only Subset.Fits is used.
func (p *predicates) add(ctx context.Context, profile framework.Framework) {
	local := sync.OnceValue(func() []fwk.FilterPlugin { return nodeLocalFilters(profile) })
	p.profiles.Store(profile.ProfileName(), filters{
		of:      func(pod *corev1.Pod) func(fwk.NodeInfo) string { return refuse(ctx, local(), pod) },
		devices: profile.SharedDRAManager(),
	})
}

// served are the extended resources of a pod that a DeviceClass serves now, by the same cache that NodeResourcesFit asks.
func (p *predicates) served(pod *corev1.Pod) string {
	names := extendedResources(pod)
	profile, found := p.profiles.Load(pod.Spec.SchedulerName)
	if len(names) == 0 || !found || profile.(filters).devices == nil {
		return ""
	}
	classes := profile.(filters).devices.DeviceClassResolver()
	return strings.Join(slices.DeleteFunc(names, func(name string) bool { return classes.GetDeviceClass(corev1.ResourceName(name)) == nil }), ",")
}

// extendedResources are the names of the resources that a pod requests and that a DeviceClass might serve, in order.
func extendedResources(pod *corev1.Pod) (names []string) {
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			for name := range containers[i].Resources.Requests {
				if schedutil.IsDRAExtendedResourceName(name) {
					names = append(names, string(name))
				}
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// nodeLocalFilters are those of a profile whose plugins are complete.
func nodeLocalFilters(profile framework.Framework) (filters []fwk.FilterPlugin) {
	// A framework returns the names of its filters, and those plugins that register events. All node-local filters do.
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

// refuse calls the filters for the pod and a node, in a cycle state of their own.
func refuse(ctx context.Context, filters []fwk.FilterPlugin, pod *corev1.Pod) func(fwk.NodeInfo) string {
	state := framework.NewCycleState()
	concerned := make([]fwk.FilterPlugin, 0, len(filters))
	for _, filter := range filters {
		if plugin, ok := filter.(fwk.PreFilterPlugin); ok {
			// A filter may refuse the pod as a whole, which has nothing to do with the subset. It says so in the pod's own cycle.
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

// of returns a function that says why a node is refused to the pod in the subset, in the words of the filter. Empty if no filter refuses it.
func (p *predicates) of(pod *corev1.Pod, own []corev1.Toleration, in *subset.Subset) func(fwk.NodeInfo) string {
	refused := func(fwk.NodeInfo) string { return "" }
	if profile, found := p.profiles.Load(pod.Spec.SchedulerName); found {
		refused = profile.(filters).of(pod)
	}
	return func(info fwk.NodeInfo) string {
		if in.Fits(info.Node(), own) != v1beta1.ReasonAdmitted {
			return untolerated
		}
		return refused(info)
	}
}

// untolerated is the message of the filter TaintToleration.
const untolerated = "node(s) had untolerated taint(s)"
