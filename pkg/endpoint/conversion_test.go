package endpoint

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	oldapps "github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

const (
	old = `{"apiVersion":"apps.kruise.io/v1alpha1","kind":"WorkloadSpread","metadata":{"generation":9007199254740993,"name":"web"},"spec":{"subsets":[{"name":"a","requiredNodeSelectorTerm":{}}]}}`
	now = `{"apiVersion":"apps.kruise.io/v1beta1","kind":"WorkloadSpread","metadata":{"generation":9007199254740993,"name":"web"},"spec":{"subsets":[{"name":"a","requiredNodeSelector":{}}]}}`
)

func review(t *testing.T, apiVersion string, objects ...string) *apiextensionsv1.ConversionReview {
	t.Helper()
	asked := apiextensionsv1.ConversionReview{Request: &apiextensionsv1.ConversionRequest{UID: "1", DesiredAPIVersion: apiVersion}}
	for _, object := range objects {
		asked.Request.Objects = append(asked.Request.Objects, runtime.RawExtension{Raw: []byte(object)})
	}
	body, err := json.Marshal(asked)
	if err != nil {
		t.Fatal(err)
	}
	recorder := httptest.NewRecorder()
	ConversionHandler().ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/convert", bytes.NewReader(body)))
	answered := &apiextensionsv1.ConversionReview{}
	if err := json.Unmarshal(recorder.Body.Bytes(), answered); err != nil {
		t.Fatalf("%d: %v", recorder.Code, err)
	}
	return answered
}

