package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	"github.com/berth-project/berth/pkg/lineage"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// readCosts are the controllers that look at the deletion cost of their pods when they scale down. For others it is not worth a write.
var readCosts = map[schema.GroupKind]bool{
	lineage.ReplicaSet: true,
	{Group: v1alpha1.GroupVersion.Group, Kind: "CloneSet"}: true,
}

// scalesByCost is true if the pod's controller reads its deletion cost.
func scalesByCost(pod *corev1.Pod) bool {
	owner := workload.ControllerOf(pod)
	return owner != nil && readCosts[owner.Kind]
}

// concurrentWrites is how many pods of one spread are written at a time.
const concurrentWrites = 8

// podChange is what a pod should carry and does not.
type podChange struct {
	pod *subset.Pod
	// cost is nil if the pod's is right.
	cost *int32
	// adoptedBy is the subset whose label, and the metadata, that the pod has not got. Nil if it is not to get any.
	adoptedBy *subset.Subset
	metadata  subset.Metadata
}

// podChanges asks the model what is wrong with the pods of a spread.
//
// A pod of whose Binding nothing is known, or of a subset that is gone, belongs to the first subset that has its node. It is given what it
// would have got with the Binding, once: its label says that it was. IgnoreExistingPodsAnnotation on the spread forbids that.
func podChanges(spread *v1alpha1.WorkloadSpread, f *facts) []podChange {
	if !f.knowsWhoIsKept() {
		return nil
	}
	byPod := map[types.UID]*podChange{}
	of := func(pod *subset.Pod) *podChange {
		if byPod[pod.UID] == nil {
			byPod[pod.UID] = &podChange{pod: pod}
		}
		return byPod[pod.UID]
	}
	for _, want := range f.roster.WrongCosts() {
		of(want.Pod).cost = ptr.To(want.Cost)
	}
	if spread.Annotations[v1alpha1.IgnoreExistingPodsAnnotation] != "true" {
		for _, e := range f.unlabelled {
			in, change := &f.policy.Subsets[e.Subset], of(&e.Pod)
			change.adoptedBy, change.metadata = in, in.MetadataFor(f.workload.selector)
		}
	}
	changes := make([]podChange, 0, len(byPod))
	for _, change := range byPod {
		changes = append(changes, *change)
	}
	return changes
}

// overbooked are the pending pods for whose subset, which they carry the patch of, others have taken the last slot meanwhile.
func overbooked(f *facts) []*subset.Pod {
	if !f.knowsWhoIsKept() {
		return nil
	}
	return f.roster.Overbooked()
}

// replacePods deletes pods that can never run where they were meant to, so that their workload makes others. Each is read again, and deleted only
// as it was read: a pod that has got its node meanwhile is left alone.
func (r *reconciler) replacePods(ctx context.Context, spread *v1alpha1.WorkloadSpread, pods []*subset.Pod) error {
	for _, pod := range pods {
		now := &corev1.Pod{}
		err := r.live.Get(ctx, types.NamespacedName{Namespace: spread.Namespace, Name: pod.Name}, now)
		if apierrors.IsNotFound(err) || err == nil && (now.UID != pod.UID || now.Spec.NodeName != "" || now.DeletionTimestamp != nil) {
			continue
		}
		if err != nil {
			return fmt.Errorf("reading pod %s to replace it: %w", pod.Name, err)
		}
		err = r.client.Delete(ctx, now, client.Preconditions{UID: &now.UID, ResourceVersion: &now.ResourceVersion})
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("replacing pod %s: %w", pod.Name, err)
		}
		why := admittedSubsetFull(now, pod.Admitted.Subset)
		why.send(r.events, spread, now)
		why.send(r.events, now, spread)
		klog.FromContext(ctx).V(2).Info("Replaced a pod that was pending for a full subset", "pod", klog.KObj(now), "subset", pod.Admitted.Subset)
	}
	return nil
}

// correctPods writes what is wrong. It goes by the cache, so that a pod may be written twice; that is the same write again.
func (r *reconciler) correctPods(ctx context.Context, spread *v1alpha1.WorkloadSpread, changes []podChange) error {
	if len(changes) == 0 {
		return nil
	}
	var writes errgroup.Group
	writes.SetLimit(concurrentWrites)
	for _, change := range changes {
		writes.Go(func() error { return r.correctPod(ctx, spread.Namespace, change) })
	}
	err := writes.Wait()
	klog.FromContext(ctx).V(2).Info("Wrote deletion costs and metadata of pods", "spread", klog.KObj(spread), "pods", len(changes), "err", err)
	return err
}

// correctPod relies on the UID in the patch, by which the API server refuses to write another pod of the same name.
func (r *reconciler) correctPod(ctx context.Context, namespace string, change podChange) error {
	want := metav1.ObjectMeta{UID: change.pod.UID, Labels: map[string]string{}, Annotations: map[string]string{}}
	if in := change.adoptedBy; in != nil {
		maps.Copy(want.Labels, change.metadata.Labels)
		maps.Copy(want.Annotations, change.metadata.Annotations)
		want.Labels[v1alpha1.SubsetLabel] = in.Name
	}
	if change.cost != nil {
		want.Annotations[v1alpha1.PodDeletionCostAnnotation] = strconv.Itoa(int(*change.cost))
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": want.UID, "labels": want.Labels, "annotations": want.Annotations}})
	if err != nil {
		return fmt.Errorf("encoding the patch of pod %s: %w", change.pod.Name, err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: change.pod.Name}}
	err = r.client.Patch(ctx, pod, client.RawPatch(types.MergePatchType, patch))
	if isOfAnotherPod(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("writing deletion cost and metadata of pod %s: %w", change.pod.Name, err)
	}
	return nil
}

// isOfAnotherPod is true for what the API server says of a patch for a pod that is gone, or has made room for another of its name: that one's UID cannot
// be changed.
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
