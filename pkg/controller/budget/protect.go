package budget

import (
	"context"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	model "github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/budget/census"
	"github.com/berth-project/berth/pkg/crd/policy/v1alpha1"
)

// concurrentPatches is how many pods are labelled at a time.
const concurrentPatches = 8

// protect puts the protection label on pods that lack it, with the keys of the labels by which they are the budget's. One that refuses it does not keep
// the others from it.
func (r *reconciler) protect(ctx context.Context, count *census.Count) error {
	var patching errgroup.Group
	patching.SetLimit(concurrentPatches)
	for _, pod := range count.Pods {
		_, annotated := pod.Annotations[v1alpha1.SelectorKeysAnnotation]
		if !mayBeProtected(pod) || model.IsProtected(pod) && annotated && !count.LeavesUnasked(pod) {
			continue
		}
		patching.Go(func() error {
			patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q},"annotations":{%q:%q}}}`,
				v1alpha1.ProtectedLabel, v1alpha1.ProtectedValue, v1alpha1.SelectorKeysAnnotation, selectorKeys(count, pod))
			return r.patch(ctx, pod, patch)
		})
	}
	return patching.Wait()
}

// needsProtection is true for a pod that could be deleted unasked.
func needsProtection(pod *corev1.Pod) bool { return mayBeProtected(pod) && !model.IsProtected(pod) }

func mayBeProtected(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && !model.IsExempt(pod)
}

// selectorKeys is the value that SelectorKeysAnnotation is to have on a pod of the budget. Keys that it has already stay: another budget of the pod may
// need them, and one too many costs a question.
func selectorKeys(count *census.Count, pod *corev1.Pod) string {
	all := sets.New(strings.Split(pod.Annotations[v1alpha1.SelectorKeysAnnotation], ",")...).Delete("")
	return strings.Join(sets.List(all.Insert(count.KeysOf(pod)...)), ",")
}

// unprotect takes the label off the pods of a namespace that are in no budget any more. It does so only if it is known of every budget there is which
// pods it may cover: a pod that has the label for nothing costs a question, and one that lacks it is open.
func (r *reconciler) unprotect(ctx context.Context, namespace string) error {
	var pods corev1.PodList
	if err := r.cached.List(ctx, &pods, client.InNamespace(namespace), client.HasLabels{v1alpha1.ProtectedLabel}, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing the protected pods of namespace %s: %w", namespace, err)
	}
	if len(pods.Items) == 0 {
		return nil
	}
	var pubs v1alpha1.PodUnavailableBudgetList
	if err := r.live.List(ctx, &pubs, client.InNamespace(namespace)); err != nil {
		return fmt.Errorf("listing the budgets of namespace %s: %w", namespace, err)
	}
	var known []extent
	for i := range pubs.Items {
		pub := &pubs.Items[i]
		covered, found := r.extent.of(client.ObjectKeyFromObject(pub))
		if !found || covered.generation != pub.Generation {
			policy, errs := model.Compile(pub)
			if len(errs) > 0 {
				continue // it protects nothing until it is corrected
			}
			if policy.Target != nil {
				return nil // its own turn comes, and with it this one
			}
			covered = extent{selector: policy.Selector}
		}
		known = append(known, covered)
	}
	var patching errgroup.Group
	patching.SetLimit(concurrentPatches)
	for i := range pods.Items {
		pod := &pods.Items[i]
		if pod.DeletionTimestamp != nil || coveredBy(known, pod) {
			continue
		}
		patching.Go(func() error {
			// With the resourceVersion, for the pod may have changed into one that a budget covers.
			patch := fmt.Appendf(nil, `{"metadata":{"resourceVersion":%q,"labels":{%q:null},"annotations":{%q:null}}}`,
				pod.ResourceVersion, v1alpha1.ProtectedLabel, v1alpha1.SelectorKeysAnnotation)
			return r.patch(ctx, pod, patch)
		})
	}
	return patching.Wait()
}

func coveredBy(known []extent, pod *corev1.Pod) bool {
	for _, extent := range known {
		if extent.pods.Has(pod.UID) || extent.selector.Matches(labels.Set(pod.Labels)) {
			return true
		}
	}
	return false
}

func (r *reconciler) patch(ctx context.Context, pod *corev1.Pod, patch []byte) error {
	target := &corev1.Pod{}
	target.Namespace, target.Name = pod.Namespace, pod.Name
	err := r.writer.Patch(ctx, target, client.RawPatch(types.MergePatchType, patch))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // gone, or changed, which an event tells
	}
	if err != nil {
		return fmt.Errorf("labelling pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}
