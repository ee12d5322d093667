package sidecar

import (
	"context"
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
	"github.com/berth-project/berth/pkg/endpoint"
	model "github.com/berth-project/berth/pkg/sidecar"
)

// update gives a pod the latest version, in place. It returns the pod as it is then. If it has resized the pod, it returns the pod with an error as well.
func (r *reconciler) update(ctx context.Context, policy *model.Policy, pod *model.Pod, revision string) (*corev1.Pod, error) {
	after, restarts := policy.Update(pod.Pod, revision, r.clock.Now())
	resized := policy.Resized(pod.Pod)
	if resized == nil {
		return r.patch(ctx, pod.Pod, after, "")
	}
	if restarts { // nobody could tell later that a pod was resized whose update is refused, so it is tried before
		if _, err := r.patch(ctx, pod.Pod, after, "", client.DryRunAll); err != nil {
			return nil, err
		}
	}
	current, err := r.patch(ctx, pod.Pod, resized, "resize")
	if err != nil {
		return nil, err
	}
	var written *corev1.Pod
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error { // the kubelet reports a resize at once, so the pod often changes between the two writes
		after, _ := policy.Update(current, revision, r.clock.Now())
		written, err = r.patch(ctx, current, after, "")
		if latest := (&corev1.Pod{}); apierrors.IsConflict(err) && r.live.Get(ctx, client.ObjectKeyFromObject(current), latest) == nil && latest.UID == current.UID {
			// A pod that was ready counts as unavailable already. One that was not, and is now, must not be updated in addition.
			if is, has := policy.Observe(latest, r.clock.Now()); has && is.Why == "" && (pod.Ready || !is.Ready) {
				current = latest
			}
		}
		return err
	})
	if err != nil {
		return current, err
	}
	return written, nil
}

// patch writes what differs between two states of a pod, if the pod is still in the first one. It returns the pod as it is then.
func (r *reconciler) patch(ctx context.Context, before, after *corev1.Pod, subresource string, options ...client.PatchOption) (*corev1.Pod, error) {
	written, patch, owner := after.DeepCopy(), client.StrategicMergeFrom(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(v1beta1.FieldManager)
	var err error
	if subresource != "" {
		err = r.client.SubResource(subresource).Patch(ctx, written, patch, owner)
	} else {
		err = r.client.Patch(ctx, written, patch, append(options, owner)...)
	}
	if err != nil {
		return nil, err
	}
	return written, nil
}

// servedNamespaces are those for whose new pods the API server calls the webhook.
func (r *reconciler) servedNamespaces() labels.Selector {
	r.asking.Lock()
	defer r.asking.Unlock()
	if r.served == nil {
		return labels.Everything()
	}
	return r.served
}

// askFor makes the API server call the webhook for the pods that a set may pick, and for no others.
//
// One worker at a time does so: another one, which knows fewer sets, must not write after it.
func (r *reconciler) askFor(ctx context.Context) error {
	r.asking.Lock()
	defer r.asking.Unlock()
	var sets client.Reader = r.client
	if r.watched.Interrupted() {
		sets = r.live // the cache may lack a new set
	}
	var list v1beta1.SidecarSetList
	if err := sets.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing SidecarSets: %w", err)
	}
	var policies []*model.Policy
	for i := range list.Items {
		if policy, errs := model.Compile(&list.Items[i]); len(errs) == 0 && list.Items[i].DeletionTimestamp.IsZero() {
			policies = append(policies, policy)
		}
	}
	expression := model.Expression(policies)
	if r.asked == expression && r.clock.Since(r.askedAt) < lookInterval {
		return nil
	}
	configuration := &admissionregistrationv1.MutatingWebhookConfiguration{}
	err := r.live.Get(ctx, types.NamespacedName{Name: endpoint.SidecarConfiguration}, configuration)
	if apierrors.IsNotFound(err) {
		return nil // sidecars are updated, and not injected
	}
	if err != nil {
		return fmt.Errorf("reading the webhook configuration: %w", err)
	}
	served := &metav1.LabelSelector{}
	if len(configuration.Webhooks) > 0 && configuration.Webhooks[0].NamespaceSelector != nil {
		served = configuration.Webhooks[0].NamespaceSelector
	}
	selector, err := metav1.LabelSelectorAsSelector(served)
	if err != nil {
		return fmt.Errorf("reading the namespaces of the webhook: %w", err)
	}
	before := configuration.DeepCopy()
	if endpoint.Narrow(configuration, endpoint.SidecarWebhook, endpoint.PickCondition, expression) {
		patch := client.StrategicMergeFrom(before, client.MergeFromWithOptimisticLock{})
		if err := r.client.Patch(ctx, configuration, patch, client.FieldOwner(v1beta1.FieldManager)); err != nil {
			return fmt.Errorf("writing which pods the webhook is called for: %w", err)
		}
	}
	r.asked, r.askedAt, r.served = expression, r.clock.Now(), selector
	return nil
}
