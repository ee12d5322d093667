package budget

import (
	"context"
	"fmt"
	"slices"
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
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// concurrentPatches is how many pods the controller patches at a time, for one budget or namespace.
const concurrentPatches = 8

// protect adds ProtectedLabel and SelectorKeysAnnotation to the budget's pods where they are missing or incomplete. If the API server refuses to patch one
// pod, protect still patches the others.
func (r *reconciler) protect(ctx context.Context, count *census.Count) error {
	var patching errgroup.Group
	patching.SetLimit(concurrentPatches)
	for _, pod := range count.Pods {
		_, annotated := pod.Annotations[v1beta1.SelectorKeysAnnotation]
		if !mayBeProtected(pod, count.Ignored) || model.IsProtected(pod) && annotated && !count.LeavesUnasked(pod) {
			continue
		}
		patching.Go(func() error {
			patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q},"annotations":{%q:%q}}}`,
				v1beta1.ProtectedLabel, v1beta1.ProtectedValue, v1beta1.SelectorKeysAnnotation, selectorKeys(count, pod))
			return r.patch(ctx, pod, patch)
		})
	}
	return patching.Wait()
}

// mayBeProtected is false for a pod that the budget does not protect. ignored selects the pods that the budget ignores.
func mayBeProtected(pod *corev1.Pod, ignored labels.Selector) bool {
	return pod.DeletionTimestamp == nil && !model.IsExempt(pod, ignored)
}

// selectorKeys is the value of SelectorKeysAnnotation for a pod of the budget. It keeps existing keys, because another budget of the pod may need them. A
// needless key only costs calls to the webhook.
func selectorKeys(count *census.Count, pod *corev1.Pod) string {
	all := sets.New(strings.Split(pod.Annotations[v1beta1.SelectorKeysAnnotation], ",")...).Delete("")
	return strings.Join(sets.List(all.Insert(count.KeysOf(pod)...)), ",")
}

// unprotect removes the label from the pods of a namespace that no budget covers any more. It does so only if it knows for every existing budget which
// pods that may cover: a needless label only costs calls to the webhook, but a missing one leaves a pod unprotected. It also takes back pods that a budget has
// handed over which is gone or does not cover them any more.
func (r *reconciler) unprotect(ctx context.Context, namespace string) error {
	var pods corev1.PodList
	if err := r.cached.List(ctx, &pods, client.InNamespace(namespace), client.HasLabels{v1beta1.ProtectedLabel}, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing the protected pods of namespace %s: %w", namespace, err)
	}
	if len(pods.Items) == 0 {
		return nil
	}
	// The cache may lack a budget, so only the API server can say that a pod has none. But most of the time, the cache says that all pods have one.
	for _, budgets := range []client.Reader{r.cached, r.live} {
		var pubs v1beta1.PodUnavailableBudgetList
		if err := budgets.List(ctx, &pubs, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
			return fmt.Errorf("listing the budgets of namespace %s: %w", namespace, err)
		}
		if pods.Items = r.uncovered(pods.Items, pubs.Items); len(pods.Items) == 0 {
			return nil
		}
	}
	var patching errgroup.Group
	patching.SetLimit(concurrentPatches)
	for i := range pods.Items {
		pod := &pods.Items[i]
		patching.Go(func() error {
			if model.HandoverOf(pod) != nil {
				return r.takeBack(ctx, pod) // an event follows, and the label goes
			}
			// The resourceVersion makes the patch fail if the pod has changed, because a budget may cover it now.
			patch := fmt.Appendf(nil, `{"metadata":{"resourceVersion":%q,"labels":{%q:null},"annotations":{%q:null}}}`,
				pod.ResourceVersion, v1beta1.ProtectedLabel, v1beta1.SelectorKeysAnnotation)
			return r.patch(ctx, pod, patch)
		})
	}
	return patching.Wait()
}

// uncovered returns the pods that none of the budgets covers, and those that one has handed over which is not among them. It returns none if it does not know
// which pods a budget covers: the reconciliation of that budget calls unprotect again.
func (r *reconciler) uncovered(pods []corev1.Pod, pubs []v1beta1.PodUnavailableBudget) []corev1.Pod {
	var known []extent
	names := sets.New[string]()
	for i := range pubs {
		pub := &pubs[i]
		names.Insert(pub.Name)
		covered, found := r.extent.of(client.ObjectKeyFromObject(pub))
		source := model.SourceOf(pub)
		if !found || covered.uid != pub.UID || covered.generation <= pub.Generation && !covered.source.Equal(&source) { // the cache may still have an earlier one
			policy, errs := model.Compile(pub)
			if len(errs) > 0 {
				continue // it protects nothing until its spec is corrected
			}
			if policy.Target != nil {
				return nil
			}
			covered = extent{selector: policy.Selector}
		}
		known = append(known, covered)
	}
	return slices.DeleteFunc(pods, func(pod corev1.Pod) bool {
		covers := func(e extent) bool { return e.pods.Has(pod.UID) || e.selector.Matches(labels.Set(pod.Labels)) }
		handover := model.HandoverOf(&pod)
		return pod.DeletionTimestamp != nil || slices.ContainsFunc(known, covers) && (handover == nil || names.Has(handover.Budget))
	})
}

func (r *reconciler) patch(ctx context.Context, pod *corev1.Pod, patch []byte) error {
	target := &corev1.Pod{}
	target.Namespace, target.Name = pod.Namespace, pod.Name
	err := r.writer.Patch(ctx, target, client.RawPatch(types.MergePatchType, patch))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // the pod is gone, or it has changed and an event follows
	}
	if err != nil {
		return fmt.Errorf("changing pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}
