package ui

import (
	"cmp"
	"context"
	"maps"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	nodeutil "k8s.io/component-helpers/node/util"
	"k8s.io/utils/clock"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	federationv1alpha1 "github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	unitedv1beta1 "github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/lineage"
	"github.com/berth-project/berth/pkg/podstate"
	"github.com/berth-project/berth/pkg/report"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// pageNews is what changes on the page. A page that shows nothing yet gets everything.
type pageNews struct {
	// Keys are the labels by which nodes can be grouped, the best first. Nil if they have not changed.
	Keys    []pageKey    `json:"keys,omitempty"`
	Nodes   []pageNode   `json:"nodes,omitempty"`
	Pods    []pagePod    `json:"pods,omitempty"`
	Spreads []pageSpread `json:"spreads,omitempty"`
	// Gone are names of nodes, UIDs of pods and keys of spreads that are removed.
	Gone *pageGone `json:"gone,omitempty"`
}

// pageGone is what is removed from the page.
type pageGone struct {
	Nodes   []string `json:"nodes,omitempty"`
	Pods    []string `json:"pods,omitempty"`
	Spreads []string `json:"spreads,omitempty"`
}

// pageKey is a label by which nodes can be grouped.
type pageKey struct {
	Label string `json:"label"`
	// Values that subsets select, those of earlier subsets first. If spreads differ, the earliest position counts.
	Values []string `json:"values,omitempty"`
}

// pageNode as the page shows it.
type pageNode struct {
	Name string `json:"name"`
	// In are the node's values of the labels in Keys.
	In map[string]string `json:"in,omitempty"`
	// State is empty for a node that accepts pods.
	State string `json:"state,omitempty"`
}

// pagePod as the page shows it.
type pagePod struct {
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
	Adopted bool     `json:"adopted,omitempty"`
	Phase   podPhase `json:"phase"`
	// Why the pod is pending, as its scheduler reports it.
	Why string `json:"why,omitempty"`
}

// podPhase of a pod, as the page shows it.
type podPhase string

const (
	phasePending  podPhase = "pending"  // has no node
	phaseStarting podPhase = "starting" // has a node and is not ready
	phaseReady    podPhase = "ready"
	phaseLeaving  podPhase = "leaving" // is being deleted
	phaseEnded    podPhase = "ended"   // has succeeded or failed
)

// pageSpread as the page shows it. It may be a UnitedDeployment or a FederatedReplicaSet too, whose subsets are
// clusters.
type pageSpread struct {
	// Key is namespace/name, and the kind behind it if that is no WorkloadSpread.
	Key string `json:"key"`
	// Order are the names of its subsets. The report has none before the first status.
	Order []string `json:"order"`
	report.Report
}

// board holds the objects of the cluster and what the page shows of them. Objects may change at any rate. Only when
// news is asked for, those that have changed are evaluated. It is not safe for concurrent use.
type board struct {
	// owners tell which spread divides a pod.
	owners *lineage.Lineage
	clock  clock.PassiveClock

	nodes map[string]*corev1.Node
	pods  map[types.NamespacedName]*corev1.Pod
	// objects with a report, by the key of the page.
	objects map[string]metav1.Object
	// awaited are the owners, by UID, that are not known yet, one for each pod that waits for one. They are few at any
	// time.
	awaited   map[types.NamespacedName]types.UID
	staleKeys bool

	// What the page shows.
	keys         []pageKey
	shownNodes   table[string, pageNode]
	shownPods    table[types.NamespacedName, pagePod]
	shownSpreads table[string, pageSpread]
}

// table is what the page shows of one kind of things, and which of them have to be looked at again.
type table[K comparable, V any] struct {
	shown map[K]V
	stale sets.Set[K]
}

func newTable[K comparable, V any]() table[K, V] {
	return table[K, V]{map[K]V{}, sets.Set[K]{}}
}

// news looks at what is stale. look returns nil for what does not exist any more, and id tells what the page knows it
// by. After an error nothing has changed.
func (t *table[K, V]) news(look func(K) (*V, error), id func(*V) string) (changed []V, gone []string, _ error) {
	fresh := make(map[K]*V, len(t.stale))
	for key := range t.stale {
		is, err := look(key)
		if err != nil {
			return nil, nil, err
		}
		fresh[key] = is
	}
	for key, is := range fresh {
		before, known := t.shown[key]
		if known && (is == nil || id(&before) != id(is)) {
			gone = append(gone, id(&before))
			delete(t.shown, key)
		}
		if is != nil && (!known || !reflect.DeepEqual(&before, is)) {
			t.shown[key] = *is
			changed = append(changed, *is)
		}
	}
	clear(t.stale)
	return changed, gone, nil
}

func newBoard(owners *lineage.Lineage, clock clock.PassiveClock) *board {
	return &board{
		owners: owners, clock: clock,
		nodes: map[string]*corev1.Node{}, pods: map[types.NamespacedName]*corev1.Pod{}, objects: map[string]metav1.Object{},
		awaited:    map[types.NamespacedName]types.UID{},
		shownNodes: newTable[string, pageNode](), shownPods: newTable[types.NamespacedName, pagePod](), shownSpreads: newTable[string, pageSpread](),
	}
}

func keyOf(object metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}
}

