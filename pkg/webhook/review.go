package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"runtime/debug"

	"gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	admissionmetrics "sigs.k8s.io/controller-runtime/pkg/webhook/admission/metrics"
)

// maxReview bounds the body of a request: two objects of 3 MB each, and 1 MB for the rest.
const maxReview = 7 << 20

// podReview is the part of a pod's AdmissionReview that is read. Every pod of the cluster that has a controller passes here, and decoding is most of
// the work, so nothing else is decoded.
type podReview struct {
	metav1.TypeMeta `json:",inline"`
	Request         *podRequest `json:"request"`
}

type podRequest struct {
	UID       types.UID             `json:"uid"`
	Operation admissionv1.Operation `json:"operation"`
	Namespace string                `json:"namespace"`
	DryRun    *bool                 `json:"dryRun"`
	Object    podObject             `json:"object"`
}

type podObject struct {
	podFields
	// raw is the whole object, for code that has to change more of it.
	raw []byte
}

// UnmarshalJSON implements json.Unmarshaler. The object keeps the bytes, which belong to the body of the request.
func (o *podObject) UnmarshalJSON(raw []byte) error {
	o.raw = raw
	return json.Unmarshal(raw, &o.podFields)
}

type podFields struct {
	Metadata struct {
		Name            string                  `json:"name"`
		Labels          map[string]string       `json:"labels"`
		Annotations     map[string]string       `json:"annotations"`
		OwnerReferences []metav1.OwnerReference `json:"ownerReferences"`
	} `json:"metadata"`
	Spec struct {
		SchedulerName   string                     `json:"schedulerName"`
		Tolerations     []corev1.Toleration        `json:"tolerations"`
		SchedulingGates []corev1.PodSchedulingGate `json:"schedulingGates"`
		Affinity        *corev1.Affinity           `json:"affinity"`
	} `json:"spec"`
}

// pod is a Pod with the fields that were read.
func (o *podObject) pod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: o.Metadata.Name, Labels: o.Metadata.Labels, Annotations: o.Metadata.Annotations, OwnerReferences: o.Metadata.OwnerReferences},
		Spec: corev1.PodSpec{
			SchedulerName: o.Spec.SchedulerName, Tolerations: o.Spec.Tolerations, SchedulingGates: o.Spec.SchedulingGates, Affinity: o.Spec.Affinity,
		},
	}
}

// answer to a review. Unless admission is required, a pod is always admitted.
type answer struct {
	patch    []jsonpatch.Operation
	warnings []string
	outcome  outcome
}

// podReviews serves reviews of pods. After an error it answers with an HTTP error and not with a refusal. The webhook's failurePolicy applies to
// failed calls and admits the pod, while a refusal, which controller-runtime makes of a panic, is final.
type podReviews struct {
	answer func(context.Context, *podRequest) answer
	clock  clock.PassiveClock
	// required is true if the call must fail when it is not known whether a spread divides the pod.
	required bool
}

var _ http.Handler = &podReviews{}

// ServeHTTP answers one review.
func (p *podReviews) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	started := p.clock.Now()
	outcome := failed
	defer func() {
		if reason := recover(); reason != nil {
			admissionmetrics.WebhookPanics.WithLabelValues().Inc()
			klog.FromContext(request.Context()).Error(fmt.Errorf("panic: %v", reason), "Reviewing a pod", "stack", string(debug.Stack()))
			http.Error(w, "panic, see the log of berth-controller", http.StatusInternalServerError)
		}
		podsReviewed.WithLabelValues(string(outcome)).Inc()
		reviewSeconds.Observe(p.clock.Since(started).Seconds())
	}()
	var body bytes.Buffer
	body.Grow(int(min(max(request.ContentLength, 0), maxReview)) + bytes.MinRead) // so that the buffer need not grow while it is read
	if _, err := body.ReadFrom(http.MaxBytesReader(w, request.Body, maxReview)); err != nil {
		http.Error(w, fmt.Sprintf("reading the review: %v", err), http.StatusBadRequest)
		return
	}
	var review podReview
	if err := json.Unmarshal(body.Bytes(), &review); err != nil {
		http.Error(w, fmt.Sprintf("decoding the review: %v", err), http.StatusBadRequest)
		return
	}
	if review.Request == nil {
		http.Error(w, "the review has no request", http.StatusBadRequest)
		return
	}
	given := p.answer(request.Context(), review.Request)
	if p.required && (given.outcome == failed || given.outcome == ownerUnknown) {
		outcome = given.outcome
		http.Error(w, "the namespace requires admission (label berth.dev/admission), and Berth cannot tell now whether a WorkloadSpread divides the pod; its controller tries again; the log of berth-controller says why", http.StatusServiceUnavailable)
		return
	}
	response, err := encodeAnswer(&review, &given)
	if err != nil {
		http.Error(w, fmt.Sprintf("encoding the answer: %v", err), http.StatusInternalServerError)
		return
	}
	outcome = given.outcome
	w.Header().Set("Content-Type", "application/json")
	if _, err := w.Write(response); err != nil {
		klog.FromContext(request.Context()).V(2).Info("The API server does not wait for the answer", "err", err)
	}
}

func encodeAnswer(review *podReview, given *answer) ([]byte, error) {
	response := &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true, Warnings: given.warnings}
	if len(given.patch) > 0 {
		patch, err := json.Marshal(given.patch)
		if err != nil {
			return nil, err
		}
		response.Patch, response.PatchType = patch, ptr.To(admissionv1.PatchTypeJSONPatch)
	}
	return json.Marshal(&admissionv1.AdmissionReview{TypeMeta: review.TypeMeta, Response: response})
}
