package ui

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	federationv1alpha1 "github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	unitedv1beta1 "github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/lineage"
	"github.com/berth-project/berth/pkg/report"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// News is what changes on the page. A page that shows nothing yet gets everything.
type News struct {
	// Keys are the labels by which nodes can be grouped, the best first. Nil if they have not changed.
	Keys    []Key    `json:"keys,omitempty"`
	Nodes   []Node   `json:"nodes,omitempty"`
	Pods    []Pod    `json:"pods,omitempty"`
	Spreads []Spread `json:"spreads,omitempty"`
	// Gone are names of nodes, UIDs of pods and keys of spreads that are removed.
	Gone *Gone `json:"gone,omitempty"`
}

// Gone is what is removed from the page.
type Gone struct {
	Nodes   []string    `json:"nodes,omitempty"`
	Pods    []types.UID `json:"pods,omitempty"`
	Spreads []string    `json:"spreads,omitempty"`
}

// Key is a label by which nodes can be grouped.
type Key struct {
	Label string `json:"label"`
	// Values that subsets select, those of earlier subsets first. If spreads differ, the mean position counts.
	Values []string `json:"values,omitempty"`
}

// Node as the page shows it.
type Node struct {
	Name string `json:"name"`
	// In are the node's values of the labels in Keys.
	In map[string]string `json:"in,omitempty"`
	// State is empty for a node that accepts pods.
	State string `json:"state,omitempty"`
}