// put is called with an object that is new or has changed.
func (b *board) put(object metav1.Object) {
	switch o := object.(type) {
	case *corev1.Node:
		b.putNode(o)
	case *corev1.Pod:
		b.pods[keyOf(o)] = o
		b.shownPods.stale.Insert(keyOf(o))
	default:
		b.putSpread(o)
	}
}

// drop is called with an object that is gone.
func (b *board) drop(object metav1.Object) {
	switch o := object.(type) {
	case *corev1.Node:
		delete(b.nodes, o.Name)
		b.shownNodes.stale.Insert(o.Name)
		b.moveNode(o.Name)
	case *corev1.Pod:
		delete(b.pods, keyOf(o))
		delete(b.awaited, keyOf(o))
		b.shownPods.stale.Insert(keyOf(o))
	default:
		key := keyOfSpread(o)
		delete(b.objects, key)
		b.shownSpreads.stale.Insert(key)
		b.reassignPods(o)
	}
}

func (b *board) putNode(node *corev1.Node) {
	before := b.nodes[node.Name]
	b.nodes[node.Name] = node
	b.shownNodes.stale.Insert(node.Name)
	if before == nil || !maps.Equal(before.Labels, node.Labels) {
		b.moveNode(node.Name)
	}
}

// moveNode is called when the pods of a node may belong to other subsets than before, because of the node.
func (b *board) moveNode(name string) {
	b.staleKeys = true
	for key, pod := range b.pods {
		if pod.Spec.NodeName == name {
			b.shownPods.stale.Insert(key)
		}
	}
}

func (b *board) putSpread(object metav1.Object) {
	key := keyOfSpread(object)
	before := b.objects[key]
	b.objects[key] = object
	b.shownSpreads.stale.Insert(key)
	was, is := before.(*v1beta1.WorkloadSpread)
	now, _ := object.(*v1beta1.WorkloadSpread)
	if before == nil || is && !subset.SamePolicy(was, now) || !is && before.GetGeneration() != object.GetGeneration() {
		b.reassignPods(object)
	}
}

// endWaits is called now and then, because a report changes without an event when what it waits for is over.
func (b *board) endWaits() {
	now := b.clock.Now()
	for key, shown := range b.shownSpreads.shown {
		if wait := shown.Wait; wait != nil && wait.Until != nil && !now.Before(*wait.Until) {
			b.shownSpreads.stale.Insert(key)
		}
	}
}

// reassignPods is called when pods may belong to other spreads or subsets than before, because of an object.
func (b *board) reassignPods(object metav1.Object) {
	b.staleKeys = true
	if _, divides := object.(*v1beta1.WorkloadSpread); !divides {
		return
	}
	for key := range b.pods {
		if key.Namespace == object.GetNamespace() {
			b.shownPods.stale.Insert(key)
		}
	}
}

// seeOwner is called when an owner of pods becomes known.
func (b *board) seeOwner(uid types.UID) {
	for key, owner := range b.awaited {
		if owner == uid {
			b.shownPods.stale.Insert(key)
			delete(b.awaited, key)
		}
	}
}

// isStale is true if there may be news.
func (b *board) isStale() bool {
	return b.staleKeys || len(b.shownNodes.stale) > 0 || len(b.shownPods.stale) > 0 || len(b.shownSpreads.stale) > 0
}

