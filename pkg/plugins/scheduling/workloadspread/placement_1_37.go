//go:build kubernetes_1_37

package workloadspread

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/topologyaware"

	"github.com/berth-project/berth/pkg/ledger"
	"github.com/berth-project/berth/pkg/subset"
)

// Kubernetes schedules a pod group in one cycle. The cycle tries the group in each placement, which is a set of nodes: each pod has its PreFilter, Filter
// and Reserve, and then Unreserve. The pods of the best placement have Reserve again, outside of the group's cycle, and are bound. So within the cycle a
// pod takes its slot in Reserve, and not before, and gives it back in Unreserve. A cycle that is thrown away leaves nothing in the ledger.

var (
	_ fwk.PlacementGeneratePlugin  = &Spread{}
	_ fwk.PodGroupPostFilterPlugin = &Spread{}
)

// groups are what the plugin knows of pod groups.
type groups struct {
	// topology makes the placements of the group's topology constraint. The framework asks one plugin for placements, so profiles must disable it. Nil in a
	// Rehearsal.
	topology *topologyaware.TopologyPlacement
}

func newGroups(ctx context.Context, handle fwk.Handle) (groups, error) {
	topology, err := topologyaware.New(ctx, nil, handle, feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate))
	return groups{topology}, err
}

// watchGroups tells the ledger when a group may need fewer slots than it waits for. It returns which version of its group a pod has, in the informer's
// cache. That is empty for a pod without a group.
func watchGroups(b *book, factory informers.SharedInformerFactory) (version func(*corev1.Pod) string, err error) {
	if !utilfeature.DefaultFeatureGate.Enabled(features.GenericWorkload) {
		return func(*corev1.Pod) string { return "" }, nil // the API server need not know groups
	}
	groups := factory.Scheduling().V1beta1().PodGroups()
	changed := func(obj any) {
		group := obj.(*schedulingv1beta1.PodGroup)
		b.apply(ledger.GroupChanged{Group: types.NamespacedName{Namespace: group.Namespace, Name: group.Name}})
	}
	_, err = groups.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: changed, UpdateFunc: func(before, after any) {
		if versionOf(before.(*schedulingv1beta1.PodGroup)) != versionOf(after.(*schedulingv1beta1.PodGroup)) {
			changed(after)
		}
	}})
	return func(pod *corev1.Pod) string {
		if in := pod.Spec.SchedulingGroup; in != nil && in.PodGroupName != nil {
			if group, err := groups.Lister().PodGroups(pod.Namespace).Get(*in.PodGroupName); err == nil {
				return versionOf(group)
			}
		}
		return ""
	}, err
}

// versionOf changes with the spec of a group.
func versionOf(group *schedulingv1beta1.PodGroup) string {
	return fmt.Sprintf("%s/%d", group.UID, group.Generation)
}

// round is one group in one cycle.
type round struct {
	// of are the placements of which the framework names the current one. everywhere are those with all nodes, of which it names none.
	of         map[*fwk.Placement]*trial
	everywhere []*trial
	// atLeast is how many pods must find a node, and taken the first place where they do: places after it are not tried. The rank of no place is higher.
	atLeast, taken int
}

// trial is the group in one placement.
type trial struct {
	place *ledger.Decision
	// rank of the place among all. Two trials have the same if the group's topology divides the subset.
	rank  int
	begun bool
	// found is how many pods have a node.
	found int
}

const (
	roundKey = fwk.StateKey("Round" + Name)
	trialKey = fwk.StateKey("Trial" + Name)
)

// Clone implements fwk.StateData. Nothing clones the state of a group.
func (r *round) Clone() fwk.StateData { return r }

// Clone implements fwk.StateData. Clones are of the same trial.
func (t *trial) Clone() fwk.StateData { return t }