func TestConversionReviewsAreAnsweredInOrder(t *testing.T) {
	answered := review(t, "apps.kruise.io/v1beta1", old, now, old)
	if answered.Response == nil || answered.Response.UID != "1" || answered.Response.Result.Status != metav1.StatusSuccess || answered.Request != nil {
		t.Fatalf("got %+v", answered)
	}
	var got []string
	for _, object := range answered.Response.ConvertedObjects {
		got = append(got, string(object.Raw))
	}
	if diff := cmp.Diff([]string{now, now, now}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	back := review(t, "apps.kruise.io/v1alpha1", now)
	if got := string(back.Response.ConvertedObjects[0].Raw); got != old {
		t.Errorf("got %s, want %s", got, old)
	}
}

func TestAConversionThatNobodyKnowsFailsWithAMessage(t *testing.T) {
	for name, answered := range map[string]*apiextensionsv1.ConversionReview{
		"a version": review(t, "apps.kruise.io/v2", old),
		"a kind":    review(t, "apps.kruise.io/v1beta1", old, `{"apiVersion":"apps.kruise.io/v1alpha1","kind":"CloneSet"}`),
		"no object": review(t, "apps.kruise.io/v1beta1", `[]`),
	} {
		if r := answered.Response; r == nil || r.Result.Status != metav1.StatusFailure || r.Result.Message == "" || len(r.ConvertedObjects) > 0 {
			t.Errorf("%s: got %+v", name, r)
		}
	}
}

// TestAReviewOfAStrangerTakesLittleMemory: nobody checks who sends a review.
func TestAReviewOfAStrangerTakesLittleMemory(t *testing.T) {
	fill := func(head, each, tail string) string {
		return head + strings.Repeat(each+",", (maxReview-len(head)-len(tail)-len(each))/(len(each)+1)) + each + tail
	}
	for name, body := range map[string]string{
		"numbers":         fill(`{"request":{"objects":[`, "0", "]}}"),
		"objects":         fill(`{"request":{"objects":[`, "{}", "]}}"),
		"a large object":  fill(`{"request":{"desiredAPIVersion":"apps.kruise.io/v1beta1","objects":[{"apiVersion":"apps.kruise.io/v1alpha1","kind":"WorkloadSpread","spec":{"x":[`, "{}", "]}}]}}"),
		"a large message": fill(`{"request":{"uid":[`, "[]", `]}}`),
	} {
		var before, after goruntime.MemStats
		goruntime.ReadMemStats(&before)
		ConversionHandler().ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/convert", strings.NewReader(body)))
		goruntime.ReadMemStats(&after)
		if taken := (after.TotalAlloc - before.TotalAlloc) >> 20; taken > 300 {
			t.Errorf("%s: %d MiB were allocated", name, taken)
		} else {
			t.Logf("%s: %d MiB", name, taken)
		}
	}
}

func TestReviewsTakeTurns(t *testing.T) {
	h := &handler{make(chan struct{}, 1), make(chan struct{}, 1), time.Millisecond}
	ask := func() int {
		recorder := httptest.NewRecorder()
		h.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/convert", strings.NewReader(`{"request":{"objects":[]}}`)))
		return recorder.Code
	}
	for name, turns := range map[string]chan struct{}{"readers": h.reads, "converters": h.conversions} {
		turns <- struct{}{}
		if code := ask(); code != http.StatusServiceUnavailable {
			t.Errorf("%s are busy, and the answer is %d", name, code)
		}
		<-turns
		if code := ask(); code != http.StatusOK {
			t.Errorf("%s are idle again, and the answer is %d", name, code)
		}
	}
}

func TestOtherRequestsAreBad(t *testing.T) {
	for name, body := range map[string]string{"nothing": "", "no JSON": "x", "no request": "{}", "too much": `{"request":"` + strings.Repeat("x", maxReview) + `"}`} {
		recorder := httptest.NewRecorder()
		ConversionHandler().ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/convert", strings.NewReader(body)))
		if recorder.Code != http.StatusBadRequest {
			t.Errorf("%s: got %d", name, recorder.Code)
		}
	}
}

// refuses is a webhook for v1beta1 that refuses every object and names a field.
type refuses struct{ seen []string }

func (r *refuses) Handle(_ context.Context, request admission.Request) admission.Response {
	r.seen = append(r.seen, string(request.Object.Raw), string(request.OldObject.Raw))
	path := field.NewPath("spec", "subsets").Index(0).Child("requiredNodeSelector")
	response := admission.Denied("")
	invalid := apierrors.NewInvalid(v1beta1.Kind.GroupKind(), "web", field.ErrorList{field.Required(path, "x")})
	var status apierrors.APIStatus
	if errors.As(invalid, &status) {
		result := status.Status()
		response.Result = &result
	}
	return response.WithWarnings(path.String() + ": y")
}

func TestAdmissionSeesTheHubAndAnswersTheClient(t *testing.T) {
	for _, tc := range []struct{ version, object, want, not string }{
		{"v1alpha1", old, "spec.subsets[0].requiredNodeSelectorTerm", "requiredNodeSelector:"},
		{"v1beta1", now, "spec.subsets[0].requiredNodeSelector", "Term"},
	} {
		t.Run(tc.version, func(t *testing.T) {
			hook := &refuses{}
			wrapped := AdmissionInHub(v1beta1.GroupVersion, &admission.Webhook{Handler: hook})
			response := wrapped.Handler.Handle(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
				Kind:   metav1.GroupVersionKind{Group: oldapps.GroupVersion.Group, Version: tc.version, Kind: "WorkloadSpread"},
				Object: runtime.RawExtension{Raw: []byte(tc.object)}, OldObject: runtime.RawExtension{Raw: []byte(tc.object)}}})
			if diff := cmp.Diff([]string{now, now}, hook.seen); diff != "" {
				t.Errorf("the webhook sees (-want +got)\n%s", diff)
			}
			for _, text := range []string{response.Result.Message, response.Result.Details.Causes[0].Field, response.Warnings[0]} {
				if !strings.Contains(text, tc.want) || strings.Contains(text, tc.not) {
					t.Errorf("got %q, want it to name %s", text, tc.want)
				}
			}
		})
	}
}
