// Package census reads the input of pkg/budget from the API server: the pods that a budget covers, and how many pods their workloads ask for. It
// decides nothing. Begin reading at Census.Take.
//
// It reads workloads live. It also reads pods live, unless the caller gives a revision that is recent enough. Only nodes may come from a cache, and
// Census asks the API server before it counts a node as missing.
package census

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
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
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	unitedv1beta1 "github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/panics"
	"github.com/berth-project/berth/pkg/podstate"
	"github.com/berth-project/berth/pkg/workload"
)

// Census reads for many budgets at the same time.
type Census struct {
	live   client.Reader
	scales client.SubResourceReader
	nodes  client.Reader
	doubts *budget.Doubts
	clock  clock.PassiveClock
}

// New returns a Census that reads pods and workloads by live, and the scale subresource of other kinds by scales. It reads the metadata of nodes by
// nodes, which may be a cache. By the clock, which must be monotonic, doubts about pods end.
func New(live client.Reader, scales client.SubResourceReader, nodes client.Reader, clock clock.PassiveClock) *Census {
	return &Census{live: live, scales: scales, nodes: nodes, doubts: budget.NewDoubts(), clock: clock}
}

// Count is the result of one count of a budget's pods.
type Count struct {
	// Facts have no ledger.
	budget.Facts
	// Pods of the budget as the API server has them, in the order of Facts.Pods.
	Pods []*corev1.Pod
	// Listed are all pods that Selector selects. For a budget with a target they include pods of other workloads.
	Listed []*corev1.Pod
	// Revision is the resourceVersion of the list of pods. It is set even if the list is empty.
	Revision string
	// Selector selects the pods that the budget may cover. For a budget with a target it is the selector of the workload.
	Selector labels.Selector
	// Ignored selects the pods that the budget ignores. Nil selects none.
	Ignored labels.Selector
	// Owners are the UIDs of the owners of the pods, directly or through others.
	Owners sets.Set[types.UID]
	// holders are the controllers of the budget's pods and those above them, with their selectors. Through them the replicas are known, and for a budget with
	// a target they connect the pods to the target. A pod may move from one to another, as a pod that is replaced first does. A controller that is being
	// deleted is not included: the garbage collector deletes its pods or orphans them.
	holders map[workload.Owner]labels.Selector
	// ofTarget is true if the budget has a target.
	ofTarget bool
	// TargetGone is true if the target does not exist or is being deleted.
	TargetGone bool
	// Unwatched is true if the replicas of a workload can change without an event that Berth watches.
	Unwatched bool
}

// Revisions are the resourceVersions of the listed pods. A later decision by these pods needs no newer list: one that is not older than any of them has
// the same pods, and maybe others that were gone by the time of this list.
func (c *Count) Revisions() []string {
	revisions := make([]string, len(c.Listed))
	for i, pod := range c.Listed {
		revisions[i] = pod.ResourceVersion
	}
	return revisions
}

// Covers is true if the budget covers the pod.
func (c *Count) Covers(uid types.UID) bool {
	return slices.ContainsFunc(c.Pods, func(pod *corev1.Pod) bool { return pod.UID == uid })
}

// Loses is true if an update takes a pod away from its workload, although the budget's selector still selects the pod. That is so if the pod gets no
// controller, or a controller without other pods of the budget: only workloads with pods of the budget count in its replicas.
//
// Loses is false if the labels before the update already do not match the controller's selector: that controller releases the pod anyway. If the labels
// after the update do not match, a budget with a target loses the pod, and a budget with a selector keeps it.
func (c *Count) Loses(before, after *corev1.Pod) bool {
	keeps, held := c.holders[controllerOf(before)]
	if !held || !keeps.Matches(labels.Set(before.Labels)) {
		return false
	}
	_, stays := c.holders[controllerOf(after)]
	return !stays || c.ofTarget && !keeps.Matches(labels.Set(after.Labels))
}

