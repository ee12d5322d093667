package guard

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/budget/census"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/podstate"
)

// podHandler answers for DELETE and UPDATE of pods, UPDATE of pods/resize and pods/status, and CREATE of pods/eviction. It also allows all operations
// that the match conditions of the webhook configuration exclude. So a configuration without conditions makes the webhook slower, but not stricter.
type podHandler struct {
	guard   *Guard
	decoder admission.Decoder
}

var _ admission.Handler = &podHandler{}

// Handle answers one review. It answers in time whatever the API server does. A review without an answer ends with a code on which drains give up.
func (h *podHandler) Handle(asked context.Context, review admission.Request) admission.Response {
	if isExemptUser(review.UserInfo.Username, review.UserInfo.Groups) || review.SubResource == "status" && reportsNodes(review.UserInfo.Username) {
		return admission.Allowed("")
	}
	ctx, cancel := context.WithTimeout(asked, h.guard.lines.timeout+time.Second)
	defer cancel()
	request, err := h.read(ctx, review)
	switch {
	case errors.Is(err, errUntied):
		return refused(budget.Verdict{Reason: v1beta1.ReasonPodUnknown, Message: "pod " + review.Name + " " + err.Error()})
	case apierrors.IsNotFound(err):
		// The answer of the API server for a pod that does not exist.
		return respond(&apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound, Message: err.Error()}})
	case err != nil:
		return failed(asked, review, err)
	case request == nil || isExemptPod(request.Pod):
		return admission.Allowed("")
	}
	start := h.guard.clock.Now()
	verdict, err := h.guard.Decide(ctx, *request)
	if apierrors.HasStatusCause(err, census.TooMuch) { // the tenant's doing, and no fault of the API server
		verdict, err = budget.Verdict{Reason: v1beta1.ReasonContended, Message: "the budgets of pod " + request.Pod.Name + " could not be checked: " + err.Error()}, nil
	}
	decisionSeconds.Observe(h.guard.clock.Since(start).Seconds())
	if err != nil {
		return failed(asked, review, err)
	}
	decision, response := decisionRefused, refused(verdict)
	if verdict.Allowed {
		decision, response = "allowed", admission.Allowed(string(verdict.Reason))
	}
	decisions.WithLabelValues(string(request.Operation), decision, string(verdict.Reason)).Inc()
	klog.FromContext(ctx).V(2).Info("Decided", "decision", decision, "operation", request.Operation, "pod", klog.KObj(request.Pod), "reason", verdict.Reason, "dryRun", request.DryRun)
	return response
}

// failed is the response if there is no verdict. The API server then refuses the operation. If the error is transient, the code is one on which patient
// clients try again. If the error needs a person, the code is one on which they give up. A review for which nobody waits any more is not counted.
func failed(asked context.Context, review admission.Request, err error) admission.Response {
	operation := operationOf(review)
	after, passing := passes(err)
	if asked.Err() == nil {
		decision, reason := decisionFailed, v1beta1.Reason("")
		if passing {
			decision, reason = decisionRefused, v1beta1.ReasonServerUnavailable
		}
		decisions.WithLabelValues(string(operation), decision, string(reason)).Inc()
		klog.FromContext(asked).Error(err, "Could not decide on an operation", "operation", operation, "pod", klog.KRef(review.Namespace, review.Name), "transient", passing)
	}
	if !passing {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	return respond(apierrors.NewTooManyRequests(string(v1beta1.ReasonServerUnavailable)+": the budgets of the pod could not be checked, because the API server did not answer the webhook; try again: "+
		err.Error(), int(after/time.Second)))
}

// respond refuses the operation with the status of an error.
func respond(err *apierrors.StatusError) admission.Response {
	return admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{Result: &err.ErrStatus}}
}

func operationOf(review admission.Request) v1beta1.Operation {
	switch {
	case review.SubResource == "eviction":
		return v1beta1.OperationEvict
	case review.SubResource == "resize":
		return v1beta1.OperationResize
	case review.SubResource == "status":
		return v1beta1.OperationUnready
	case review.Operation == admissionv1.Delete:
		return v1beta1.OperationDelete
	default:
		return v1beta1.OperationUpdate
	}
}

