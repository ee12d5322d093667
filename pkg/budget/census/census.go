// Package census reads from the API server what pkg/budget judges by: the pods that a budget covers, and how many pods their workloads ask
// for. It decides nothing. Begin reading at Census.Take.
//
// Workloads are read live, and so are pods unless the caller says how old they may be. What comes from a cache can only be old news about
// nodes, and is made sure of before it counts.
package census

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/crd/policy/v1alpha1"
	"github.com/berth-project/berth/pkg/panics"
	"github.com/berth-project/berth/pkg/workload"
)

// Census reads for many budgets at the same time.
type Census struct {
	live   client.Reader
	scales client.SubResourceReader
	nodes  client.Reader
	// hints are the owners that were found when a budget was counted last. They are read again, at the same time as the pods and not after them.
	hints *lru.Cache
}

// mostHinted is how many budgets have hints. Those of the one that was counted least recently make room for another's.
const mostHinted = 4096

// New reads pods and workloads live, and the scale subresources of kinds that are not built in by scales. The metadata of nodes may come from a cache.
func New(live client.Reader, scales client.SubResourceReader, nodes client.Reader) *Census {
	return &Census{live: live, scales: scales, nodes: nodes, hints: lru.New(mostHinted)}
}

// Count is what there is at one moment.
type Count struct {
	// Facts have no ledger.
	budget.Facts
	// Pods of the budget as the API server has them, in the order of the facts.
	Pods []*corev1.Pod
	// Listed are all pods that the selector picks, also those of other workloads if the budget names one.
	Listed []*corev1.Pod
	// Revision is the resourceVersion of the pods, also if there are none.
	Revision string
	// Selector picks the pods that may be the budget's: for a budget with a target that of the workload.
	Selector labels.Selector
	// Owners are the objects above the pods, by UID, as far as they are named. It may have others that were above pods the last time.
	Owners sets.Set[types.UID]
	// holders are the controllers of the budget's pods, through which it is known how many there should be, and which pods each of them keeps. For a budget with
	// a target they make its pods the target's. One that is being deleted holds nobody: its pods go with it, or it leaves them behind.
	holders map[types.UID]labels.Selector
	// ofTarget is true if the budget has a target.
	ofTarget bool
	// TargetGone is true if the workload that the budget names does not exist or is being deleted.
	TargetGone bool
	// Unread are the kinds of workloads that do not tell replicas. Their pods count as unmanaged.
	Unread []string
	// Unwatched is true if what a workload asks for can change without an event that Berth watches.
	Unwatched bool
}

// Covers is true if the pod is one of the budget's.
func (c *Count) Covers(uid types.UID) bool {
	return slices.ContainsFunc(c.Pods, func(pod *corev1.Pod) bool { return pod.UID == uid })
}

// Loses is true if an update takes a pod from the workload that asks for it, although it has the labels that the budget goes by: it gets another controller
// that has no pods of the budget yet, or none. Without pods of its own a workload says nothing of how many there should be. That a controller lets go of a pod
// whose labels it does not select is nothing new. A budget with a target has lost the pod as soon as it has such labels; for one with a selector it stays.
func (c *Count) Loses(before, after *corev1.Pod) bool {
	keeps, held := c.holders[workload.ControllerUID(before)]
	if !held || !keeps.Matches(labels.Set(before.Labels)) {
		return false
	}
	_, stays := c.holders[workload.ControllerUID(after)]
	return !stays || c.ofTarget && !keeps.Matches(labels.Set(after.Labels))
}

// KeysOf are the keys of the labels by which a pod is the budget's: no change of another label can take it out of the budget. They are those of the
// selector and, if the budget names a workload, those by which the pod's controller keeps it. They are in no order, and may repeat.
func (c *Count) KeysOf(pod *corev1.Pod) (keys []string) {
	selectors := []labels.Selector{c.Selector}
	if keeps, held := c.holders[workload.ControllerUID(pod)]; held {
		selectors = append(selectors, keeps)
	}
	for _, selector := range selectors {
		requirements, _ := selector.Requirements()
		for i := range requirements {
			keys = append(keys, requirements[i].Key())
		}
	}
	return keys
}

// LeavesUnasked is true for a pod of the budget of which a label may change unasked by which it is the budget's: the API server goes by the keys that the pod
// is annotated with, and by all of them if it has no such annotation.
func (c *Count) LeavesUnasked(pod *corev1.Pod) bool {
	written, annotated := pod.Annotations[v1alpha1.SelectorKeysAnnotation]
	if !annotated {
		return false
	}
	asked := strings.Split(written, ",")
	return slices.ContainsFunc(c.KeysOf(pod), func(key string) bool { return !slices.Contains(asked, key) })
}

