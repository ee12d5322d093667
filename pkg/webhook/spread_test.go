package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
)

func schemeOf(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return scheme
}

func cacheOf(t *testing.T, objects ...client.Object) client.Reader {
	t.Helper()
	return fake.NewClientBuilder().WithScheme(schemeOf(t)).WithObjects(objects...).Build()
}

// ask sends a review of a creation, or of an update if old is not nil.
func ask(t *testing.T, reader client.Reader, spread, old *v1alpha1.WorkloadSpread) admission.Response {
	t.Helper()
	request := admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{UID: "review", Operation: admissionv1.Create, Object: raw(t, spread)}}
	if old != nil {
		request.Operation, request.OldObject = admissionv1.Update, raw(t, old)
	}
	return admission.WithValidator(schemeOf(t), &spreadValidator{reader: reader}).Handle(t.Context(), request)
}

func raw(t *testing.T, spread *v1alpha1.WorkloadSpread) runtime.RawExtension {
	t.Helper()
	content, err := json.Marshal(spread)
	if err != nil {
		t.Fatal(err)
	}
	return runtime.RawExtension{Raw: content}
}

func TestARefusalCarriesEveryErrorAsACauseOfItsField(t *testing.T) {
	response := ask(t, cacheOf(t, spreadOf("first", "web", 5)), changed(spreadOf("web", "web", 1), broken), nil)
	if response.Allowed || response.Result.Code != http.StatusUnprocessableEntity || response.Result.Reason != metav1.StatusReasonInvalid {
		t.Fatalf("got %+v", response)
	}
	var fields []string
	for _, cause := range response.Result.Details.Causes {
		fields = append(fields, cause.Field)
	}
	want := []string{
		"spec.subsets[0].tolerations[0].operator", "spec.subsets[0].patch.spec.containers[0].resources.limit",
		"spec.subsets[1].patch.metadata.labels", "spec.targetRef",
	}
	if diff := cmp.Diff(want, fields); diff != "" {
		t.Errorf("fields of the causes (-want +got):\n%s", diff)
	}
	if message := response.Result.Message; !strings.Contains(message, `"first"`) {
		t.Errorf("the first spread is not named: %s", message)
	}
}

func TestTheWorkloadIsLookedForInTheCache(t *testing.T) {
	const missing = "spec.targetRef: there is no Deployment web yet, and the spread waits for it"
	deployment := func(namespace string) client.Object {
		return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}}
	}
	custom := changed(spreadOf("web", "web", 1), func(spec *v1alpha1.WorkloadSpreadSpec) {
		spec.TargetReference.APIVersion, spec.TargetReference.Kind = "example.com/v1", "Fleet"
	})
	tests := map[string]struct {
		spread *v1alpha1.WorkloadSpread
		cache  client.Reader
		want   []string
	}{
		"one that is there is not mentioned":                    {spreadOf("web", "web", 1), cacheOf(t, deployment("shop")), nil},
		"one that is not there is a warning":                    {spreadOf("web", "web", 1), cacheOf(t), []string{missing}},
		"one in another namespace is not the one":               {spreadOf("web", "web", 1), cacheOf(t, deployment("farm")), []string{missing}},
		"one of a kind that is not watched is nothing known of": {custom, cacheOf(t), nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			response := ask(t, tc.cache, tc.spread, nil)
			if !response.Allowed {
				t.Errorf("refused: %v", response.Result)
			}
			if diff := cmp.Diff(tc.want, response.Warnings); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
		})
	}
}

// noCache answers every read with an error, or by a panic.
type noCache struct {
	client.Reader
	panics bool
}

func (c noCache) List(context.Context, client.ObjectList, ...client.ListOption) error {
	if c.panics {
		panic("a bug")
	}
	return errors.New("the cache is broken")
}

func TestWhatIsNoChangeOfTheSpecAlwaysPasses(t *testing.T) {
	// Invalid, as if it had come in before the rules that it breaks.
	invalid := changed(spreadOf("web", "web", 1), broken)
	tests := map[string]func(*v1alpha1.WorkloadSpread){
		"a label":             func(s *v1alpha1.WorkloadSpread) { s.Labels = map[string]string{"team": "shop"} },
		"a finalizer":         func(s *v1alpha1.WorkloadSpread) { s.Finalizers = []string{"example.com/keep"} },
		"the status":          func(s *v1alpha1.WorkloadSpread) { s.Status.ObservedGeneration = 7 },
		"the end of a spread": func(s *v1alpha1.WorkloadSpread) { s.DeletionTimestamp = &metav1.Time{Time: s.CreationTimestamp.Time} },
		"a change at that end": func(s *v1alpha1.WorkloadSpread) {
			s.DeletionTimestamp = &metav1.Time{Time: s.CreationTimestamp.Time}
			s.Spec.Subsets = nil
		},
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			spread := invalid.DeepCopy()
			change(spread)
			if response := ask(t, noCache{}, spread, invalid); !response.Allowed || len(response.Warnings) > 0 {
				t.Errorf("got %+v", response)
			}
		})
	}
	t.Run("but not a change of the spec", func(t *testing.T) {
		spread := changed(invalid, func(spec *v1alpha1.WorkloadSpreadSpec) { spec.Subsets[1].Name = "c" })
		if response := ask(t, cacheOf(t), spread, invalid); response.Allowed {
			t.Error("an invalid spread passed")
		}
	})
}

func TestAFailureIsAnErrorAndNoVerdict(t *testing.T) {
	tests := map[string]struct {
		cache client.Reader
		want  string
	}{
		"a cache that cannot be read": {noCache{}, "the cache is broken"},
		"a panic":                     {noCache{panics: true}, "a bug"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			response := ask(t, tc.cache, spreadOf("web", "web", 1), nil)
			if response.Allowed || response.Result.Code != http.StatusInternalServerError || !strings.Contains(response.Result.Message, tc.want) {
				t.Errorf("got %v, want an internal error that says %q", response.Result, tc.want)
			}
			if response.UID != "review" {
				t.Errorf("the answer is to review %q", response.UID)
			}
		})
	}
}
