package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

func schemeOf(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1beta1.AddToScheme} {
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
func ask(t *testing.T, reader client.Reader, spread, old *v1beta1.WorkloadSpread) admission.Response {
	t.Helper()
	request := admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{UID: "review", Operation: admissionv1.Create, Object: raw(t, spread)}}
	if old != nil {
		request.Operation, request.OldObject = admissionv1.Update, raw(t, old)
	}
	return admission.WithValidator(schemeOf(t), (&spreadValidator{reader: reader, live: reader}).reviews()).Handle(t.Context(), request)
}

func raw(t *testing.T, spread *v1beta1.WorkloadSpread) runtime.RawExtension {
	t.Helper()
	content, err := json.Marshal(spread)
	if err != nil {
		t.Fatal(err)
	}
	return runtime.RawExtension{Raw: content}
}

func TestARefusalCarriesEveryErrorAsACauseOfItsField(t *testing.T) {
	response := ask(t, cacheOf(t, spreadOf("xyz", "web", 1)), changed(spreadOf("web", "web", 1), broken), nil)
	if response.Allowed || response.Result.Code != http.StatusUnprocessableEntity || response.Result.Reason != metav1.StatusReasonInvalid {
		t.Fatalf("got %+v", response)
	}
	var fields []string
	for _, cause := range response.Result.Details.Causes {
		fields = append(fields, cause.Field)
	}
	want := []string{
		"spec.subsets[0].tolerations[0].operator", "spec.subsets[0].patch.spec.containers[0].resources.limit",
		"spec.subsets[1].patch.metadata.labels[lane]", "spec.targetRef",
	}
	if diff := cmp.Diff(want, fields); diff != "" {
		t.Errorf("fields of the causes (-want +got):\n%s", diff)
	}
	if message := response.Result.Message; !strings.Contains(message, `"xyz"`) {
		t.Errorf("the other spread is not named: %s", message)
	}
}

func TestTheWorkloadIsLookedFor(t *testing.T) {
	const missing = "spec.targetRef: there is no Deployment web yet, and the spread waits for it"
	deployment := func(namespace string) client.Object {
		return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}}
	}
	custom := changed(spreadOf("web", "web", 1), func(spec *v1beta1.WorkloadSpreadSpec) {
		spec.TargetReference.APIVersion, spec.TargetReference.Kind = "example.com/v1", "Fleet"
	})
	tests := map[string]struct {
		spread *v1beta1.WorkloadSpread
		cache  client.Reader
		want   []string
	}{
		"one that is there is not mentioned":                   {spreadOf("web", "web", 1), cacheOf(t, deployment("shop")), nil},
		"one that is not there is a warning":                   {spreadOf("web", "web", 1), cacheOf(t), []string{missing}},
		"one in another namespace is not the one":              {spreadOf("web", "web", 1), cacheOf(t, deployment("farm")), []string{missing}},
		"one of a kind that is not watched is looked for, too": {custom, cacheOf(t), []string{strings.Replace(missing, "Deployment", "Fleet", 1)}},
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

// TestAChildOfAUnitedDeploymentIsKnownByItsOwner: with patches and without.
func TestAChildOfAUnitedDeploymentIsKnownByItsOwner(t *testing.T) {
	owner := func(apiVersion, kind string) []metav1.OwnerReference {
		return []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: "shop", UID: "u", Controller: ptr.To(true)}}
	}
	for name, tc := range map[string]struct {
		owners  []metav1.OwnerReference
		allowed bool
	}{
		"a child":                        {owner("apps.kruise.io/v1alpha1", "UnitedDeployment"), false},
		"a child, in another version":    {owner("apps.kruise.io/v1beta1", "UnitedDeployment"), false},
		"a workload of something else":   {owner("example.com/v1", "UnitedDeployment"), true},
		"a workload that nobody manages": {nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			deployment := &appsv1.Deployment{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}, ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", OwnerReferences: tc.owners}}
			patched := changed(spreadOf("web", "web", 1), patchedBy(`{"spec":{"hostname":"x"}}`))
			for _, response := range []admission.Response{
				ask(t, cacheOf(t, deployment), spreadOf("web", "web", 1), nil),
				askLive(t, cacheOf(t), &apiServer{Reader: cacheOf(t, deployment)}, patched),
			} {
				if response.Allowed != tc.allowed {
					t.Errorf("allowed is %t: %+v", response.Allowed, response.Result)
				}
			}
		})
	}
}

