package sidecar

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
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
	after, _ = policy.Update(current, revision, r.clock.Now())
	var written *corev1.Pod
	if pod.Ready {
		written, err = r.finish(ctx, current, after)
	} else {
		written, err = r.patch(ctx, current, after, "")
	}
	if err != nil {
		return current, err
	}
	return written, nil
}

// finish writes what is left of an update after a resize. The kubelet reports a resize at once, so the resourceVersion often changes between the two writes. This write therefore
// tests what the update was made from: the annotations that it replaces, and the images. That is enough for a pod that was ready when it was planned with: it counts as unavailable
// already. A pod that was not ready may be ready now, and must not be updated in addition then.
func (r *reconciler) finish(ctx context.Context, before, after *corev1.Pod) (*corev1.Pod, error) {
	var patch []map[string]any
	do := func(op, path string, value any) {
		patch = append(patch, map[string]any{"op": op, "path": path, "value": value})
	}
	do("test", "/metadata/uid", before.UID)
	for key, value := range after.Annotations {
		was, had := before.Annotations[key]
		if had && was == value {
			continue
		}
		path := "/metadata/annotations/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
		if had {
			do("test", path, was)
		}
		do("add", path, value)
	}
	for field, containers := range map[string][2][]corev1.Container{
		"containers": {before.Spec.Containers, after.Spec.Containers}, "initContainers": {before.Spec.InitContainers, after.Spec.InitContainers},
	} {
		for i := range containers[1] {
			was, is := &containers[0][i], &containers[1][i]
			if was.Image == is.Image {
				continue
			}
			path := fmt.Sprintf("/spec/%s/%d/", field, i)
			do("test", path+"name", is.Name)
			do("test", path+"image", was.Image)
			do("replace", path+"image", is.Image)
		}
	}
	content, err := json.Marshal(patch)
	if err != nil {
		return nil, err
	}
	written := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: before.Namespace, Name: before.Name}}
	err = r.client.Patch(ctx, written, client.RawPatch(types.JSONPatchType, content), client.FieldOwner(v1beta1.FieldManager))
	if apierrors.IsInvalid(err) { // a test failed, or the pod would be invalid; the next round writes with the resourceVersion and finds out
		err = apierrors.NewConflict(corev1.Resource("pods"), before.Name, err)
	}
	return written, err
}

// patch writes what differs between two states of a pod, if the pod is still in the first one. It returns the pod as it is then.
func (r *reconciler) patch(ctx context.Context, before, after *corev1.Pod, subresource string, options ...client.PatchOption) (*corev1.Pod, error) {
	metadata := map[string]any{"uid": before.UID, "resourceVersion": before.ResourceVersion}
	spec := map[string]any{}
	if subresource == "" {
		annotations := map[string]any{}
		for key, value := range after.Annotations {
			if was, had := before.Annotations[key]; !had || was != value {
				annotations[key] = value
			}
		}
		metadata["annotations"] = annotations
	}
	for field, containers := range map[string][2][]corev1.Container{
		"containers": {before.Spec.Containers, after.Spec.Containers}, "initContainers": {before.Spec.InitContainers, after.Spec.InitContainers},
	} {
		var changed []any
		for i := range containers[1] {
			was, is := &containers[0][i], &containers[1][i]
			content := map[string]any{"name": is.Name}
			if was.Image != is.Image {
				content["image"] = is.Image
			}
			if !equality.Semantic.DeepEqual(was.Resources, is.Resources) {
				content["resources"] = map[string]any{"$patch": "replace", "limits": is.Resources.Limits, "requests": is.Resources.Requests}
			}
			if len(content) > 1 {
				changed = append(changed, content)
			}
		}
		if len(changed) > 0 {
			spec[field] = changed
		}
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata, "spec": spec})
	if err != nil {
		return nil, err
	}
	written := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: before.Namespace, Name: before.Name}}
	raw := client.RawPatch(types.StrategicMergePatchType, patch)
	if subresource != "" {
		return written, r.client.SubResource(subresource).Patch(ctx, written, raw, &client.SubResourcePatchOptions{PatchOptions: client.PatchOptions{FieldManager: v1beta1.FieldManager}})
	}
	return written, r.client.Patch(ctx, written, raw, append(options, client.FieldOwner(v1beta1.FieldManager))...)
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
	var list v1beta1.SidecarSetList
	if err := r.client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
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