// KeysOf are the label keys in the selectors of the budget and of the pod's controller, and in that of the pods that the budget ignores. No change of another label can take the pod out of the budget.
// The keys have no order, and may repeat.
func (c *Count) KeysOf(pod *corev1.Pod) (keys []string) {
	selectors := []labels.Selector{c.Selector}
	if c.Ignored != nil {
		selectors = append(selectors, c.Ignored)
	}
	if keeps, held := c.holders[controllerOf(pod)]; held {
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

// LeavesUnasked is true if a label that KeysOf lists can change without a call to the webhook. The API server calls the webhook about the keys in the
// pod's SelectorKeysAnnotation, and about all keys if the pod has no such annotation or one that is too long.
func (c *Count) LeavesUnasked(pod *corev1.Pod) bool {
	written, annotated := pod.Annotations[v1beta1.SelectorKeysAnnotation]
	if !annotated || utf8.RuneCountInString(written) > v1beta1.MaxSelectorKeys { // as the webhook's match condition has it
		return false
	}
	asked := strings.Split(written, ",")
	return slices.ContainsFunc(c.KeysOf(pod), func(key string) bool { return !slices.Contains(asked, key) })
}

// Find returns the pod with this UID from Listed, whether the budget covers it already or may cover it later. It is nil if there is none. The caller must
// not change the pod.
func (c *Count) Find(uid types.UID) *corev1.Pod {
	for _, pod := range c.Listed {
		if pod.UID == uid {
			return pod
		}
	}
	return nil
}

// Take counts the pods of a budget, from which the policy was compiled. Everything that it reads is at least as new as the call, except pods: if atLeast is not empty, they
// are of any revision that is not older than atLeast. Then the API server answers from its watch cache, which mostly has the latest revision, and does
// not ask etcd for the latest one.
//
// If an owner is gone, the garbage collector deletes everything below it, unless the owner's deletion orphans its dependents. In that case the garbage
// collector first removes the owner reference, and then the owner. So an owner only counts as gone if the object that names it was read after the owner
// was. Otherwise Take reads everything again, with the latest committed pods.
func (c *Census) Take(ctx context.Context, pub *v1beta1.PodUnavailableBudget, policy *budget.Policy, atLeast string) (*Count, error) {
	before := sets.New[types.UID]()
	for {
		o := &owners{census: c, namespace: pub.Namespace, remembered: pub.Status.SubsetWorkloads, found: map[workload.Owner]*owner{}}
		count, gone, err := c.take(ctx, o, policy, atLeast)
		if err != nil {
			return nil, err
		}
		if before.HasAll(gone...) {
			count.Owners = sets.New[types.UID]()
			for _, owner := range o.found {
				count.Owners.Insert(owner.uid)
			}
			return count, nil
		}
		before.Insert(gone...)
		atLeast = ""
	}
}

// take reads everything once. gone are the missing owners of pods that the budget covers or may cover.
func (c *Census) take(ctx context.Context, o *owners, policy *budget.Policy, atLeast string) (count *Count, gone []types.UID, err error) {
	count = &Count{Selector: policy.Selector, Ignored: policy.Ignored, ofTarget: policy.Target != nil, holders: map[workload.Owner]labels.Selector{}}
	var target *owner
	if count.ofTarget {
		if target, err = o.readTarget(ctx, policy.Target); err != nil {
			return nil, nil, err
		}
		count.Selector, count.TargetGone = target.selector, target.gone
		count.add(target)
		count.miss(target)
	}
	o.existence = target == nil && policy.Replicas != nil
	all, err := c.list(ctx, count, o.namespace, atLeast)
	if err != nil {
		return nil, nil, err
	}
	if err := o.load(ctx, all); err != nil {
		return nil, nil, err
	}
	var tops []*owner // whose replicas count for the pods, nil for a pod that has none
	added := map[*owner]bool{nil: true, target: true}
	for _, pod := range all {
		top := o.top(pod)
		if target != nil && slices.Contains(slices.Collect(o.above(pod)), target) {
			top = target
		} else if top != nil && top.gone { // the target may have adopted a pod that this owner orphaned
			gone = append(gone, top.uid)
		}
		if target != nil && top != target {
			continue
		}
		if !added[top] {
			added[top] = true
			count.add(top)
		}
		count.Pods, tops = append(count.Pods, pod), append(tops, top)
		count.hold(o, pod)
	}
	if err := c.observe(ctx, count, tops); err != nil {
		return nil, nil, err
	}
	return count, gone, o.divide(ctx, count, policy, tops, target)
}

// readTarget reads the workload that a budget names. One that does not exist has no pods.
func (o *owners) readTarget(ctx context.Context, ref *v1beta1.TargetReference) (*owner, error) {
	target, err := o.read(ctx, schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind), ref.Name, "")
	if err != nil {
		return nil, err
	}
	target.parent = nil   // the owner of the target does not matter
	if target.uid == "" { // the object or its kind does not exist
		target.gone, target.unread, target.selector = true, false, unmatchable
		return target, nil
	}
	o.found[target.key()] = target
	return target, nil
}

func (c *Count) add(o *owner) {
	c.Unwatched = c.Unwatched || !o.watched
	if !o.hidesReplicas() {
		c.Workloads = append(c.Workloads, budget.Workload{Name: o.kind.Kind + " " + o.name, Replicas: o.replicas, Gone: o.gone})
	}
}

// miss notes the kind of an owner whose replicas cannot be read. o is nil if there is no owner.
func (c *Count) miss(o *owner) {
	if o == nil || !o.hidesReplicas() {
		return
	}
	kinds := &c.Unread
	if o.elsewhere {
		kinds = &c.Elsewhere
	}
	if !slices.Contains(*kinds, o.kind.String()) {
		*kinds = append(*kinds, o.kind.String())
	}
}

// hold adds the controllers of a pod to the holders: the nearest, and those above that tell their replicas. It also adds the ReplicaSet that has handed the
// pod to its Deployment, if it is still there and of that Deployment.
func (c *Count) hold(o *owners, pod *corev1.Pod) {
	nearest := controllerOf(pod)
	add := func(controller *owner) {
		if !controller.deleting && !controller.gone && (controller.key() == nearest || !controller.hidesReplicas()) {
			c.holders[controller.key()] = controller.selector
		}
	}
	if _, known := c.holders[nearest]; !known { // with a controller, those above it are known
		for controller := range o.above(pod) {
			add(controller)
		}
	}
	if ref := handedOverBy(pod); ref != nil {
		if set := o.found[workload.OwnerOf(ref)]; set != nil && workload.OwnerOf(set.parent) == nearest {
			add(set)
		}
	}
}

// handedOverBy refers to the ReplicaSet that takes the pod back if it is not replaced in time. Nil if there is none.
func handedOverBy(pod *corev1.Pod) *metav1.OwnerReference {
	handover := budget.HandoverOf(pod)
	if handover == nil {
		return nil
	}
	return &metav1.OwnerReference{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "ReplicaSet", Name: handover.ReplicaSet, UID: handover.UID}
}

// list reads the pods that the selector selects.
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

// unmatchable selects no pods of a budget whose workload does not exist. Their list tells at which revision the budget has none: removing entries from the ledger
// needs it, so that no older list of pods is counted once the budget has pods again. A limit would not do in place of a selector: an API server that answers
// from its memory may list all pods. labels.Nothing cannot be sent to the API server: as a query it is empty, and selects everything.
var unmatchable, _ = labels.Parse(v1beta1.ProtectedLabel + ",!" + v1beta1.ProtectedLabel) // it is valid

// patience is how long read waits for pods that are not older than a revision.
const patience = 2 * time.Second

// read lists pods. If the API server does not reach the requested revision in time, it lags behind another API server, or the revision does not exist.
// Then read asks for the latest committed pods, which are not older. The API server says after three seconds that it lags, and client-go then asks again
// ten times, which is longer than anybody waits for a verdict. So read is not that patient.
func (c *Census) read(ctx context.Context, list *corev1.PodList, options *client.ListOptions) error {
	if options.Raw == nil {
		return c.live.List(ctx, list, options)
	}
	soon, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := c.live.List(soon, list, options)
	var answer apierrors.APIStatus
	if isLate := err != nil && !errors.As(err, &answer) && ctx.Err() == nil; isLate || apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
		options.Raw = nil
		return c.live.List(ctx, list, options)
	}
	return err
}