// Find is the pod if it exists and the selector picks it, whether it is one of the budget's or may become one. Nil if not. The caller must not change it.
func (c *Count) Find(uid types.UID) *corev1.Pod {
	for _, pod := range c.Listed {
		if pod.UID == uid {
			return pod
		}
	}
	return nil
}

// Take counts the pods of a budget in a namespace. What it reads is not older than the call, except pods: if atLeast is not empty, they are of
// any revision that is not older than that one. The API server answers from its own memory then, which it mostly has the latest in, and need
// not ask its store what the latest is.
//
// An owner that is gone takes all below it along, unless it has left them behind: it is taken off them first, and goes then. So it only counts as gone
// if what names it was read after it was. If not, everything is read again, as it is committed.
func (c *Census) Take(ctx context.Context, namespace string, policy *budget.Policy, atLeast string) (*Count, error) {
	before := map[types.UID]bool{}
	for {
		o := &owners{census: c, namespace: namespace, found: map[types.UID]*owner{}}
		count, gone, err := c.take(ctx, o, policy, atLeast)
		if err != nil {
			return nil, err
		}
		news := false
		for _, uid := range gone {
			news = news || !before[uid]
			before[uid] = true
		}
		if !news {
			count.Owners = sets.KeySet(o.found)
			return count, nil
		}
		atLeast = ""
	}
}

// take reads everything once. It returns the owners of pods of the budget, or of pods that might be, that are gone.
func (c *Census) take(ctx context.Context, o *owners, policy *budget.Policy, atLeast string) (count *Count, gone []types.UID, err error) {
	name := types.NamespacedName{Namespace: o.namespace, Name: policy.Name}
	if policy.Target != nil {
		return c.takeOfTarget(ctx, o, name, policy, atLeast)
	}
	o.existence = policy.Replicas != nil
	count = &Count{Selector: policy.Selector, holders: map[types.UID]labels.Selector{}}
	var pods []*corev1.Pod
	reading, readCtx := errgroup.WithContext(ctx)
	panics.Go(ctx, reading, func() (err error) {
		pods, err = c.list(readCtx, count, o.namespace, atLeast)
		return err
	})
	panics.Go(ctx, reading, func() error { return o.loadHints(readCtx, name) })
	if err := reading.Wait(); err != nil {
		return nil, nil, err
	}
	if err := o.load(ctx, pods); err != nil {
		return nil, nil, err
	}
	o.leaveHints(name, pods, "")
	top := make([]*owner, len(pods))
	for i, pod := range pods {
		top[i] = o.top(pod)
		count.hold(o.found[workload.ControllerUID(pod)])
	}
	seen := map[types.UID]bool{}
	for _, owner := range top {
		if owner == nil || seen[owner.uid] {
			continue
		}
		seen[owner.uid] = true
		count.add(owner)
		if owner.gone {
			gone = append(gone, owner.uid)
		}
	}
	return count, gone, c.observe(ctx, count, pods, func(i int) bool { return top[i] == nil || top[i].unread })
}

func (c *Census) takeOfTarget(ctx context.Context, o *owners, name types.NamespacedName, policy *budget.Policy, atLeast string) (count *Count, gone []types.UID, err error) {
	ref := policy.Target
	var target *owner
	reading, readCtx := errgroup.WithContext(ctx)
	panics.Go(ctx, reading, func() (err error) {
		target, err = o.read(readCtx, schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind), ref.Name, "")
		return err
	})
	panics.Go(ctx, reading, func() error { return o.loadHints(readCtx, name) })
	if err := reading.Wait(); err != nil {
		return nil, nil, err
	}
	if target.uid == "" { // there is no such object, or no such kind
		target.gone, target.unread = true, false
	}
	target.parent = nil // whoever owns the workload does not matter
	count = &Count{Selector: target.selector, TargetGone: target.gone, ofTarget: true, holders: map[types.UID]labels.Selector{}}
	count.add(target)
	if target.uid == "" {
		count.Selector = labels.Nothing()
		return count, nil, c.date(ctx, count, o.namespace, atLeast)
	}
	all, err := c.list(ctx, count, o.namespace, atLeast)
	if err != nil {
		return nil, nil, err
	}
	o.found[target.uid] = target
	if err := o.load(ctx, all); err != nil {
		return nil, nil, err
	}
	o.leaveHints(name, all, target.uid)
	var pods []*corev1.Pod
	for _, pod := range all {
		if o.isUnder(pod, target.uid) {
			pods = append(pods, pod)
			count.hold(o.found[workload.ControllerUID(pod)])
		} else if top := o.top(pod); top != nil && top.gone { // the target may have adopted what it has left behind
			gone = append(gone, top.uid)
		}
	}
	return count, gone, c.observe(ctx, count, pods, func(int) bool { return target.unread })
}