// news returns what has changed since the last call, or nil. After an error, which comes from the cache, the next call
// tries the same again.
func (b *board) news(ctx context.Context) (*pageNews, error) {
	n, gone := &pageNews{}, &pageGone{}
	var err error
	if n.Pods, gone.Pods, err = b.shownPods.news(func(key types.NamespacedName) (*pagePod, error) { return b.lookAtPod(ctx, b.pods[key]) }, func(p *pagePod) string { return string(p.UID) }); err != nil {
		return nil, err
	}
	if b.staleKeys {
		if keys := b.groupKeys(); !reflect.DeepEqual(keys, b.keys) {
			b.keys, n.Keys = keys, keys
			for name := range b.nodes {
				b.shownNodes.stale.Insert(name)
			}
		}
		b.staleKeys = false
	}
	n.Nodes, gone.Nodes, _ = b.shownNodes.news(b.lookAtNode, func(n *pageNode) string { return n.Name })
	n.Spreads, gone.Spreads, _ = b.shownSpreads.news(b.lookAtSpread, func(s *pageSpread) string { return s.Key })
	if len(gone.Nodes)+len(gone.Pods)+len(gone.Spreads) > 0 {
		n.Gone = gone
	}
	if n.Keys == nil && n.Gone == nil && len(n.Nodes)+len(n.Pods)+len(n.Spreads) == 0 {
		return nil, nil
	}
	return n, nil
}

// everything is all that the page shows.
func (b *board) everything() *pageNews {
	return &pageNews{
		Keys:    b.keys,
		Nodes:   slices.Collect(maps.Values(b.shownNodes.shown)),
		Pods:    slices.Collect(maps.Values(b.shownPods.shown)),
		Spreads: slices.Collect(maps.Values(b.shownSpreads.shown)),
	}
}

func (b *board) lookAtNode(name string) (*pageNode, error) {
	node := b.nodes[name]
	if node == nil {
		return nil, nil
	}
	shown := pageNode{Name: node.Name, In: map[string]string{}}
	for _, key := range b.keys {
		if value, found := node.Labels[key.Label]; found {
			shown.In[key.Label] = value
		}
	}
	switch _, ready := nodeutil.GetNodeCondition(&node.Status, corev1.NodeReady); {
	case ready == nil || ready.Status != corev1.ConditionTrue:
		shown.State = "not ready"
	case node.Spec.Unschedulable:
		shown.State = "cordoned"
	}
	return &shown, nil
}