// notOlderThan asks for pods that are not older than a revision. With an empty revision the API server returns the latest committed pods.
func notOlderThan(atLeast, namespace string) *client.ListOptions {
	options := &client.ListOptions{Namespace: namespace}
	if atLeast != "" {
		options.Raw = &metav1.ListOptions{ResourceVersion: atLeast, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan}
	}
	return options
}

// observe adds what is known of the pods to the count. The owner of a pod that terminates matters,
// because it may replace the pod. That of a pod that has ended does not: a chart may label its jobs like its servers.
func (c *Census) observe(ctx context.Context, count *Count, tops []*owner) error {
	gone := map[string]bool{}
	count.Facts.Pods = make([]budget.Pod, len(count.Pods))
	for i, pod := range count.Pods {
		node := pod.Spec.NodeName
		if _, known := gone[node]; !known && node != "" {
			missing, err := c.nodeMissing(ctx, node)
			if err != nil {
				return err
			}
			gone[node] = missing
		}
		count.Facts.Pods[i] = c.doubts.Observe(pod, count.Ignored, gone[node], c.clock.Now())
		if observed := &count.Facts.Pods[i]; observed.State == budget.Available && count.LeavesUnasked(pod) {
			observed.State, observed.Why = budget.Doubtful, "lacks keys of its selectors in annotation "+v1beta1.SelectorKeysAnnotation
		}
		count.Facts.Pods[i].Unmanaged = tops[i] == nil || tops[i].hidesReplicas()
		if !podstate.HasEnded(pod) && count.Facts.Pods[i].State != budget.Exempt {
			count.miss(tops[i])
		}
	}
	return nil
}

