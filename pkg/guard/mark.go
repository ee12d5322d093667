package guard

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/crd/policy/v1alpha1"
)

// evictionMarker labels evictions of pods that a budget may cover with the protection label of the pods.
//
// An Eviction says nothing of its pod but the name, so the API server cannot tell by it whether to ask podHandler, and must not ask about all of
// them: while nobody answers, no pod of the cluster could be evicted. It asks about those that carry the mark. While nobody marks, the policy
// berth-eviction, which the API server judges by itself, refuses evictions of protected pods without one. Who puts the mark on an Eviction of his
// own is asked about, so that nothing is gained by it.
type evictionMarker struct {
	guard *Guard
	live  client.Reader
}

var _ admission.Handler = &evictionMarker{}

// Handle never refuses. What it cannot tell it marks.
func (m *evictionMarker) Handle(ctx context.Context, review admission.Request) admission.Response {
	if isExemptUser(review.UserInfo.Username, review.UserInfo.Groups) {
		return admission.Allowed("")
	}
	eviction := &unstructured.Unstructured{}
	if err := json.Unmarshal(review.Object.Raw, eviction); err != nil {
		return admission.Errored(http.StatusBadRequest, fmt.Errorf("decoding the eviction: %w", err))
	}
	covered, err := m.mayBeCovered(ctx, types.NamespacedName{Namespace: review.Namespace, Name: review.Name})
	if err != nil {
		klog.FromContext(ctx).Error(err, "Marking an eviction to be on the safe side", "pod", klog.KRef(review.Namespace, review.Name))
		covered = true
	}
	if !covered {
		return admission.Allowed("")
	}
	marks := eviction.GetLabels()
	if marks == nil {
		marks = map[string]string{}
	}
	marks[v1alpha1.ProtectedLabel] = v1alpha1.ProtectedValue
	eviction.SetLabels(marks)
	marked, err := json.Marshal(eviction)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	return admission.PatchResponseFromRaw(review.Object.Raw, marked)
}

// mayBeCovered is true for a protected pod, and for one that a budget covers and that is not protected yet. It is true as well for a pod that terminates
// or is gone, since the policy may still see it as it was; podHandler lets it pass.
func (m *evictionMarker) mayBeCovered(ctx context.Context, name types.NamespacedName) (bool, error) {
	pod := &corev1.Pod{}
	if err := m.live.Get(ctx, name, pod); err != nil {
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, fmt.Errorf("reading pod %s: %w", name, err)
	}
	if budget.IsProtected(pod) {
		return true, nil
	}
	names, err := m.guard.candidates(ctx, m.guard.cached, pod)
	return len(names) > 0, err
}
