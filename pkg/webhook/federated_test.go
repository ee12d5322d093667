package webhook

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
)

func TestReviewsOfFederatedReplicaSets(t *testing.T) {
	const (
		pods = "template: {metadata: {labels: {app: web}}, spec: {containers: [{name: main, image: i}]}}"
		good = "selector: {matchLabels: {app: web}}, " + pods
	)
	known := []string{"east", "west"}
	for name, tc := range map[string]struct {
		spec, old    string // old is empty for a creation
		preferences  string // in the annotation
		members      []string
		deleted      bool
		wantErrors   []string
		wantWarnings []string
	}{
		"a good one":                        {spec: good + ", preferences: {clusters: {east: {weight: 1}, '*': {weight: 1}}}", members: known},
		"several errors":                    {spec: "selector: {matchLabels: {app: web}}, replicas: -1, pace: {maxMoving: 0}, " + pods, wantErrors: []string{"spec.pace.maxMoving: Invalid value", "spec.replicas: Invalid value"}},
		"errors of the spec and the change": {spec: "selector: {matchLabels: {app: shop}}, replicas: -1, " + pods, old: good, wantErrors: []string{"spec.replicas: Invalid value", "spec.selector: Forbidden", "spec.template.metadata.labels: Invalid value"}},
		"an annotation that does not parse": {spec: good, preferences: "{", wantErrors: []string{"metadata.annotations[federation.kubernetes.io/replica-set-preferences]: Invalid value: must be preferences as JSON"}},
		"an annotation that is added":       {spec: good, old: good, preferences: "{", wantErrors: []string{"metadata.annotations[federation.kubernetes.io/replica-set-preferences]: Invalid value: must be preferences as JSON"}},
		"clusters that do not exist":        {spec: good + ", preferences: {clusters: {north: {weight: 1}, south: {}, east: {}}}", members: known, wantWarnings: []string{"preferences: no cluster has the name north, south; correct or remove it, or register the cluster"}},
		"a replica that knows no clusters":  {spec: good + ", preferences: {clusters: {north: {weight: 1}}}"},
		"an unchanged one that is invalid":  {spec: "replicas: -1", old: "replicas: -1"},
		"one that is being deleted":         {spec: "replicas: -1", old: "replicas: -2", deleted: true},
	} {
		t.Run(name, func(t *testing.T) {
			of := func(spec, preferences string) runtime.RawExtension {
				frs := &v1alpha1.FederatedReplicaSet{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "FederatedReplicaSet"}, ObjectMeta: metav1.ObjectMeta{Name: "web"}}
				if tc.deleted {
					frs.DeletionTimestamp = &metav1.Time{Time: time.Unix(1000, 0)}
				}
				if preferences != "" {
					frs.Annotations = map[string]string{v1alpha1.PreferencesAnnotation: preferences}
				}
				if err := yaml.UnmarshalStrict([]byte("{"+spec+"}"), &frs.Spec); err != nil {
					t.Fatal(err)
				}
				content, err := json.Marshal(frs)
				if err != nil {
					t.Fatal(err)
				}
				return runtime.RawExtension{Raw: content}
			}
			scheme := runtime.NewScheme()
			if err := v1alpha1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			request := admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{UID: "review", Operation: admissionv1.Create, Object: of(tc.spec, tc.preferences)}}
			if tc.old != "" {
				request.Operation, request.OldObject = admissionv1.Update, of(tc.old, "")
			}
			response := admission.WithValidator(scheme, federatedReviews(func(context.Context) ([]string, error) { return tc.members, nil })).Handle(t.Context(), request)
			var refused []string
			if !response.Allowed {
				for _, cause := range response.Result.Details.Causes {
					refused = append(refused, cause.Field+": "+cause.Message)
				}
			}
			slices.Sort(refused)
			beginAs := cmp.Comparer(func(a, b string) bool { return strings.HasPrefix(a, b) || strings.HasPrefix(b, a) })
			if diff := cmp.Diff(tc.wantErrors, refused, beginAs); diff != "" {
				t.Errorf("errors (-want +got):\n%s\n%+v", diff, response.Result)
			}
			if diff := cmp.Diff(tc.wantWarnings, response.Warnings, beginAs); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
		})
	}
}