// nodeMissing asks the API server before it returns true. The cache may not have a new node yet, and operations on a pod of a missing node are always
// allowed.
func (c *Census) nodeMissing(ctx context.Context, name string) (bool, error) {
	node := &corev1.Node{}
	for _, reader := range []client.Reader{c.nodes, c.live} {
		err := reader.Get(ctx, types.NamespacedName{Name: name}, node, client.UnsafeDisableDeepCopy)
		if err == nil || apierrors.IsForbidden(err) { // somebody who may read pods and no nodes counts with a command
			return false, nil
		}
		if !apierrors.IsNotFound(err) {
			return false, fmt.Errorf("reading node %s: %w", name, err)
		}
	}
	return true, nil
}

// owner is an object that owns pods, directly or through others.
type owner struct {
	kind     schema.GroupKind
	version  string
	name     string
	uid      types.UID
	replicas int32
	selector labels.Selector
	// template are the labels of its pods, nil if they are not known.
	template labels.Set
	// watched: Berth's controllers watch the kind.
	watched bool
	// gone: the object does not exist, or is being deleted together with its pods.
	gone bool
	// deleting: the object is being deleted, with or without its pods.
	deleting bool
	// unread: its number of replicas cannot be read.
	unread bool
	// elsewhere: some of its pods are, or may be, in other clusters. It is unread then: nobody can tell how many there should be here.
	elsewhere bool
	parent    *metav1.OwnerReference
}

// hidesReplicas is true if nobody can tell how many pods the owner asks for. An owner that is gone asks for none.
func (o *owner) hidesReplicas() bool { return o.unread && !o.gone }

func (o *owner) key() workload.Owner { return workload.Owner{Kind: o.kind, Name: o.name, UID: o.uid} }

// controllerOf is empty for an object without a controller.
func controllerOf(object metav1.Object) workload.Owner {
	return workload.OwnerOf(metav1.GetControllerOfNoCopy(object))
}

// owners are the owners that one count has read. It reads each of them once.
type owners struct {
	census    *Census
	namespace string
	// remembered are the workloads of subsets that the status of the budget names: an earlier count has found them.
	remembered []v1beta1.SubsetWorkload
	// existence: only their existence matters, and not how many pods they ask for, because an annotation sets the replicas. An owner that cannot be read
	// counts as unread, whatever the error: the annotation is there for workloads that Berth cannot read.
	existence bool
	// found has more in its keys than UIDs: anybody who may create pods can create one whose reference has the UID of another pod's ReplicaSet and the name
	// of an object that does not exist. The garbage collector does not take these references for one owner either.
	found map[workload.Owner]*owner
}