func TestAValidatorKnowsTheInstallation(t *testing.T) {
	spread := spreadOf("web", "web", 1)
	spread.Spec.ScheduleStrategy.Type = v1beta1.AdaptiveScheduleStrategy
	const never = "spec.scheduleStrategy.adaptive.rescheduleCriticalSeconds: is not set, and the subset is picked at admission, so no pod goes on to the next subset, as with type: Fixed"
	own := spread.DeepCopy()
	own.Annotations = map[string]string{v1beta1.CompatibilityAnnotation: "none"}
	for name, tc := range map[string]struct {
		installation v1beta1.Compatibility
		spread       *v1beta1.WorkloadSpread
		want         bool
	}{
		"compatible with nothing":                       {"", spread, false},
		"compatible with OpenKruise":                    {v1beta1.CompatibleWithKruise, spread, true},
		"compatible, and the spread is not, as it says": {v1beta1.CompatibleWithKruise, own, false},
	} {
		validator := &spreadValidator{reader: cacheOf(t), live: cacheOf(t), installation: tc.installation}
		warnings, err := validator.reviews().ValidateCreate(t.Context(), tc.spread)
		if err != nil || slices.Contains(warnings, never) != tc.want {
			t.Errorf("%s: %q, %v", name, warnings, err)
		}
	}
	broken := spread.DeepCopy()
	broken.Annotations = map[string]string{v1beta1.CompatibilityAnnotation: "Kruise"}
	if response := ask(t, cacheOf(t), broken, spread); response.Allowed {
		t.Error("an update may set a compatibility that there is not")
	}
	if response := ask(t, cacheOf(t), broken, broken); !response.Allowed {
		t.Errorf("a broken spread cannot be written as it is: %v", response.Result)
	}
}

// askLive is ask with an API server that has other objects than the cache.
func askLive(t *testing.T, cache, live client.Reader, spread *v1beta1.WorkloadSpread) admission.Response {
	t.Helper()
	request := admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{UID: "review", Operation: admissionv1.Create, Object: raw(t, spread)}}
	return admission.WithValidator(schemeOf(t), (&spreadValidator{reader: cache, live: live}).reviews()).Handle(t.Context(), request)
}

// apiServer counts its requests, and answers them with an error if it has one.
type apiServer struct {
	client.Reader
	err error
	// asked are the kinds that were asked for.
	asked []string
}

func (a *apiServer) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	a.asked = append(a.asked, object.GetObjectKind().GroupVersionKind().String())
	if a.err != nil {
		return a.err
	}
	if _, bounded := ctx.Deadline(); !bounded {
		return errors.New("a request without end")
	}
	return a.Reader.Get(ctx, key, object, options...)
}

// workloadOf is a workload of any kind, with fields in YAML.
func workloadOf(t *testing.T, text string) client.Object {
	t.Helper()
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &object.Object); err != nil {
		t.Fatal(err)
	}
	object.SetNamespace("shop")
	object.SetName("web")
	return object
}

