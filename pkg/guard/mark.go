package guard

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// evictionMarker labels evictions of protected pods, and those in namespaces with a budget. It gives them the protection label of the pods, the mark. It
// also ties each eviction to its pod by the UID.
//
// An Eviction says nothing of its pod but the name. So the API server cannot tell from it whether to call podHandler. It must not call podHandler about
// every eviction: while no webhook replica answers, nobody could evict any pod of the cluster. So it calls podHandler only about evictions that carry
// the mark. While nobody marks evictions, the policy berth-eviction, which the API server evaluates by itself, refuses evictions of protected pods
// without a mark. A client that marks its own Eviction gains nothing: the API server calls podHandler about it.
//
// The UID is for an eviction that the webhook allows and that happens late. By then a StatefulSet may have another pod of the same name, which is in no
// ledger.
type evictionMarker struct {
	guard *Guard
}

var _ admission.Handler = &evictionMarker{}

// markTimeout is how long an eviction waits for its mark. It is below the webhook's timeout of 5 seconds. If it runs out, the marker marks the eviction without
// knowing more. If podHandler refuses such an eviction, it does so with a code on which drains try again. The refusal of an eviction without a mark has
// a code on which they give up.
const markTimeout = 4 * time.Second

// Handle refuses no eviction that it can decode. It marks an eviction if it cannot tell whether a budget covers the pod.
func (m *evictionMarker) Handle(ctx context.Context, review admission.Request) admission.Response {
	if isExemptUser(review.UserInfo.Username, review.UserInfo.Groups) {
		return admission.Allowed("")
	}
	eviction := &unstructured.Unstructured{}
	if err := json.Unmarshal(review.Object.Raw, eviction); err != nil {
		return admission.Errored(http.StatusBadRequest, fmt.Errorf("decoding the eviction: %w", err))
	}
	reading, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	pod, err := m.concerned(reading, types.NamespacedName{Namespace: review.Namespace, Name: review.Name})
	if err == nil && pod == nil {
		return admission.Allowed("")
	}
	if err != nil && !apierrors.IsNotFound(err) { // marked too, because the policy may still see a pod that is gone
		klog.FromContext(ctx).Error(err, "Marking an eviction whose pod could not be checked", "pod", klog.KRef(review.Namespace, review.Name))
	}
	if pod != nil {
		if err := tie(eviction, pod.UID); err != nil {
			return admission.Errored(http.StatusBadRequest, fmt.Errorf("the eviction's deleteOptions: %w", err))
		}
	}
	marks := eviction.GetLabels()
	if marks == nil {
		marks = map[string]string{}
	}
	marks[v1beta1.ProtectedLabel] = v1beta1.ProtectedValue
	eviction.SetLabels(marks)
	marked, err := json.Marshal(eviction)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	return admission.PatchResponseFromRaw(review.Object.Raw, marked)
}

// tie makes the API server evict the pod with the UID and no other. A UID that the client gave stays. The API server sends no field that is null.
func tie(eviction *unstructured.Unstructured, uid types.UID) error {
	path := []string{"deleteOptions", "preconditions", "uid"}
	if _, given, err := unstructured.NestedString(eviction.Object, path...); given || err != nil {
		return err
	}
	return unstructured.SetNestedField(eviction.Object, string(uid), path...)
}

// concerned returns the pod if it is protected, or if its namespace has a budget; nil if neither. It also returns a pod that terminates, because the policy
// may still see the pod as it was. podHandler allows such an eviction, and that of a pod that no budget covers. For an eviction without a mark the API server
// would have to look at all protected pods of the namespace. If the budgets cannot be listed, concerned returns both the pod and the error.
func (m *evictionMarker) concerned(ctx context.Context, name types.NamespacedName) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	if err := m.guard.live.Get(ctx, name, pod); err != nil {
		return nil, fmt.Errorf("reading pod %s: %w", name, err)
	}
	if budget.IsProtected(pod) {
		return pod, nil
	}
	var pubs v1beta1.PodUnavailableBudgetList
	if err := m.guard.cached.List(ctx, &pubs, client.InNamespace(name.Namespace), client.Limit(1), client.UnsafeDisableDeepCopy); err != nil || len(pubs.Items) > 0 {
		return pod, err
	}
	return nil, nil
}