// nodeKind is the kind that owns static pods. It asks for no pods, so these count like pods without a workload.
var nodeKind = corev1.SchemeGroupVersion.WithKind("Node").GroupKind()

// load reads all owners of the pods, one level after the other.
func (o *owners) load(ctx context.Context, pods []*corev1.Pod) error {
	next := map[workload.Owner]metav1.OwnerReference{}
	want := func(ref *metav1.OwnerReference) {
		if key := workload.OwnerOf(ref); ref != nil && key.Kind != nodeKind && o.found[key] == nil {
			next[key] = *ref
		}
	}
	for _, pod := range pods {
		want(metav1.GetControllerOfNoCopy(pod))
		want(handedOverBy(pod))
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

// concurrentReads is how many owners are read at a time for one budget. Each pod can name another owner.
const concurrentReads = 16

// readAll reads owners, at most concurrentReads at a time.
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
		o.found[owner.key()] = owner
	}
	return read, nil
}

// above are the owners of a pod that were read, nearest first.
func (o *owners) above(pod *corev1.Pod) iter.Seq[*owner] {
	return func(yield func(*owner) bool) {
		ref := metav1.GetControllerOfNoCopy(pod)
		for level := 0; ref != nil && level < workload.LongestOwnerChain; level++ {
			next := o.found[workload.OwnerOf(ref)]
			if next == nil || !yield(next) {
				return
			}
			ref = next.parent
		}
	}
}

// top is the owner whose replicas count for the pod, or nil if the pod has no owner. If an owner is gone, everything below it is deleted too, so that
// owner is the top.
func (o *owners) top(pod *corev1.Pod) *owner {
	var top *owner
	for next := range o.above(pod) {
		if top != nil && next.unread {
			break // the owner above has no readable replicas, and the one below has
		}
		if top = next; top.gone {
			break
		}
	}
	return top
}

// read reads an object. If the existing object has another UID than the given one, the owner is gone. An empty UID accepts any object.
func (o *owners) read(ctx context.Context, kind schema.GroupVersionKind, name string, uid types.UID) (*owner, error) {
	result := &owner{kind: kind.GroupKind(), version: kind.Version, name: name, uid: uid, selector: labels.Everything(), watched: true}
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
		// An owner below it may have the replicas. Only for a target the missing permission is an error that the user must see.
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
	result.gone = isGoing(object)
	result.parent = metav1.GetControllerOf(object)
	if o.existence {
		return result, nil
	}
	if replicas, told := workload.ReplicasNow(object); told {
		result.replicas, result.template = replicas, workload.TemplateLabels(object)
		if selector := workload.Selector(object); selector != nil {
			result.selector = selector
		}
	} else if err := o.readScale(ctx, result, object); err != nil {
		return nil, err
	}
	if result.gone {
		result.replicas = 0
	}
	if isElsewhere(result.kind, object) {
		result.unread, result.elsewhere = true, true
	}
	return result, nil
}

// isElsewhere is true for an object of a federation that has, or may have, pods in other clusters. The children of a UnitedDeployment in this cluster tell how many should be here.
func isElsewhere(kind schema.GroupKind, object client.Object) bool {
	return kind == v1alpha1.Kind.GroupKind() || kind == unitedv1beta1.Kind.GroupKind() && slices.Contains(object.GetFinalizers(), unitedv1beta1.MembersFinalizer)
}

// isGoing is true for an object that is being deleted together with its dependents. Pods that its deletion orphans stay protected.
func isGoing(object client.Object) bool {
	return object.GetDeletionTimestamp() != nil && !slices.Contains(object.GetFinalizers(), metav1.FinalizerOrphanDependents)
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
	// A scale omits replicas of 0. Anything but a number from 0 to the largest int32 counts as unreadable: the API server truncates the replicas of
	// custom resources to 32 bits.
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