// Pod as the page shows it.
type Pod struct {
	UID       types.UID `json:"uid"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	// Node is empty for a pending pod.
	Node string `json:"node,omitempty"`
	// Spread is the key of the spread that divides the pod. Empty if none does.
	Spread string `json:"spread,omitempty"`
	// Subset of the pod, or the one that admission picked for it. Empty if it has none.
	Subset string `json:"subset,omitempty"`
	// Adopted is true if the node decides about the subset, because another scheduler bound the pod.
	Adopted bool  `json:"adopted,omitempty"`
	Phase   Phase `json:"phase"`
	// Why the pod is pending, as its scheduler reports it.
	Why string `json:"why,omitempty"`
}

// Phase of a pod, as the page shows it.
type Phase string

const (
	Pending  Phase = "pending"  // has no node
	Starting Phase = "starting" // has a node and is not ready
	Ready    Phase = "ready"
	Leaving  Phase = "leaving" // is being deleted
	Ended    Phase = "ended"   // has succeeded or failed
)

// Spread as the page shows it.
type Spread struct {
	// Key is namespace/name.
	Key string `json:"key"`
	// Order are the names of its subsets. The report has none before the spread's first status.
	Order []string `json:"order"`
	// Kind is UnitedDeployment or FederatedReplicaSet, whose subsets are clusters. Empty for a spread. The page shows them as it shows a spread: the quota of a subset is how many replicas it
	// is asked for.
	Kind string `json:"kind,omitempty"`
	report.Spread
}

// family knows which spread divides a pod, and its owners.
type family interface {
	Climb(ctx context.Context, namespace string, from *workload.Owner, visit func(workload.Owner) (done bool, err error)) (missing *workload.Owner, err error)
	SpreadOf(ctx context.Context, namespace string, owner *workload.Owner, labels map[string]string) (_ *lineage.Spread, missing *workload.Owner, _ error)
}

var _ family = &lineage.Lineage{}

// board holds the objects of the cluster and what the page shows of them. Objects may change at any rate. Only when news is asked for, those that
// have changed are evaluated. It is not safe for concurrent use.
type board struct {
	family family
	clock  clock.PassiveClock

	nodes   map[string]*corev1.Node
	pods    map[types.NamespacedName]*corev1.Pod
	spreads map[types.NamespacedName]*v1beta1.WorkloadSpread
	united  map[types.NamespacedName]*unitedv1beta1.UnitedDeployment
	// podsOn are the pods of a node.
	podsOn map[string]sets.Set[types.NamespacedName]
	// awaited are pods by the UID of an owner that is not known yet.
	awaited map[types.UID]sets.Set[types.NamespacedName]

	staleNodes   sets.Set[string]
	stalePods    sets.Set[types.NamespacedName]
	staleSpreads sets.Set[types.NamespacedName]
	staleKeys    bool
	// staleOthers look at what is no spread, by key. Nil if it is gone.
	staleOthers map[string]func() Spread

	// What the page shows.
	keys         []Key
	shownNodes   map[string]Node
	shownPods    map[types.NamespacedName]Pod
	shownSpreads map[types.NamespacedName]Spread
	shownOthers  map[string]Spread
}

func newBoard(family family, clock clock.PassiveClock) *board {
	return &board{
		family: family, clock: clock,
		nodes: map[string]*corev1.Node{}, pods: map[types.NamespacedName]*corev1.Pod{}, spreads: map[types.NamespacedName]*v1beta1.WorkloadSpread{},
		united: map[types.NamespacedName]*unitedv1beta1.UnitedDeployment{}, staleOthers: map[string]func() Spread{}, shownOthers: map[string]Spread{},
		podsOn: map[string]sets.Set[types.NamespacedName]{}, awaited: map[types.UID]sets.Set[types.NamespacedName]{},
		staleNodes: sets.New[string](), stalePods: sets.New[types.NamespacedName](), staleSpreads: sets.New[types.NamespacedName](),
		shownNodes: map[string]Node{}, shownPods: map[types.NamespacedName]Pod{}, shownSpreads: map[types.NamespacedName]Spread{},
	}
}

func keyOf(object metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}
}

func (b *board) putNode(node *corev1.Node) {
	before := b.nodes[node.Name]
	b.nodes[node.Name] = node
	b.staleNodes.Insert(node.Name)
	if before == nil || !maps.Equal(before.Labels, node.Labels) {
		b.staleKeys = true
		maps.Copy(b.stalePods, b.podsOn[node.Name])
	}
}

func (b *board) dropNode(name string) {
	delete(b.nodes, name)
	b.staleNodes.Insert(name)
	b.staleKeys = true
	maps.Copy(b.stalePods, b.podsOn[name])
}

func (b *board) putPod(pod *corev1.Pod) {
	key := keyOf(pod)
	b.leaveNode(key)
	b.pods[key] = pod
	if node := pod.Spec.NodeName; node != "" {
		if b.podsOn[node] == nil {
			b.podsOn[node] = sets.New[types.NamespacedName]()
		}
		b.podsOn[node].Insert(key)
	}
	b.stalePods.Insert(key)
}

func (b *board) dropPod(key types.NamespacedName) {
	b.leaveNode(key)
	delete(b.pods, key)
	b.stalePods.Insert(key)
	for owner, waiting := range b.awaited { // few at any time
		if waiting.Delete(key); waiting.Len() == 0 {
			delete(b.awaited, owner)
		}
	}
}

func (b *board) leaveNode(key types.NamespacedName) {
	before := b.pods[key]
	if before == nil || before.Spec.NodeName == "" {
		return
	}
	on := b.podsOn[before.Spec.NodeName]
	if on.Delete(key); on.Len() == 0 {
		delete(b.podsOn, before.Spec.NodeName)
	}
}

func (b *board) putSpread(spread *v1beta1.WorkloadSpread) {
	key := keyOf(spread)
	before := b.spreads[key]
	b.spreads[key] = spread
	b.staleSpreads.Insert(key)
	if before == nil || !subset.SamePolicy(before, spread) {
		b.reassignPods(key.Namespace)
	}
}

func (b *board) dropSpread(key types.NamespacedName) {
	delete(b.spreads, key)
	b.staleSpreads.Insert(key)
	b.reassignPods(key.Namespace)
}

func (b *board) putUnited(ud *unitedv1beta1.UnitedDeployment) {
	key := keyOf(ud)
	before := b.united[key]
	b.united[key] = ud
	b.staleOthers[keyOfUnited(key)] = func() Spread { return b.lookAtUnited(ud) }
	if before == nil || before.Generation != ud.Generation {
		b.staleKeys = true
	}
}

func (b *board) dropUnited(key types.NamespacedName) {
	delete(b.united, key)
	b.staleOthers[keyOfUnited(key)] = nil
	b.staleKeys = true
}

func (b *board) putFederated(frs *federationv1alpha1.FederatedReplicaSet) {
	b.staleOthers[keyOfFederated(keyOf(frs))] = func() Spread { return b.lookAtFederated(frs) }
}

func (b *board) dropFederated(key types.NamespacedName) { b.staleOthers[keyOfFederated(key)] = nil }

// endWaits is called now and then, because a report changes without an event when what it waits for is over.
func (b *board) endWaits() {
	now := b.clock.Now()
	for key := range b.shownSpreads {
		if wait := b.shownSpreads[key].Wait; wait != nil && wait.Until != nil && !now.Before(*wait.Until) {
			b.staleSpreads.Insert(key)
		}
	}
}

// reassignPods is called when pods of the namespace may belong to other spreads or subsets than before.
func (b *board) reassignPods(namespace string) {
	b.staleKeys = true
	for key := range b.pods {
		if key.Namespace == namespace {
			b.stalePods.Insert(key)
		}
	}
}

// seeOwner is called when an owner of pods becomes known.
func (b *board) seeOwner(uid types.UID) {
	maps.Copy(b.stalePods, b.awaited[uid])
	delete(b.awaited, uid)
}

// isStale is true if there may be news.
func (b *board) isStale() bool {
	return b.staleKeys || len(b.staleNodes) > 0 || len(b.stalePods) > 0 || len(b.staleSpreads) > 0 || len(b.staleOthers) > 0
}

// news returns what has changed since the last call, or nil. After an error, which comes from the cache, the next call tries the same again.
func (b *board) news(ctx context.Context) (*News, error) {
	fresh := map[types.NamespacedName]Pod{}
	for key := range b.stalePods {
		if pod := b.pods[key]; pod != nil {
			shown, err := b.lookAtPod(ctx, pod)
			if err != nil {
				return nil, err
			}
			fresh[key] = shown
		}
	}
	n, gone := &News{}, &Gone{}
	if b.staleKeys {
		if keys := b.groupKeys(); !slices.EqualFunc(keys, b.keys, sameKey) {
			b.keys, n.Keys = keys, keys
			for name := range b.nodes {
				b.staleNodes.Insert(name)
			}
		}
	}
	for name := range b.staleNodes {
		before, known := b.shownNodes[name]
		node := b.nodes[name]
		if node == nil {
			if known {
				gone.Nodes = append(gone.Nodes, name)
				delete(b.shownNodes, name)
			}
			continue
		}
		if shown := b.lookAtNode(node); !known || before.State != shown.State || !maps.Equal(before.In, shown.In) {
			b.shownNodes[name] = shown
			n.Nodes = append(n.Nodes, shown)
		}
	}
	for key := range b.stalePods {
		before, known := b.shownPods[key]
		shown, exists := fresh[key]
		if known && (!exists || before.UID != shown.UID) {
			gone.Pods = append(gone.Pods, before.UID)
			delete(b.shownPods, key)
		}
		if exists && before != shown {
			b.shownPods[key] = shown
			n.Pods = append(n.Pods, shown)
		}
	}
	for key := range b.staleSpreads {
		spread := b.spreads[key]
		if spread == nil {
			if _, known := b.shownSpreads[key]; known {
				gone.Spreads = append(gone.Spreads, key.String())
				delete(b.shownSpreads, key)
			}
			continue
		}
		shown := b.lookAtSpread(spread)
		b.shownSpreads[key] = shown
		n.Spreads = append(n.Spreads, shown)
	}
	for key, look := range b.staleOthers {
		if look != nil {
			b.shownOthers[key] = look()
			n.Spreads = append(n.Spreads, b.shownOthers[key])
		} else if _, known := b.shownOthers[key]; known {
			gone.Spreads = append(gone.Spreads, key)
			delete(b.shownOthers, key)
		}
	}
	clear(b.staleOthers)
	clear(b.staleNodes)
	clear(b.stalePods)
	clear(b.staleSpreads)
	b.staleKeys = false
	if len(gone.Nodes)+len(gone.Pods)+len(gone.Spreads) > 0 {
		n.Gone = gone
	}
	if n.Keys == nil && n.Gone == nil && len(n.Nodes)+len(n.Pods)+len(n.Spreads) == 0 {
		return nil, nil
	}
	return n, nil
}

// everything is all that the page shows.
func (b *board) everything() *News {
	return &News{
		Keys:    b.keys,
		Nodes:   slices.Collect(maps.Values(b.shownNodes)),
		Pods:    slices.Collect(maps.Values(b.shownPods)),
		Spreads: slices.AppendSeq(slices.Collect(maps.Values(b.shownSpreads)), maps.Values(b.shownOthers)),
	}
}

func (b *board) lookAtNode(node *corev1.Node) Node {
	shown := Node{Name: node.Name, In: map[string]string{}}
	for _, key := range b.keys {
		if value, found := node.Labels[key.Label]; found {
			shown.In[key.Label] = value
		}
	}
	ready := slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	switch {
	case !ready:
		shown.State = "not ready"
	case node.Spec.Unschedulable:
		shown.State = "cordoned"
	}
	return shown
}

func (b *board) lookAtPod(ctx context.Context, pod *corev1.Pod) (Pod, error) {
	shown := Pod{UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name, Node: pod.Spec.NodeName}
	shown.Phase, shown.Why = phaseOf(pod)
	spread, missing, err := b.family.SpreadOf(ctx, pod.Namespace, workload.ControllerOf(pod), pod.Labels)
	if err != nil {
		return Pod{}, err
	}
	if missing != nil {
		if b.awaited[missing.UID] == nil {
			b.awaited[missing.UID] = sets.New[types.NamespacedName]()
		}
		b.awaited[missing.UID].Insert(keyOf(pod))
	}
	if spread == nil {
		return shown, b.lookAtUnitedPod(ctx, pod, &shown)
	}
	shown.Spread = types.NamespacedName{Namespace: pod.Namespace, Name: spread.Name}.String()
	if spread.Policy == nil {
		return shown, nil
	}
	observed := subset.Observe(pod, b.nodes[pod.Spec.NodeName])
	switch index, adopted := spread.Policy.SubsetOf(&observed, spread.Name); {
	case index != subset.None:
		shown.Subset, shown.Adopted = spread.Policy.Subsets[index].Name, adopted || observed.BoundByOthers()
	case shown.Node == "":
		if picked, _ := spread.Policy.AdmittedTo(observed.Admitted, spread.Name); picked != subset.None {
			shown.Subset = spread.Policy.Subsets[picked].Name
		}
	}
	return shown, nil
}

// lookAtUnitedPod shows a pod in its UnitedDeployment, if it has one.
func (b *board) lookAtUnitedPod(ctx context.Context, pod *corev1.Pod, shown *Pod) error {
	in := pod.Labels[unitedv1beta1.SubsetNameLabel]
	if in == "" {
		return nil
	}
	_, err := b.family.Climb(ctx, pod.Namespace, workload.ControllerOf(pod), func(owner workload.Owner) (bool, error) {
		if owner.Kind != unitedv1beta1.Kind.GroupKind() {
			return false, nil
		}
		shown.Spread, shown.Subset = keyOfUnited(types.NamespacedName{Namespace: pod.Namespace, Name: owner.Name}), in
		return true, nil
	})
	return err
}

// keyOfUnited is the key of a UnitedDeployment on the page. A spread may have the same name.
func keyOfUnited(key types.NamespacedName) string { return key.String() + " (UnitedDeployment)" }

func (b *board) lookAtUnited(ud *unitedv1beta1.UnitedDeployment) Spread {
	r := report.OfUnited(ud, b.clock.Now())
	shown := Spread{Key: keyOfUnited(keyOf(ud)), Kind: r.Kind, Order: []string{}, Spread: report.Spread{
		Namespace: r.Namespace, Name: r.Name, Target: cmp.Or(r.Children, "no template") + " in each subset", Strategy: r.Strategy,
		Ready: r.Ready, Reason: v1beta1.Reason(r.Reason), Message: r.Message, Replicas: r.Replicas, Next: r.Next,
	}}
	for i := range ud.Spec.Topology.Subsets {
		shown.Order = append(shown.Order, ud.Spec.Topology.Subsets[i].Name)
	}
	for _, is := range r.Subsets {
		shown.Subsets = append(shown.Subsets, report.Subset{Name: is.Name, Pods: is.Ready, Quota: &is.Replicas, Target: is.Replicas, Schedulable: is.Schedulable, Message: is.Message})
	}
	return shown
}

// keyOfFederated is the key of a FederatedReplicaSet on the page.
func keyOfFederated(key types.NamespacedName) string { return key.String() + " (FederatedReplicaSet)" }

func (b *board) lookAtFederated(frs *federationv1alpha1.FederatedReplicaSet) Spread {
	r := report.OfFederated(frs, b.clock.Now())
	shown := Spread{Key: keyOfFederated(keyOf(frs)), Kind: r.Kind, Order: []string{}, Spread: report.Spread{
		Namespace: r.Namespace, Name: r.Name, Target: "ReplicaSet in each cluster", Strategy: fmt.Sprintf("%d clusters", len(r.Clusters)),
		Ready: r.Ready, Reason: v1beta1.Reason(r.Reason), Message: r.Message, Replicas: r.Replicas, Next: r.Next,
	}}
	for _, in := range r.Clusters {
		of := report.Subset{Name: in.Name, Pods: in.Available, Quota: &in.Replicas, Target: in.Share, Schedulable: in.State == federationv1alpha1.ClusterReady}
		if !of.Schedulable {
			of.Message = string(in.State) + ": " + in.Message
		}
		shown.Order = append(shown.Order, in.Name)
		shown.Subsets = append(shown.Subsets, of)
	}
	return shown
}

// phaseOf returns the phase of a pod and, for a pending pod, why it is pending.
func phaseOf(pod *corev1.Pod) (phase Phase, why string) {
	switch {
	case pod.DeletionTimestamp != nil:
		return Leaving, ""
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		return Ended, ""
	case pod.Spec.NodeName == "":
		for i := range pod.Status.Conditions {
			if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Message != "" {
				return Pending, c.Message
			}
		}
		return Pending, "its scheduler has not reported yet"
	}
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return Ready, ""
		}
	}
	return Starting, ""
}

func (b *board) lookAtSpread(spread *v1beta1.WorkloadSpread) Spread {
	shown := Spread{Key: keyOf(spread).String(), Spread: report.Of(spread, b.clock.Now()), Order: make([]string, len(spread.Spec.Subsets))}
	for i := range spread.Spec.Subsets {
		shown.Order[i] = spread.Spec.Subsets[i].Name
	}
	return shown
}

// groupKeys are the labels by which subsets select their nodes, and the zone. The label that most subsets use comes first, if any node has it. The
// others follow in alphabetical order.
func (b *board) groupKeys() []Key {
	selecting := map[string]int{corev1.LabelTopologyZone: 0}
	// places has, for each value of a label, the positions of the subsets that select it.
	places := map[string]map[string][]int{}
	var lists [][]*corev1.NodeSelectorTerm
	for _, spread := range b.spreads {
		var terms []*corev1.NodeSelectorTerm
		for i := range spread.Spec.Subsets {
			terms = append(terms, spread.Spec.Subsets[i].RequiredNodeSelector)
		}
		lists = append(lists, terms)
	}
	for _, ud := range b.united {
		var terms []*corev1.NodeSelectorTerm
		for i := range ud.Spec.Topology.Subsets {
			terms = append(terms, ud.Spec.Topology.Subsets[i].NodeSelectorTerm)
		}
		lists = append(lists, terms)
	}
	for _, terms := range lists {
		for i, term := range terms {
			if term == nil {
				continue
			}
			for _, requirement := range term.MatchExpressions {
				selecting[requirement.Key]++
				if requirement.Operator != corev1.NodeSelectorOpIn {
					continue
				}
				if places[requirement.Key] == nil {
					places[requirement.Key] = map[string][]int{}
				}
				for _, value := range requirement.Values {
					places[requirement.Key][value] = append(places[requirement.Key][value], i)
				}
			}
		}
	}
	delete(selecting, corev1.LabelHostname) // one group for each node would be useless
	labels := slices.Sorted(maps.Keys(selecting))
	best := -1
	for i, label := range labels {
		if b.anyNodeHas(label) && (best < 0 || selecting[label] > selecting[labels[best]]) {
			best = i
		}
	}
	if best > 0 {
		first := labels[best]
		labels = slices.Insert(slices.Delete(labels, best, best+1), 0, first)
	}
	keys := make([]Key, len(labels))
	for i, label := range labels {
		of := places[label]
		keys[i] = Key{Label: label, Values: slices.SortedFunc(maps.Keys(of), func(a, b string) int {
			return cmp.Or(cmp.Compare(mean(of[a]), mean(of[b])), cmp.Compare(a, b))
		})}
	}
	return keys
}

func mean(numbers []int) float64 {
	sum := 0
	for _, n := range numbers {
		sum += n
	}
	return float64(sum) / float64(len(numbers))
}

func sameKey(a, b Key) bool { return a.Label == b.Label && slices.Equal(a.Values, b.Values) }

func (b *board) anyNodeHas(label string) bool {
	for _, node := range b.nodes {
		if _, found := node.Labels[label]; found {
			return true
		}
	}
	return false
}
