package spread

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/lineage"
	"github.com/berth-project/berth/pkg/panics"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// readCosts are the controllers that read deletion costs when they scale down. For others it is not worth a write.
var readCosts = map[schema.GroupKind]bool{
	lineage.ReplicaSet: true,
	{Group: v1beta1.GroupVersion.Group, Kind: "CloneSet"}: true,
}

// scalesByCost is true if the pod's controller reads its deletion cost.
func scalesByCost(pod *corev1.Pod) bool {
	owner := workload.ControllerOf(pod)
	return owner != nil && readCosts[owner.Kind]
}

// concurrentWrites is how many pods of one spread are written at the same time.
const concurrentWrites = 8

// podChange is what a pod lacks.
type podChange struct {
	pod *subset.Pod
	// cost is nil if the pod's cost is right.
	cost *subset.PodCost
	// record that the pod lacks. Nil if it has a valid one.
	record *v1beta1.MatchedSubset
	// adoptedBy is the subset whose label and metadata the pod lacks. Nil if it should not get any.
	adoptedBy *subset.Subset
	metadata  subset.Metadata
}

// podChanges asks the model what is wrong with the pods of a spread.
//
// A pod without a valid record belongs to a subset by its node. It gets, once, what its Binding would have set. The record says that the pod has got
// one, and the subset label that it has got the metadata. IgnoreExistingPodsAnnotation on the spread forbids the label and the metadata.
func podChanges(spread *v1beta1.WorkloadSpread, f *facts) []*podChange {
	byPod := map[types.UID]*podChange{}
	of := func(pod *subset.Pod) *podChange {
		if byPod[pod.UID] == nil {
			byPod[pod.UID] = &podChange{pod: pod}
		}
		return byPod[pod.UID]
	}
	for _, want := range f.roster.WrongCosts() {
		of(want.Pod).cost = &want
	}
	for _, e := range f.unwritten {
		in := &f.policy.Subsets[e.Subset]
		if e.Record == nil {
			of(&e.Pod).record = &v1beta1.MatchedSubset{Name: f.spread, Subset: in.Name, UID: string(e.UID), Adopted: true}
		}
		if e.label != in.Name && spread.Annotations[v1beta1.IgnoreExistingPodsAnnotation] != "true" {
			change := of(&e.Pod)
			change.adoptedBy, change.metadata = in, in.MetadataFor(f.workload.selector)
		}
	}
	return slices.Collect(maps.Values(byPod))
}

// refusals are the pods of an account that could not be written, for instance because a policy or another webhook refused. They do not stop other
// work. They are retried with a backoff, so that many of them do not keep a worker busy. The zero value has none.
type refusals struct {
	mu     sync.Mutex
	pods   sets.Set[types.UID]
	latest error
	// retry is when they are tried again. backoff is the wait before that.
	retry   time.Time
	backoff time.Duration
}

const (
	initialBackoff = 5 * time.Second
	maxBackoff     = time.Minute
)

// begin is called before pods are written. If a retry is due, all of them are retried.
func (f *refusals) begin(now time.Time) {
	if !now.Before(f.retry) {
		clear(f.pods)
	}
}

// has is true for a pod that must not be written now.
func (f *refusals) has(pod types.UID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.pods.Has(pod)
}

// add records the outcome of a write to a pod. Nil is ignored.
func (f *refusals) add(pod types.UID, err error) {
	if err == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pods == nil {
		f.pods = sets.New[types.UID]()
	}
	f.pods.Insert(pod)
	f.latest = err
}

// end is called after the writes, with the same time. It returns how long to wait for the next retry, 0 if none is needed.
func (f *refusals) end(now time.Time) time.Duration {
	if len(f.pods) == 0 {
		f.backoff, f.retry = 0, time.Time{}
		return 0
	}
	if !now.Before(f.retry) {
		f.backoff = min(max(2*f.backoff, initialBackoff), maxBackoff)
		f.retry = now.Add(f.backoff)
	}
	return f.retry.Sub(now)
}

// writePods corrects the pods of a spread, and replaces those that can never run. It returns when to retry failed writes, 0 if none failed.
func (r *reconciler) writePods(ctx context.Context, spread *v1beta1.WorkloadSpread, f *facts) time.Duration {
	if !f.knowsWhoIsKept() {
		return 0
	}
	refused := &f.refused
	refused.begin(f.now.Time)
	before := len(refused.pods)
	r.correctPods(ctx, spread, refused, podChanges(spread, f))
	for _, pod := range f.roster.Overbooked() {
		if !refused.has(pod.UID) {
			refused.add(pod.UID, r.replacePod(ctx, spread, pod))
		}
	}
	retry := refused.end(f.now.Time)
	if len(refused.pods) > before {
		klog.FromContext(ctx).Error(refused.latest, "Pods could not be written, this one among them", "spread", klog.KObj(spread), "pods", len(refused.pods), "retryAfter", retry)
		podsNotWritten(len(refused.pods), refused.latest).Send(r.events, spread, nil)
	}
	return retry
}