func (c *Count) add(o *owner) {
	c.Unwatched = c.Unwatched || !o.watched
	if o.unread {
		if name := o.kind.String(); !slices.Contains(c.Unread, name) {
			c.Unread = append(c.Unread, name)
		}
		return
	}
	c.Workloads = append(c.Workloads, budget.Workload{Name: o.kind.Kind + " " + o.name, Replicas: o.replicas, Gone: o.gone})
}

// hold takes note of the controller of a pod, nil if it has none.
func (c *Count) hold(controller *owner) {
	if controller != nil && !controller.deleting && !controller.gone {
		c.holders[controller.uid] = controller.selector
	}
}

// list reads the pods that the selector picks.
func (c *Census) list(ctx context.Context, count *Count, namespace, atLeast string) ([]*corev1.Pod, error) {
	options := notOlderThan(atLeast, namespace)
	options.LabelSelector = count.Selector
	var list corev1.PodList
	if err := c.read(ctx, &list, options); err != nil {
		return nil, fmt.Errorf("listing the pods of namespace %s: %w", namespace, err)
	}
	pods := make([]*corev1.Pod, len(list.Items))
	for i := range list.Items {
		pods[i] = &list.Items[i]
	}
	count.Listed, count.Revision = pods, list.ResourceVersion
	return pods, nil
}

// date finds the revision at which a budget has no pods. Whoever strikes out of its ledger needs it, lest pods of before are counted once there are
// some again. A selector that picks nothing cannot be asked for: in a query it is empty, and picks everything.
func (c *Census) date(ctx context.Context, count *Count, namespace, atLeast string) error {
	options := notOlderThan(atLeast, namespace)
	options.Limit = 1
	var list corev1.PodList
	if err := c.read(ctx, &list, options); err != nil {
		return fmt.Errorf("asking for the revision of the pods of namespace %s: %w", namespace, err)
	}
	count.Revision = list.ResourceVersion
	return nil
}

// read lists pods. An API server that has waited in vain for the revision lags behind the one that it is from, or there is no such revision; it is asked for
// what is committed, which is no older.
func (c *Census) read(ctx context.Context, list *corev1.PodList, options *client.ListOptions) error {
	err := c.live.List(ctx, list, options)
	if apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
		options.Raw = nil
		return c.live.List(ctx, list, options)
	}
	return err
}

// notOlderThan asks for a revision. Without one the API server answers with what is committed.
func notOlderThan(atLeast, namespace string) *client.ListOptions {
	options := &client.ListOptions{Namespace: namespace}
	if atLeast != "" {
		options.Raw = &metav1.ListOptions{ResourceVersion: atLeast, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan}
	}
	return options
}

func (c *Census) observe(ctx context.Context, count *Count, pods []*corev1.Pod, unmanaged func(int) bool) error {
	gone := map[string]bool{}
	count.Pods = pods
	count.Facts.Pods = make([]budget.Pod, len(pods))
	for i, pod := range pods {
		node := pod.Spec.NodeName
		if _, known := gone[node]; !known && node != "" {
			missing, err := c.nodeMissing(ctx, node)
			if err != nil {
				return err
			}
			gone[node] = missing
		}
		count.Facts.Pods[i] = budget.Observe(pod, gone[node])
		if count.Facts.Pods[i].State == budget.Available && count.LeavesUnasked(pod) {
			count.Facts.Pods[i].State = budget.Doubtful
		}
		count.Facts.Pods[i].Unmanaged = unmanaged != nil && unmanaged(i)
	}
	return nil
}

// nodeMissing asks the API server before it says so: a cache may not know a new node yet, and a pod on a missing node is given away.
func (c *Census) nodeMissing(ctx context.Context, name string) (bool, error) {
	node := NewNode()
	for _, reader := range []client.Reader{c.nodes, c.live} {
		err := reader.Get(ctx, types.NamespacedName{Name: name}, node, client.UnsafeDisableDeepCopy)
		if err == nil {
			return false, nil
		}
		if !apierrors.IsNotFound(err) {
			return false, fmt.Errorf("reading node %s: %w", name, err)
		}
	}
	return true, nil
}