const (
	oneContainer  = `template: {metadata: {labels: {app: web}}, spec: {containers: [{name: main, image: x}]}}`
	appSelector   = `selector: {matchLabels: {app: web}}`
	aDeployment   = `{apiVersion: apps/v1, kind: Deployment, spec: {replicas: 3, ` + appSelector + `, ` + oneContainer + `}}`
	aStatefulSet  = `{apiVersion: apps/v1, kind: StatefulSet, spec: {` + oneContainer + `, volumeClaimTemplates: [{metadata: {name: disk}}]}}`
	aFleet        = `{apiVersion: example.com/v1, kind: Fleet, spec: {` + appSelector + `, ` + oneContainer + `, groups: [{size: 3}]}}`
	aRollout      = `{apiVersion: argoproj.io/v1alpha1, kind: Rollout, spec: {workloadRef: {kind: Deployment, name: other}}}`
	anotherSystem = `{apiVersion: example.com/v1, kind: Fleet, spec: {selector: web, template: {spec: {containers: [main]}}}}`
)

func targeting(apiVersion, kind string, patch string) func(*v1beta1.WorkloadSpreadSpec) {
	return func(spec *v1beta1.WorkloadSpreadSpec) {
		spec.TargetReference.APIVersion, spec.TargetReference.Kind = apiVersion, kind
		if patch != "" {
			spec.Subsets[0].Patch = &runtime.RawExtension{Raw: []byte(patch)}
		}
	}
}