// replacePod deletes a pod that can never be bound in the subset that was picked for it, so that its workload creates another one. It reads the pod again
// and deletes it only in this version: a pod that has got a node meanwhile is left alone.
func (r *reconciler) replacePod(ctx context.Context, spread *v1beta1.WorkloadSpread, pod *subset.Pod) error {
	now := &corev1.Pod{}
	err := r.live.Get(ctx, types.NamespacedName{Namespace: spread.Namespace, Name: pod.Name}, now)
	if apierrors.IsNotFound(err) || err == nil && (now.UID != pod.UID || now.Spec.NodeName != "" || now.DeletionTimestamp != nil) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading pod %s to replace it: %w", pod.Name, err)
	}
	err = r.client.Delete(ctx, now, client.Preconditions{UID: &now.UID, ResourceVersion: &now.ResourceVersion})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("replacing pod %s: %w", pod.Name, err)
	}
	why := admittedSubsetFull(now, pod.Admitted.Subset)
	why.Send(r.events, spread, now)
	why.Send(r.events, now, spread)
	klog.FromContext(ctx).V(2).Info("Replaced a pod that was pending for a full subset", "pod", klog.KObj(now), "subset", pod.Admitted.Subset)
	return nil
}

// correctPods writes what the pods lack. It reads the cache, so a pod may be written twice. The second write changes nothing.
func (r *reconciler) correctPods(ctx context.Context, spread *v1beta1.WorkloadSpread, refused *refusals, changes []*podChange) {
	var writes errgroup.Group
	writes.SetLimit(concurrentWrites)
	written := 0
	for _, change := range changes {
		if refused.has(change.pod.UID) {
			continue
		}
		written++
		panics.Go(ctx, &writes, func() error {
			err := retry.RetryOnConflict(retry.DefaultBackoff, func() error { return r.correctPod(ctx, spread.Namespace, change) })
			refused.add(change.pod.UID, err)
			return err
		})
	}
	if err := writes.Wait(); written > 0 {
		klog.FromContext(ctx).V(2).Info("Wrote deletion costs and metadata of pods", "spread", klog.KObj(spread), "pods", written, "err", err)
	}
}

// correctPod sends the UID in the patch, so the API server refuses to write another pod of the same name. A record is written only to the version of
// the pod that was seen to have none. It returns a conflict if there is another version by now.
func (r *reconciler) correctPod(ctx context.Context, namespace string, change *podChange) error {
	labels, annotations := map[string]string{}, map[string]string{}
	metadata := map[string]any{"uid": change.pod.UID, "labels": labels, "annotations": annotations}
	if change.record != nil {
		now := &corev1.Pod{}
		err := r.live.Get(ctx, types.NamespacedName{Namespace: namespace, Name: change.pod.Name}, now)
		if apierrors.IsNotFound(err) || err == nil && (now.UID != change.pod.UID || subset.RecordOf(now) != nil) {
			return nil // the watch will tell
		}
		if err != nil {
			return fmt.Errorf("reading pod %s to record its subset: %w", change.pod.Name, err)
		}
		record, err := json.Marshal(change.record)
		if err != nil {
			return fmt.Errorf("encoding the record of pod %s: %w", change.pod.Name, err)
		}
		metadata["resourceVersion"], annotations[v1beta1.MatchedAnnotation] = now.ResourceVersion, string(record)
	}
	if in := change.adoptedBy; in != nil {
		maps.Copy(labels, change.metadata.Labels)
		maps.Copy(annotations, change.metadata.Annotations)
		labels[v1beta1.SubsetLabel] = in.Name
	}
	if change.cost != nil {
		annotations[v1beta1.PodDeletionCostAnnotation] = strconv.Itoa(int(change.cost.Cost))
		if change.cost.Asked != change.pod.AskedBefore {
			annotations[v1beta1.AskedCostAnnotation] = strconv.Itoa(int(change.cost.Asked))
		}
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return fmt.Errorf("encoding the patch of pod %s: %w", change.pod.Name, err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: change.pod.Name}}
	err = r.client.Patch(ctx, pod, client.RawPatch(types.MergePatchType, patch))
	if isOfAnotherPod(err) && (change.record == nil || !apierrors.IsConflict(err)) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("writing deletion cost and metadata of pod %s: %w", change.pod.Name, err)
	}
	return nil
}

// isOfAnotherPod is true for the API server's answers to a patch for a pod that is gone, or was replaced by another pod of its name: the UID of that
// one cannot be changed.
func isOfAnotherPod(err error) bool {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return true
	}
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" })
}