func (b *board) lookAtPod(ctx context.Context, pod *corev1.Pod) (*pagePod, error) {
	if pod == nil {
		return nil, nil
	}
	shown := &pagePod{UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name, Node: pod.Spec.NodeName}
	shown.Phase, shown.Why = phaseOf(pod)
	spread, missing, err := b.owners.SpreadOf(ctx, pod.Namespace, workload.ControllerOf(pod), pod.Labels)
	if err != nil {
		return nil, err
	}
	if missing != nil {
		b.awaited[keyOf(pod)] = missing.UID
	}
	if spread == nil {
		return shown, b.lookAtUnitedPod(ctx, pod, shown)
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
func (b *board) lookAtUnitedPod(ctx context.Context, pod *corev1.Pod, shown *pagePod) error {
	in := pod.Labels[unitedv1beta1.SubsetNameLabel]
	if in == "" {
		return nil
	}
	_, err := b.owners.Climb(ctx, pod.Namespace, workload.ControllerOf(pod), func(owner workload.Owner) (bool, error) {
		if owner.Kind != unitedv1beta1.Kind.GroupKind() {
			return false, nil
		}
		shown.Spread, shown.Subset = pod.Namespace+"/"+owner.Name+" ("+owner.Kind.Kind+")", in
		return true, nil
	})
	return err
}

// keyOfSpread is the key of an object on the page. Objects of several kinds may have the same name.
func keyOfSpread(object metav1.Object) string {
	key := keyOf(object).String()
	switch object.(type) {
	case *unitedv1beta1.UnitedDeployment:
		key += " (UnitedDeployment)"
	case *federationv1alpha1.FederatedReplicaSet:
		key += " (FederatedReplicaSet)"
	}
	return key
}

// phaseOf returns the phase of a pod and, for a pending pod, why it is pending.
func phaseOf(pod *corev1.Pod) (phase podPhase, why string) {
	switch {
	case pod.DeletionTimestamp != nil:
		return phaseLeaving, ""
	case podstate.HasEnded(pod):
		return phaseEnded, ""
	case pod.Spec.NodeName == "":
		if c := podstate.Condition(pod, corev1.PodScheduled); c != nil && c.Message != "" {
			return phasePending, c.Message
		}
		return phasePending, "its scheduler has not reported yet"
	}
	if ready, _ := podstate.IsReady(pod); ready {
		return phaseReady, ""
	}
	return phaseStarting, ""
}

func (b *board) lookAtSpread(key string) (*pageSpread, error) {
	object := b.objects[key]
	if object == nil {
		return nil, nil
	}
	shown := &pageSpread{Key: key, Order: []string{}, Report: report.Of(object, b.clock.Now())}
	if spread, is := object.(*v1beta1.WorkloadSpread); is {
		b.addCost(spread, &shown.Report)
	}
	for _, of := range subsetsOf(object) {
		shown.Order = append(shown.Order, of.name)
	}
	if len(shown.Order) == 0 { // clusters
		for i := range shown.Subsets {
			shown.Order = append(shown.Order, shown.Subsets[i].Name)
		}
	}
	return shown, nil
}

// addCost adds what the pods of a spread cost, if a node has a price.
func (b *board) addCost(spread *v1beta1.WorkloadSpread, r *report.Report) {
	var nodes []*corev1.Node
	for _, node := range b.nodes {
		if node.Labels[v1beta1.HourlyPriceLabel] != "" {
			nodes = append(nodes, node)
		}
	}
	if len(nodes) == 0 {
		return
	}
	policy, errs := subset.Compile(spread, field.NewPath("spec"))
	if len(errs) > 0 {
		return // the report says so
	}
	var own []*corev1.Pod
	for name, pod := range b.pods {
		if shown, found := b.shownPods.shown[name]; found && shown.Spread == keyOfSpread(spread) {
			own = append(own, pod)
		}
	}
	r.AddCost(policy.PodPrices(nil, nodes, report.RequestsOf(own)))
}

// subsetOf is a subset of an object's spec. Its term, by which it selects its nodes, may be nil.
type subsetOf struct {
	name string
	term *corev1.NodeSelectorTerm
}

// subsetsOf are those of a spread or a UnitedDeployment.
func subsetsOf(object metav1.Object) (all []subsetOf) {
	switch o := object.(type) {
	case *v1beta1.WorkloadSpread:
		for i := range o.Spec.Subsets {
			all = append(all, subsetOf{o.Spec.Subsets[i].Name, o.Spec.Subsets[i].RequiredNodeSelector})
		}
	case *unitedv1beta1.UnitedDeployment:
		for i := range o.Spec.Topology.Subsets {
			all = append(all, subsetOf{o.Spec.Topology.Subsets[i].Name, o.Spec.Topology.Subsets[i].NodeSelectorTerm})
		}
	}
	return all
}

// groupKeys are the labels by which subsets select their nodes, and the zone. The label that most subsets use comes
// first, if any node has it. The others follow in alphabetical order.
func (b *board) groupKeys() []pageKey {
	selecting := map[string]int{corev1.LabelTopologyZone: 0}
	// places has, for each value of a label, the position of the first subset that selects it.
	places := map[string]map[string]int{}
	for _, object := range b.objects {
		for i, of := range subsetsOf(object) {
			if of.term == nil {
				continue
			}
			for _, requirement := range of.term.MatchExpressions {
				selecting[requirement.Key]++
				if requirement.Operator != corev1.NodeSelectorOpIn {
					continue
				}
				if places[requirement.Key] == nil {
					places[requirement.Key] = map[string]int{}
				}
				for _, value := range requirement.Values {
					if first, known := places[requirement.Key][value]; !known || i < first {
						places[requirement.Key][value] = i
					}
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
	keys := make([]pageKey, len(labels))
	for i, label := range labels {
		of := places[label]
		keys[i] = pageKey{Label: label, Values: slices.SortedFunc(maps.Keys(of), func(a, b string) int {
			return cmp.Or(cmp.Compare(of[a], of[b]), cmp.Compare(a, b))
		})}
	}
	return keys
}

func (b *board) anyNodeHas(label string) bool {
	for _, node := range b.nodes {
		if _, found := node.Labels[label]; found {
			return true
		}
	}
	return false
}
