package webhook

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
)

// servedKinds are kinds that the API server has. It answers with an error if it has one.
type servedKinds struct {
	names []string
	err   error
}

func (s servedKinds) RESTMapping(kind schema.GroupKind, _ ...string) (*meta.RESTMapping, error) {
	switch {
	case s.err != nil:
		return nil, s.err
	case slices.Contains(s.names, kind.String()):
		return &meta.RESTMapping{}, nil
	default:
		return nil, &meta.NoKindMatchError{GroupKind: kind}
	}
}

const (
	unitedPods   = "spec: {template: {metadata: {labels: {app: web}}, spec: {containers: [{name: main, image: i}]}}}"
	ofDeployment = "template: {deploymentTemplate: {" + unitedPods + "}}"
	ofCloneSet   = "template: {cloneSetTemplate: {" + unitedPods + "}}"
	unitedSpec   = "selector: {matchLabels: {app: web}}, topology: {subsets: [{name: a}, {name: b}]}, replicas: 2"
)

func TestReviewsOfUnitedDeployments(t *testing.T) {
	all := servedKinds{names: []string{"Deployment.apps", "CloneSet.apps.kruise.io"}}
	builtIn := servedKinds{names: []string{"Deployment.apps"}}
	const renamed = "selector: {matchLabels: {app: shop}}, topology: {subsets: [{name: a}]}"
	for name, tc := range map[string]struct {
		spec, old    string // old is empty for a creation
		kinds        servedKinds
		deleted      bool
		wantErrors   []string
		wantWarnings []string
	}{
		"a good one":                        {spec: unitedSpec + ", " + ofDeployment, kinds: builtIn},
		"a new one without template":        {spec: unitedSpec, kinds: all, wantErrors: []string{"spec.template: Required value: needs one of"}},
		"an update to no template":          {spec: unitedSpec, old: unitedSpec + ", " + ofDeployment, kinds: all},
		"an update to another kind":         {spec: unitedSpec + ", " + ofCloneSet, old: unitedSpec + ", " + ofDeployment, kinds: all, wantErrors: []string{"spec.template: Forbidden: cannot be changed from deploymentTemplate to cloneSetTemplate"}},
		"errors of the spec and the change": {spec: renamed + ", replicas: -1, " + ofDeployment, old: unitedSpec + ", " + ofDeployment, kinds: all, wantErrors: []string{"spec.replicas: Invalid value", "spec.selector: Forbidden", "spec.template.deploymentTemplate.spec.template.metadata.labels: Invalid value"}},
		"warnings of the model":             {spec: unitedSpec + ", updateStrategy: {manualUpdate: {partitions: {a: 1}}}, " + ofDeployment, kinds: all, wantWarnings: []string{"spec.updateStrategy.manualUpdate.partitions[a]: a Deployment cannot keep some"}},
		"a kind that is not there":          {spec: unitedSpec + ", " + ofCloneSet, kinds: builtIn, wantErrors: []string{"spec.template: Invalid value: the API server has no kind CloneSet in apps.kruise.io; install it, or use the template of another kind"}},
		"a kind that is not there any more": {spec: unitedSpec + ", revisionHistoryLimit: 1, " + ofCloneSet, old: unitedSpec + ", " + ofCloneSet, kinds: builtIn, wantWarnings: []string{"spec.template: the API server has no kind CloneSet"}},
		"kinds that cannot be asked for":    {spec: unitedSpec + ", " + ofCloneSet, kinds: servedKinds{err: errors.New("it is away")}, wantWarnings: []string{"spec.template: Berth cannot find out now whether the API server has the kind CloneSet.apps.kruise.io: it is away"}},
		"an unchanged one that is invalid":  {spec: "replicas: -1", old: "replicas: -1", kinds: all},
		"one that is being deleted":         {spec: "replicas: -1", old: "replicas: -2", kinds: all, deleted: true},
	} {
		t.Run(name, func(t *testing.T) {
			of := func(spec string) runtime.RawExtension {
				ud := &v1beta1.UnitedDeployment{TypeMeta: metav1.TypeMeta{APIVersion: "apps.kruise.io/v1alpha1", Kind: "UnitedDeployment"}, ObjectMeta: metav1.ObjectMeta{Name: "web"}}
				if tc.deleted {
					ud.DeletionTimestamp = &metav1.Time{Time: time.Unix(1000, 0)}
				}
				if err := yaml.UnmarshalStrict([]byte("{"+spec+"}"), &ud.Spec); err != nil {
					t.Fatal(err)
				}
				content, err := json.Marshal(ud)
				if err != nil {
					t.Fatal(err)
				}
				return runtime.RawExtension{Raw: content}
			}
			scheme := schemeOf(t)
			if err := v1beta1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			request := admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{UID: "review", Operation: admissionv1.Create, Object: of(tc.spec)}}
			if tc.old != "" {
				request.Operation, request.OldObject = admissionv1.Update, of(tc.old)
			}
			response := unitedReviews(scheme, tc.kinds, false).Handle(t.Context(), request)
			var refused []string
			if !response.Allowed {
				refused = []string{""}
				if response.Result.Details != nil {
					refused = nil
					for _, cause := range response.Result.Details.Causes {
						refused = append(refused, cause.Field+": "+cause.Message)
					}
				}
			}
			beginAs := cmp.Comparer(func(a, b string) bool { return strings.HasPrefix(a, b) || strings.HasPrefix(b, a) })
			slices.Sort(refused)
			if diff := cmp.Diff(tc.wantErrors, refused, beginAs); diff != "" {
				t.Errorf("errors (-want +got):\n%s\n%+v", diff, response.Result)
			}
			if diff := cmp.Diff(tc.wantWarnings, response.Warnings, beginAs); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
		})
	}
}

// TestUnitedDeploymentsOfOthersAreNotRead: their controller may know fields, types and rules that Berth does not.
func TestUnitedDeploymentsOfOthersAreNotRead(t *testing.T) {
	request := admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{UID: "review", Operation: admissionv1.Create,
		Object: runtime.RawExtension{Raw: []byte(`{"apiVersion":"apps.kruise.io/v1","kind":"UnitedDeployment","spec":{"replicas":"many"}}`)}}}
	for ignored, want := range map[bool]bool{true: true, false: false} {
		if response := unitedReviews(schemeOf(t), servedKinds{}, ignored).Handle(t.Context(), request); response.Allowed != want {
			t.Errorf("ignored is %t, and allowed is %t: %+v", ignored, response.Allowed, response.Result)
		}
	}
}