// NewNode is an empty node to read the metadata of one into.
func NewNode() *metav1.PartialObjectMetadata {
	node := &metav1.PartialObjectMetadata{}
	node.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	return node
}

// owner is an object above pods.
type owner struct {
	// reference is how what is below names it.
	reference metav1.OwnerReference
	kind      schema.GroupKind
	name      string
	uid       types.UID
	replicas  int32
	selector  labels.Selector
	// watched: Berth's controllers watch the kind.
	watched bool
	// gone: it does not exist, or is being deleted together with its pods.
	gone bool
	// deleting: it is being deleted, with or without its pods.
	deleting bool
	// unread: its kind does not tell replicas.
	unread bool
	parent *metav1.OwnerReference
}

// owners are read once for each census.
type owners struct {
	census    *Census
	namespace string
	// existence: it matters whether they are gone, and not how many pods they ask for. One that cannot be read counts as unread, whatever the error:
	// whoever says how many pods there are to be does so because nobody else can.
	existence bool
	found     map[types.UID]*owner
}

// load reads everything above the pods, one level after the other.
func (o *owners) load(ctx context.Context, pods []*corev1.Pod) error {
	next := map[types.UID]metav1.OwnerReference{}
	want := func(ref *metav1.OwnerReference) {
		if ref != nil && o.found[ref.UID] == nil {
			next[ref.UID] = *ref
		}
	}
	for _, pod := range pods {
		want(metav1.GetControllerOfNoCopy(pod))
	}
	for _, owner := range o.found { // hints end where the owners ended then
		want(owner.parent)
	}
	for level := 0; len(next) > 0 && level < workload.LongestOwnerChain; level++ {
		read, err := o.readAll(ctx, slices.Collect(maps.Values(next)))
		if err != nil {
			return err
		}
		clear(next)
		for _, owner := range read {
			want(owner.parent)
		}
	}
	return nil
}

// concurrentReads is how many owners are read at a time for one budget. Pods can name as many as there are pods.
const concurrentReads = 16

// readAll reads owners, some of them at the same time.
func (o *owners) readAll(ctx context.Context, refs []metav1.OwnerReference) ([]*owner, error) {
	reading, readCtx := errgroup.WithContext(ctx)
	reading.SetLimit(concurrentReads)
	read := make([]*owner, len(refs))
	for i, ref := range refs {
		panics.Go(ctx, reading, func() (err error) {
			read[i], err = o.read(readCtx, schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind), ref.Name, ref.UID)
			return err
		})
	}
	if err := reading.Wait(); err != nil {
		return nil, err
	}
	for _, owner := range read {
		o.found[owner.uid] = owner
	}
	return read, nil
}

// maxHints bounds what is read for nothing when the owners have changed.
const maxHints = 8

func (o *owners) loadHints(ctx context.Context, name types.NamespacedName) error {
	hints, found := o.census.hints.Get(name)
	if !found {
		return nil
	}
	_, err := o.readAll(ctx, hints.([]metav1.OwnerReference))
	return err
}

// leaveHints remembers the owners of pods that there are, and what is above them up to the target, which is read anyway. It is empty if there is none.
func (o *owners) leaveHints(name types.NamespacedName, pods []*corev1.Pod, target types.UID) {
	var hints []metav1.OwnerReference
	seen := map[types.UID]bool{target: true}
	for _, pod := range pods {
		for owner := range o.above(pod) {
			if seen[owner.uid] || len(hints) == maxHints {
				break
			}
			seen[owner.uid] = true
			hints = append(hints, owner.reference)
		}
	}
	if len(hints) == 0 {
		o.census.hints.Remove(name)
		return
	}
	o.census.hints.Add(name, hints)
}

// above are the owners of a pod as far as they were read, the nearest first.
func (o *owners) above(pod *corev1.Pod) iter.Seq[*owner] {
	return func(yield func(*owner) bool) {
		ref := metav1.GetControllerOfNoCopy(pod)
		for level := 0; ref != nil && level < workload.LongestOwnerChain; level++ {
			next := o.found[ref.UID]
			if next == nil || !yield(next) {
				return
			}
			ref = next.parent
		}
	}
}