// GeneratePlacements offers a gang the nodes of each subset that has room for it as a whole, in the order of the spread, within the placements of its
// topology constraint. It refuses the gang if no subset has. All other groups get the placements of their topology: their pods are divided one by one.
func (s *Spread) GeneratePlacements(ctx context.Context, state fwk.PodGroupCycleState, group fwk.PodGroupInfo, parent *fwk.Placement) (*fwk.GeneratePlacementsResult, *fwk.Status) {
	domains := &fwk.GeneratePlacementsResult{Placements: []*fwk.Placement{parent}}
	if s.groups.topology != nil {
		var status *fwk.Status
		if domains, status = s.groups.topology.GeneratePlacements(ctx, state, group, parent); !status.IsSuccess() {
			return nil, status
		}
	}
	pods, object := group.GetUnscheduledPods(), group.GetPodGroup()
	if object == nil || object.Spec.SchedulingPolicy.Gang == nil || !slices.ContainsFunc(pods, s.takeover.concerns) {
		return domains, nil
	}
	if err := s.takeover.complete(ctx); err != nil {
		return nil, fwk.AsStatus(err)
	}
	asks, err := s.questionOf(object, pods)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	if int(asks.AtLeast) > len(pods) {
		return domains, nil // the plugin GangScheduling says so
	}
	fx := s.book.askFor(asks, pods...)
	switch {
	case fx.Undivided():
		return domains, nil
	case len(fx.Places) == 0:
		return nil, refusedGroup(s.refuse(&ledger.PodAsks{Pod: pods[0], Try: true}, &fx.Answer, fx.Announce), pods[0], len(parent.Nodes))
	}
	result, status := s.placements(state, fx.Places, domains.Placements, int(asks.AtLeast))
	if !status.IsSuccess() {
		s.waitForNodes(asks)
	}
	return result, status
}

// questionOf is what those pods of a gang that look for a node ask the ledger.
func (s *Spread) questionOf(group *schedulingv1beta1.PodGroup, pods []*corev1.Pod) (ledger.GroupAsks, error) {
	members, err := s.handle.SnapshotSharedLister().PodGroupStates().Get(group.Namespace, group.Name)
	if err != nil {
		return ledger.GroupAsks{}, fmt.Errorf("reading the state of pod group %s/%s: %w", group.Namespace, group.Name, err)
	}
	asks := ledger.GroupAsks{Group: types.NamespacedName{Namespace: group.Namespace, Name: group.Name}, Version: versionOf(group), Pods: pods}
	for _, pod := range members.ScheduledPods() {
		asks.With = append(asks.With, pod.UID)
	}
	asks.AtLeast = max(group.Spec.SchedulingPolicy.Gang.MinCount-int32(len(asks.With)), 1) //nolint:gosec // a group has some hundred pods
	return asks, nil
}

// PodGroupPostFilter runs when no node is left for a group. It never makes room.
func (s *Spread) PodGroupPostFilter(_ context.Context, _ fwk.PodGroupCycleState, group fwk.PodGroupInfo, _ fwk.PodGroupSchedulingFunc) (*fwk.PodGroupPostFilterResult, *fwk.Status) {
	pods, object := group.GetUnscheduledPods(), group.GetPodGroup()
	switch {
	case object == nil || !slices.ContainsFunc(pods, subset.IsGated):
	case object.Spec.SchedulingPolicy.Gang != nil:
		asks, err := s.questionOf(object, pods)
		if err != nil {
			return nil, fwk.AsStatus(err)
		}
		s.waitForNodes(asks)
	default:
		for _, pod := range pods {
			s.waitForNodes(ledger.GroupAsks{Pods: []*corev1.Pod{pod}, AtLeast: 1})
		}
	}
	return nil, fwk.NewStatus(fwk.Unschedulable)
}

// waitForNodes opens the gates of the pods of a group that wait for nodes, as PostFilter does for a pod.
func (s *Spread) waitForNodes(asks ledger.GroupAsks) {
	s.book.apply(ledger.GroupWaits(asks))
	for _, pod := range asks.Pods {
		s.opener.openLater(pod)
	}
}