func TestWhatTheAPIServerIsAskedFor(t *testing.T) {
	const noImage, mountsDisk = `{"spec":{"containers":[{"name":"sidecar"}]}}`, `{"spec":{"containers":[{"name":"sidecar","image":"x","volumeMounts":[{"name":"disk","mountPath":"/d"}]}]}}`
	const untried = ", so the patches were not tried on its pods"
	groups := map[string]string{"Deployment": "apps/v1, Kind=Deployment", "StatefulSet": "apps/v1, Kind=StatefulSet", "Fleet": "example.com/v1, Kind=Fleet", "Rollout": "argoproj.io/v1alpha1, Kind=Rollout"}
	tests := map[string]struct {
		there        string // in the API server; nothing is in the cache
		err          error
		spread       func(*v1beta1.WorkloadSpreadSpec)
		wantErrors   []string
		wantWarnings []string
	}{
		"the workload of a spread without patches": {there: aDeployment, spread: targeting("apps/v1", "Deployment", "")},
		"the workload of a spread with patches, which may not be in the cache yet": {
			there: aDeployment, spread: targeting("apps/v1", "Deployment", noImage),
			wantErrors: []string{"spec.subsets[0].patch: Required value: at spec.containers[sidecar].image of the patched pod"},
		},
		"a built-in kind in the version that there is": {
			there: aDeployment, spread: targeting("apps/v1beta9", "Deployment", `{"metadata":{"labels":{"app":"other"}}}`),
			wantErrors: []string{"spec.subsets[0].patch.metadata.labels[app]: Forbidden: Deployment web selects its pods by this label"},
		},
		"a workload that is not there": {
			spread:       targeting("apps/v1", "Deployment", noImage),
			wantWarnings: []string{"spec.targetRef: there is no Deployment web yet, and the spread waits for it" + untried},
		},
		"its replicas": {
			there: aDeployment,
			spread: func(spec *v1beta1.WorkloadSpreadSpec) {
				percentages(spec)
				patchedBy(`{"spec":{"hostname":"x"}}`)(spec)
			},
			wantWarnings: []string{"spec.subsets: the minimums are 4 pods (a 2, b 2), and the workload has 3 replicas"},
		},
		"the volumes that its controller adds": {there: aStatefulSet, spread: targeting("apps/v1", "StatefulSet", mountsDisk)},
		"a kind that is not built in": {
			there: aFleet, spread: targeting("example.com/v1", "Fleet", noImage),
			wantErrors: []string{"spec.subsets[0].patch: Required value: at spec.containers[sidecar].image of the patched pod"},
		},
		"a kind that is not built in, also without patches": {
			spread:       targeting("example.com/v1", "Fleet", ""),
			wantWarnings: []string{"spec.targetRef: there is no Fleet web yet, and the spread waits for it"},
		},
		"the replicas of a kind that is not built in, at their paths": {
			there: aFleet,
			spread: func(spec *v1beta1.WorkloadSpreadSpec) {
				percentages(spec)
				targeting("example.com/v1", "Fleet", "")(spec)
				spec.TargetFilter = &v1beta1.TargetFilter{ReplicasPathList: []string{"spec.groups.0.size"}}
			},
			wantWarnings: []string{"spec.subsets: the minimums are 4 pods (a 2, b 2), and the workload has 3 replicas"},
		},
		"a kind without a pod template": {
			there: aRollout, spread: targeting("argoproj.io/v1alpha1", "Rollout", noImage),
			wantWarnings: []string{"spec.targetRef: Rollout web has no pod template at spec.template" + untried},
		},
		"a kind whose template and selector are something else": {
			there: anotherSystem, spread: targeting("example.com/v1", "Fleet", noImage),
			wantWarnings: []string{"spec.targetRef: Fleet web has no pod template at spec.template" + untried},
		},
		"a kind that Berth may not read": {
			spread: targeting("example.com/v1", "Fleet", noImage), err: apierrors.NewForbidden(schema.GroupResource{Group: "example.com", Resource: "fleets"}, "web", nil),
			wantWarnings: []string{"spec.targetRef: Fleet web cannot be read: Berth may not get it; create a ClusterRole with get, list and watch on its resource and the label rbac.berth.dev/aggregate-to-workload-reader: \"true\""},
		},
		"a kind that there is not": {
			spread: targeting("example.com/v1", "Fleet", noImage), err: &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: "example.com", Kind: "Fleet"}},
			wantWarnings: []string{"spec.targetRef: Fleet web cannot be read: the API server has no kind Fleet in example.com/v1; install it or correct the target" + untried},
		},
		"an API server that does not answer": {
			spread: targeting("apps/v1", "Deployment", noImage), err: context.DeadlineExceeded,
			wantWarnings: []string{"spec.targetRef: Deployment web cannot be read: context deadline exceeded" + untried},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			builder := fake.NewClientBuilder().WithScheme(schemeOf(t))
			if tc.there != "" {
				builder.WithObjects(workloadOf(t, tc.there))
			}
			live := &apiServer{Reader: builder.Build(), err: tc.err}
			spread := changed(spreadOf("web", "web", 1), tc.spread)
			response := askLive(t, cacheOf(t), live, spread)
			var refused []string
			if response.Result != nil && response.Result.Details != nil {
				for _, cause := range response.Result.Details.Causes {
					refused = append(refused, cause.Field+": "+cause.Message)
				}
			}
			expectEachToContain(t, "errors", tc.wantErrors, refused)
			expectEachToContain(t, "warnings", tc.wantWarnings, response.Warnings)
			if diff := cmp.Diff([]string{groups[spread.Spec.TargetReference.Kind]}, live.asked); diff != "" {
				t.Errorf("asked for (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNodesAreReadFromTheCacheIfASubsetSelectsAny(t *testing.T) {
	node := func(name string, labels ...string) client.Object {
		return labelled(name, labels...)
	}
	selects := changed(spreadOf("web", "web", 1), selecting("disk", "pool"))
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
	tests := map[string]struct {
		spread *v1beta1.WorkloadSpread
		cache  client.Reader
		want   []string
	}{
		"those that are there are compared with": {selects, cacheOf(t, deployment, node("n1", "disk"), node("n2", "pool")), nil},
		"those that are not there are missed": {
			selects, cacheOf(t, deployment, node("n1", "disk")), []string{"spec.subsets[1].requiredNodeSelector: no node matches now"},
		},
		"a spread that selects none does not ask":            {spreadOf("web", "web", 1), noNodes{cacheOf(t, deployment)}, nil},
		"if they cannot be read, nothing is said about them": {selects, noNodes{cacheOf(t, deployment)}, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			response := ask(t, tc.cache, tc.spread, nil)
			if !response.Allowed {
				t.Errorf("refused: %v", response.Result)
			}
			expectEachToContain(t, "warnings", tc.want, response.Warnings)
		})
	}
}

// noNodes has no nodes, and a test that asks for them without need ends.
type noNodes struct{ client.Reader }

func (n noNodes) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if _, isNodes := list.(*corev1.NodeList); isNodes {
		return errors.New("the cache has no nodes")
	}
	return n.Reader.List(ctx, list, options...)
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
	tests := map[string]func(*v1beta1.WorkloadSpread){
		"a label":             func(s *v1beta1.WorkloadSpread) { s.Labels = map[string]string{"team": "shop"} },
		"a finalizer":         func(s *v1beta1.WorkloadSpread) { s.Finalizers = []string{"example.com/keep"} },
		"the status":          func(s *v1beta1.WorkloadSpread) { s.Status.ObservedGeneration = 7 },
		"the end of a spread": func(s *v1beta1.WorkloadSpread) { s.DeletionTimestamp = &metav1.Time{Time: s.CreationTimestamp.Time} },
		"a change at that end": func(s *v1beta1.WorkloadSpread) {
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
		spread := changed(invalid, func(spec *v1beta1.WorkloadSpreadSpec) { spec.Subsets[1].Name = "c" })
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

func TestASpreadIsAnnouncedIfItWillBeStored(t *testing.T) {
	known := spreadOf("known", "api", 1)
	tests := map[string]struct {
		spread, old *v1beta1.WorkloadSpread
		change      func(*admissionv1.AdmissionRequest)
		want        []types.UID
	}{
		"a new one":           {spread: spreadOf("web", "web", 1), want: []types.UID{"new"}},
		"not a changed one":   {spread: changed(spreadOf("web", "web", 1), func(spec *v1beta1.WorkloadSpreadSpec) { spec.Subsets[0].Name = "z" }), old: spreadOf("web", "web", 1)},
		"not an invalid one":  {spread: changed(spreadOf("web", "web", 1), broken)},
		"not a dry run":       {spread: spreadOf("web", "web", 1), change: func(r *admissionv1.AdmissionRequest) { r.DryRun = ptr.To(true) }},
		"not if there is one": {spread: spreadOf("known", "web", 1)},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var told []types.UID
			announce := func(_ context.Context, spread *v1beta1.WorkloadSpread) {
				if spread.Namespace != tc.spread.Namespace {
					t.Errorf("told of namespace %q", spread.Namespace)
				}
				told = append(told, spread.UID)
			}
			tc.spread.UID = "new"
			request := admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{UID: "review", Operation: admissionv1.Create, Object: raw(t, tc.spread)}}
			if tc.old != nil {
				request.Operation, request.OldObject = admissionv1.Update, raw(t, tc.old)
			}
			if tc.change != nil {
				tc.change(&request.AdmissionRequest)
			}
			admission.WithValidator(schemeOf(t), (&spreadValidator{reader: cacheOf(t, known), live: cacheOf(t), announce: announce}).reviews()).Handle(t.Context(), request)
			if diff := cmp.Diff(tc.want, told); diff != "" {
				t.Errorf("announced, -want +got:\n%s", diff)
			}
		})
	}
}

// TestTheClientIsNotAskedAboutAnUnknownKind: it would hold a lock meanwhile that the reads for other tenants need.
func TestTheClientIsNotAskedAboutAnUnknownKind(t *testing.T) {
	spread := spreadOf("web", "web", 1)
	spread.Spec.TargetReference = v1beta1.TargetReference{APIVersion: "example.com/v1", Kind: "MadeUp", Name: "web"}
	live := &apiServer{Reader: cacheOf(t)}
	warnings, err := (&spreadValidator{reader: cacheOf(t), live: live, kinds: servedKinds{}}).reviews().ValidateCreate(t.Context(), spread)
	if err != nil || len(live.asked) > 0 || !slices.ContainsFunc(warnings, func(w string) bool { return strings.Contains(w, "the API server has no kind MadeUp in example.com/v1") }) {
		t.Errorf("got %q and %v, and the client was asked for %v", warnings, err, live.asked)
	}
}