// top is the owner that says how many pods there should be, or nil for a pod without one. Something that is gone takes all below it along.
func (o *owners) top(pod *corev1.Pod) *owner {
	var top *owner
	for next := range o.above(pod) {
		if top != nil && next.unread {
			break // what is above does not tell, and what is below does
		}
		if top = next; top.gone {
			break
		}
	}
	return top
}

func (o *owners) isUnder(pod *corev1.Pod, uid types.UID) bool {
	for next := range o.above(pod) {
		if next.uid == uid {
			return true
		}
	}
	return false
}

// read reads an object. One whose UID is not the given one is gone; an empty UID takes any.
func (o *owners) read(ctx context.Context, kind schema.GroupVersionKind, name string, uid types.UID) (*owner, error) {
	apiVersion, kindName := kind.ToAPIVersionAndKind()
	result := &owner{
		reference: metav1.OwnerReference{APIVersion: apiVersion, Kind: kindName, Name: name, UID: uid},
		kind:      kind.GroupKind(), name: name, uid: uid, selector: labels.Everything(), watched: true,
	}
	partial := &metav1.PartialObjectMetadata{}
	partial.SetGroupVersionKind(kind)
	var object client.Object = partial
	builtIn, is := workload.BuiltIn(kind.GroupKind())
	result.watched = builtIn.Watched
	if is && !o.existence {
		object = builtIn.NewObject()
	}
	err := o.census.live.Get(ctx, types.NamespacedName{Namespace: o.namespace, Name: name}, object)
	switch {
	case apierrors.IsNotFound(err):
		result.gone = true
		return result, nil
	case meta.IsNoMatchError(err), uid != "" && apierrors.IsForbidden(err), err != nil && o.existence && ctx.Err() == nil:
		// What is below it tells. Only who names it as the target must be told that Berth may not read it.
		result.unread = true
		return result, nil
	case err != nil:
		return nil, fmt.Errorf("reading %s %s/%s: %w", kind.Kind, o.namespace, name, err)
	}
	if uid != "" && object.GetUID() != uid {
		result.gone = true
		return result, nil
	}
	result.uid = object.GetUID()
	result.deleting = object.GetDeletionTimestamp() != nil
	if isGoing(object) {
		result.gone = true
	}
	result.parent = metav1.GetControllerOf(object)
	if o.existence {
		return result, nil
	}
	if err := o.readReplicas(ctx, result, object); err != nil {
		return nil, err
	}
	if result.gone {
		result.replicas = 0
	}
	return result, nil
}

// isGoing is true for an object that is being deleted with what it owns. Pods that are to be left behind stay protected.
func isGoing(object client.Object) bool {
	return object.GetDeletionTimestamp() != nil && !slices.Contains(object.GetFinalizers(), metav1.FinalizerOrphanDependents)
}

func (o *owners) readReplicas(ctx context.Context, result *owner, object client.Object) error {
	replicas, told := workload.ReplicasNow(object)
	if !told {
		return o.readScale(ctx, result, object)
	}
	result.replicas = replicas
	if selector := workload.Selector(object); selector != nil {
		result.selector = selector
	}
	return nil
}

func (o *owners) readScale(ctx context.Context, result *owner, object client.Object) error {
	named := &unstructured.Unstructured{}
	named.SetGroupVersionKind(object.GetObjectKind().GroupVersionKind())
	named.SetNamespace(o.namespace)
	named.SetName(result.name)
	scale := &unstructured.Unstructured{}
	scale.SetGroupVersionKind(autoscalingv1.SchemeGroupVersion.WithKind("Scale"))
	err := o.census.scales.Get(ctx, named, scale)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsMethodNotSupported(err), apierrors.IsForbidden(err):
		result.unread = true
		return nil
	case err != nil:
		return fmt.Errorf("reading the scale of %s %s/%s: %w", result.kind, o.namespace, result.name, err)
	}
	// A scale leaves 0 out. What is no number of pods tells nothing: the API server cuts the replicas of custom resources to 32 bits.
	if _, told, _ := unstructured.NestedFieldNoCopy(scale.Object, "spec", "replicas"); told {
		if result.replicas, err = workload.AtPaths(scale.Object, []string{"spec.replicas"}); err != nil {
			result.unread = true
		}
	}
	text, _, err := unstructured.NestedString(scale.Object, "status", "selector")
	if err != nil || text == "" {
		return err
	}
	if result.selector, err = labels.Parse(text); err != nil {
		return fmt.Errorf("the scale of %s %s/%s has the selector %q: %w", result.kind, o.namespace, result.name, text, err)
	}
	return nil
}