// read turns a review into a request. It returns nil if no budget has a say in the operation, and a NotFound error if the pod to evict does not exist.
func (h *podHandler) read(ctx context.Context, review admission.Request) (*Request, error) {
	dryRun := review.DryRun != nil && *review.DryRun
	switch {
	case review.Resource.Resource == "pods" && review.SubResource == "eviction" && review.Operation == admissionv1.Create:
		return h.readEviction(ctx, review, dryRun)
	case review.Resource.Resource != "pods":
		return nil, nil
	case review.SubResource == "" && review.Operation == admissionv1.Delete:
		// The review of an item of a deleted collection has no name. Only the old object says which pod it is.
		pod := &corev1.Pod{}
		if err := h.decoder.DecodeRaw(review.OldObject, pod); err != nil {
			return nil, fmt.Errorf("decoding the pod to be deleted: %w", err)
		}
		return &Request{Pod: pod, Operation: v1beta1.OperationDelete, DryRun: dryRun, ByWorkload: isWorkloadController(review.UserInfo.Username)}, nil
	case review.Operation == admissionv1.Update && (review.SubResource == "" || review.SubResource == "resize" || review.SubResource == "status"):
		before, after := &corev1.Pod{}, &corev1.Pod{}
		if err := h.decoder.DecodeRaw(review.OldObject, before); err != nil {
			return nil, fmt.Errorf("decoding the pod before the update: %w", err)
		}
		if err := h.decoder.DecodeRaw(review.Object, after); err != nil {
			return nil, fmt.Errorf("decoding the pod after the update: %w", err)
		}
		request := &Request{Pod: before, After: after, DryRun: dryRun, Operation: operationOf(review), Restarts: budget.Restarts(before, after)}
		if review.SubResource == "resize" {
			request.Restarts = budget.ResizeRestarts(before, after)
		}
		return request, nil
	default:
		return nil, nil
	}
}

// errUntied is returned for an eviction that does not say by UID which pod it may evict.
var errUntied = errors.New("could not be read when its eviction came in, so the eviction might hit a new pod of the same name; try again")

// readEviction reads the pod live, because the review does not contain it. A client can ask for a dry run in the object or in the URL. The API server
// honours both, but does not write the one in the URL into the object.
//
// The API server looks up the pod by its name after it has called the webhook, possibly long after. So an eviction that the webhook allows must be tied
// to the pod that was judged. The UID that evictionMarker has put into the eviction does that.
func (h *podHandler) readEviction(ctx context.Context, review admission.Request, dryRun bool) (*Request, error) {
	eviction := &policyv1.Eviction{}
	if err := h.decoder.DecodeRaw(review.Object, eviction); err != nil {
		return nil, fmt.Errorf("decoding the eviction: %w", err)
	}
	var uid *types.UID
	if options := eviction.DeleteOptions; options != nil {
		dryRun = dryRun || len(options.DryRun) > 0
		if options.Preconditions != nil {
			uid = options.Preconditions.UID
		}
	}
	pod := &corev1.Pod{}
	if err := h.guard.live.Get(ctx, types.NamespacedName{Namespace: review.Namespace, Name: review.Name}, pod); err != nil {
		if apierrors.IsNotFound(err) && uid != nil {
			return nil, nil // the API server reports that itself
		}
		return nil, fmt.Errorf("reading pod %s/%s: %w", review.Namespace, review.Name, err)
	}
	if uid != nil && *uid != pod.UID {
		return nil, nil // the API server refuses it
	}
	if _, marked := eviction.Labels[v1beta1.ProtectedLabel]; marked && uid == nil {
		return nil, errUntied
	}
	return &Request{Pod: pod, Operation: v1beta1.OperationEvict, DryRun: dryRun}, nil
}

// isExemptUser is true for controllers that clean up after something that has already happened, and for kubelets, which run the pods.
func isExemptUser(name string, groups []string) bool {
	return slices.Contains(groups, "system:nodes") ||
		name == "system:serviceaccount:kube-system:namespace-controller" ||
		name == "system:serviceaccount:kube-system:pod-garbage-collector"
}

// isWorkloadController is true for the controllers of Kubernetes, but for the one that evicts pods from tainted nodes, which has the account of the node
// controller: a ReplicaSet that is scaled down deletes pods, and a new pod in place of one of them would be too many. A controller manager whose controllers
// have no accounts of their own counts as one.
func isWorkloadController(name string) bool {
	return strings.HasPrefix(name, "system:serviceaccount:kube-system:") && name != "system:serviceaccount:kube-system:node-controller" ||
		name == "system:kube-controller-manager"
}

// reportsNodes is true for users who write into the status of pods what has happened to their nodes. No budget can prevent that any more. One of them
// is a controller manager whose controllers have no accounts of their own. None of its controllers makes pods unready for another reason.
func reportsNodes(name string) bool {
	return name == "system:serviceaccount:kube-system:node-controller" || name == "system:kube-controller-manager"
}

// isExemptPod is true for pods that terminate or have ended, and for mirror pods of static pods, which a kubelet runs by itself.
func isExemptPod(pod *corev1.Pod) bool {
	_, isMirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return isMirror || !podstate.IsActive(pod)
}

// refused is the response on which kubectl drain and other patient clients try again: 429 with the cause that a PodDisruptionBudget gives. It has no
// retryAfterSeconds. With it, client libraries would try again by themselves and block their callers.
func refused(verdict budget.Verdict) admission.Response {
	err := apierrors.NewTooManyRequests(verdict.Message, 0)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: policyv1.DisruptionBudgetCause, Message: string(verdict.Reason) + ": " + verdict.Message}}
	return respond(err)
}

// defaultAnswerTimeout is how long a request waits for a verdict. It is below the webhook's timeout of 10 seconds, so that the answer arrives in time.
const defaultAnswerTimeout = 8 * time.Second