// placements are each place within each domain, and the round of the group.
func (s *Spread) placements(state fwk.PodGroupCycleState, places []*ledger.Decision, domains []*fwk.Placement, atLeast int) (*fwk.GeneratePlacementsResult, *fwk.Status) {
	nodes, err := s.handle.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		return nil, fwk.AsStatus(fmt.Errorf("listing the nodes of the snapshot: %w", err))
	}
	s.finder.update(nodes)
	result, r := &fwk.GeneratePlacementsResult{}, &round{of: map[*fwk.Placement]*trial{}, atLeast: atLeast, taken: len(places)}
	for rank, place := range places {
		var members sets.Set[string] // nil is every node
		if place.Subset != subset.None {
			members = s.finder.members(&place.Policy.Subsets[place.Subset])
		}
		for _, domain := range domains {
			in := &fwk.Placement{Name: place.Name()}
			if domain.Name != "" {
				in.Name += "/" + domain.Name
			}
			for _, node := range domain.Nodes {
				if members == nil || members.Has(node.Node().Name) {
					in.Nodes = append(in.Nodes, node)
				}
			}
			if len(in.Nodes) == 0 {
				continue
			}
			result.Placements = append(result.Placements, in)
			t := &trial{place: place, rank: rank}
			if r.of[in] = t; len(in.Nodes) == len(nodes) {
				r.everywhere = append(r.everywhere, t)
			}
		}
	}
	state.Write(roundKey, r)
	if len(result.Placements) == 0 {
		// Unresolvable, because the PodGroupPostFilter of DynamicResources fails if no pod was tried.
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("no subset of WorkloadSpread %q with room for the group has a node", places[0].Spread.Name))
	}
	return result, nil
}

// refusedGroup is the status of a group for which no subset has room, so that its pods are told as a pod is that PreFilter refuses.
func refusedGroup(status *fwk.Status, pod *corev1.Pod, nodes int) *fwk.Status {
	status.SetPlugin(Name)
	fit := &framework.FitError{Pod: pod, NumAllNodes: nodes, Diagnosis: framework.Diagnosis{
		NodeToStatus: framework.NewDefaultNodeToStatus(), UnschedulablePlugins: sets.New(Name), PreFilterMsg: status.Message()}}
	fit.Diagnosis.NodeToStatus.SetAbsentNodesStatus(status)
	return fwk.NewStatus(status.Code()).WithError(fit)
}

// isTrial is true in the cycle of a pod group.
func isTrial(state fwk.CycleState) bool { return state.IsPodGroupSchedulingCycle() }

// questionIn is what the pod asks the ledger in this cycle. It is refused if an earlier place takes the whole group.
func (s *Spread) questionIn(state fwk.CycleState, pod *corev1.Pod) (ledger.PodAsks, *fwk.Status) {
	if !isTrial(state) {
		return ledger.PodAsks{Pod: pod}, nil
	}
	r, t, err := s.trialIn(state)
	if err != nil {
		return ledger.PodAsks{}, fwk.AsStatus(err)
	}
	question := ledger.PodAsks{Pod: pod, Try: true}
	if t != nil {
		if t.rank > r.taken {
			return ledger.PodAsks{}, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "an earlier subset takes the group")
		}
		question.Place = t.place
	}
	return question, nil
}

// trialIn is the trial of this cycle. It is nil if the plugin did not choose the placements of the group.
func (s *Spread) trialIn(state fwk.CycleState) (*round, *trial, error) {
	data, err := state.GetPodGroupSchedulingCycle().Read(roundKey)
	if err != nil {
		return nil, nil, nil // each pod asks by itself
	}
	r, here := data.(*round), state.GetPlacementCycleState()
	if data, err := here.Read(trialKey); err == nil {
		return r, data.(*trial), nil
	}
	snapshot, ok := s.handle.SnapshotSharedLister().(interface{ GetPlacement() *fwk.Placement })
	if !ok {
		return nil, nil, errors.New("the scheduler's snapshot does not say which placement is tried")
	}
	t := r.of[snapshot.GetPlacement()]
	if t == nil { // the framework forgets a placement with all nodes
		if i := slices.IndexFunc(r.everywhere, func(t *trial) bool { return !t.begun }); i >= 0 {
			t = r.everywhere[i]
		}
	}
	if t == nil {
		return nil, nil, errors.New("the scheduler tries a placement that WorkloadSpread has not made")
	}
	t.begun = true
	here.Write(trialKey, t)
	return r, t, nil
}

// countTried counts the pods of the group that have a node in this placement.
func (s *Spread) countTried(state fwk.CycleState, pods int) {
	r, t, err := s.trialIn(state)
	if t == nil || err != nil {
		return
	}
	if t.found += pods; t.found >= r.atLeast {
		r.taken = min(r.taken, t.rank)
	}
}
