package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	admissionv1 "k8s.io/api/admission/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/autoscaler"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/endpoint"
	"github.com/berth-project/berth/pkg/lineage"
	"github.com/berth-project/berth/pkg/workload"
)

// serve is the webhook for pods over a cache of objects.
func serve(tb testing.TB, objects ...client.Object) http.Handler {
	tb.Helper()
	return &podReviews{answer: (&podAdmission{owners: ownersIn(tb, objects...)}).review, clock: clock.RealClock{}}
}

func ownersIn(tb testing.TB, objects ...client.Object) *lineage.Lineage {
	tb.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			tb.Fatal(err)
		}
	}
	c := withControllers(fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithIndex(&v1beta1.WorkloadSpread{}, lineage.TargetField, lineage.TargetKeyOf)).Build()
	return lineage.Over(c, lineage.NewKinds(c.RESTMapper(), c, clock.RealClock{}), clock.RealClock{})
}

// withControllers indexes built-in workloads by their controllers.
func withControllers(build *fake.ClientBuilder) *fake.ClientBuilder {
	for _, kind := range workload.Watched() {
		build = build.WithIndex(kind.NewObject(), lineage.ControllerField, func(o client.Object) []string { return []string{string(workload.ControllerUID(o))} })
	}
	return build
}

// send reviews the creation of a pod and returns the pod as it is admitted, with the answer.
func send(tb testing.TB, handler http.Handler, pod *corev1.Pod, change ...func(*admissionv1.AdmissionRequest)) (*corev1.Pod, *admissionv1.AdmissionResponse) {
	tb.Helper()
	content, err := json.Marshal(pod)
	if err != nil {
		tb.Fatal(err)
	}
	request := &admissionv1.AdmissionRequest{UID: "review", Operation: admissionv1.Create, Namespace: "shop", Object: runtime.RawExtension{Raw: content}}
	for _, c := range change {
		c(request)
	}
	body, err := json.Marshal(&admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: request})
	if err != nil {
		tb.Fatal(err)
	}
	recorder := post(handler, string(body))
	if recorder.Code != http.StatusOK {
		tb.Fatalf("answered %d %s", recorder.Code, recorder.Body)
	}
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(recorder.Body.Bytes(), &review); err != nil {
		tb.Fatal(err)
	}
	response := review.Response
	if review.Kind != "AdmissionReview" || review.APIVersion != "admission.k8s.io/v1" || response.UID != "review" || !response.Allowed {
		tb.Fatalf("answered %s", recorder.Body)
	}
	if (response.Patch == nil) != (response.PatchType == nil) {
		tb.Fatalf("patch %q of type %v", response.Patch, response.PatchType)
	}
	if response.Patch != nil {
		patch, err := jsonpatch.DecodePatch(response.Patch)
		if err != nil {
			tb.Fatal(err)
		}
		if content, err = patch.Apply(content); err != nil {
			tb.Fatalf("patch %s: %v", response.Patch, err)
		}
	}
	admitted := &corev1.Pod{}
	if err := json.Unmarshal(content, admitted); err != nil {
		tb.Fatal(err)
	}
	return admitted, response
}

func post(handler http.Handler, body string) *httptest.ResponseRecorder {
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodPost, endpoint.Pods, strings.NewReader(body)))
	return recorder
}

// webPod is a pod of ReplicaSet web-1 of Deployment web, with YAML for its spec.
func webPod(tb testing.TB, spec string) *corev1.Pod {
	tb.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "web-1-", Namespace: "shop", Labels: map[string]string{"app": "web"}}}
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-1", UID: "web-1", Controller: ptr.To(true)}}
	pod.Spec.SchedulerName = corev1.DefaultSchedulerName
	if err := yaml.UnmarshalStrict([]byte(spec), &pod.Spec); err != nil {
		tb.Fatal(err)
	}
	return pod
}

// webObjects are Deployment web with its ReplicaSet, and a spread for it.
func webObjects(tb testing.TB, spec string) []client.Object {
	tb.Helper()
	spread := spreadOf("web", "web", 1)
	spread.UID = "spread-web"
	spread.Spec = v1beta1.WorkloadSpreadSpec{}
	if err := yaml.UnmarshalStrict([]byte(spec), &spread.Spec); err != nil {
		tb.Fatal(err)
	}
	spread.Spec.TargetReference = v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}
	replicaSet := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1", UID: "web-1"}}
	replicaSet.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "web", Controller: ptr.To(true)}}
	return []client.Object{spread, replicaSet, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "web"}}}
}

const twoPools = `
subsets:
- {name: a, maxReplicas: 3, requiredNodeSelector: {matchExpressions: [{key: pool, operator: In, values: [a]}]}}
- {name: b, requiredNodeSelector: {matchExpressions: [{key: pool, operator: In, values: [b]}]}, tolerations: [{key: spot, operator: Exists}]}`

func TestAPodOfASpreadIsMadeFitForIt(t *testing.T) {
	handler := serve(t, webObjects(t, twoPools)...)
	const (
		terms = `{"nodeSelectorTerms":[{"matchExpressions":[{"key":"pool","operator":"In","values":["a"]}]},{"matchExpressions":[{"key":"pool","operator":"In","values":["b"]}]}]}`
		spot  = `{"key":"spot","operator":"Exists"}`
		name  = `{"op":"replace","path":"/spec/schedulerName","value":"berth-scheduler"}`
		value = `"{\"tolerations\":[{\"key\":\"spot\",\"operator\":\"Exists\"}],\"terms\":[{\"matchExpressions\":[{\"key\":\"pool\",\"operator\":\"In\",\"values\":[\"a\"]}]},{\"matchExpressions\":[{\"key\":\"pool\",\"operator\":\"In\",\"values\":[\"b\"]}]}]}"`
	)
	tests := map[string]struct {
		spec string
		meta func(*corev1.Pod)
		want []string
	}{
		"what it has nothing of is set": {``, nil, []string{
			name, `{"op":"add","path":"/metadata/annotations","value":{"berth.dev/constraints":` + value + `}}`,
			`{"op":"add","path":"/spec/tolerations","value":[` + spot + `]}`,
			`{"op":"add","path":"/spec/affinity","value":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":` + terms + `}}}`,
		}},
		"what it has is added to": {
			`{tolerations: [{key: x, operator: Exists}], affinity: {podAntiAffinity: {}, nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: []}}}`,
			func(p *corev1.Pod) { p.Annotations = map[string]string{"other": "x"} },
			[]string{
				name, `{"op":"add","path":"/metadata/annotations/berth.dev~1constraints","value":` + value + `}`,
				`{"op":"add","path":"/spec/tolerations/1","value":` + spot + `}`,
				`{"op":"add","path":"/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution","value":` + terms + `}`,
			},
		},
		"affinity to pods is left alone": {`{affinity: {podAntiAffinity: {}}}`, nil, []string{
			name, `{"op":"add","path":"/metadata/annotations","value":{"berth.dev/constraints":` + value + `}}`,
			`{"op":"add","path":"/spec/tolerations","value":[` + spot + `]}`,
			`{"op":"add","path":"/spec/affinity/nodeAffinity","value":{"requiredDuringSchedulingIgnoredDuringExecution":` + terms + `}}`,
		}},
		"a pod that names Berth's scheduler gets the rest": {`{schedulerName: berth-scheduler}`, nil, []string{
			`{"op":"add","path":"/metadata/annotations","value":{"berth.dev/constraints":` + value + `}}`,
			`{"op":"add","path":"/spec/tolerations","value":[` + spot + `]}`,
			`{"op":"add","path":"/spec/affinity","value":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":` + terms + `}}}`,
		}},
	}
	for rule, tc := range tests {
		t.Run(rule, func(t *testing.T) {
			pod := webPod(t, tc.spec)
			if tc.meta != nil {
				tc.meta(pod)
			}
			admitted, response := send(t, handler, pod)
			var got []json.RawMessage
			if err := json.Unmarshal(response.Patch, &got); err != nil {
				t.Fatal(err)
			}
			var texts []string
			for _, operation := range got {
				texts = append(texts, string(operation))
			}
			slices.Sort(texts)
			if diff := cmp.Diff(slices.Sorted(slices.Values(tc.want)), texts); diff != "" {
				t.Errorf("operations, in any order (-want +got):\n%s", diff)
			}
			if len(response.Warnings) > 0 {
				t.Errorf("warnings %q", response.Warnings)
			}
			if _, again := send(t, handler, admitted); again.Patch != nil {
				t.Errorf("asked again, it answers %s", again.Patch)
			}
		})
	}
}

func TestAPodOfAGatedSpreadGetsAGateAndNoTerms(t *testing.T) {
	beside, err := autoscaler.Setup(t.Context(), nil, "present")
	if err != nil {
		t.Fatal(err)
	}
	gated := []string{"berth.dev/subset"}
	for name, tc := range map[string]struct {
		binding, spec string
		autoscaler    *autoscaler.Detector
		want          []string
	}{
		"a gate":                               {binding: "Gated", want: gated},
		"beside that of somebody else":         {binding: "Gated", spec: "{schedulingGates: [{name: example.com/queue}]}", want: []string{"example.com/queue", "berth.dev/subset"}},
		"once":                                 {binding: "Gated", spec: "{schedulingGates: [{name: berth.dev/subset}]}", want: gated},
		"for a pod with its own terms":         {binding: "Gated", spec: "{affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: x, operator: Exists}]}]}}}}", want: gated},
		"for one with the scheduler's name":    {binding: "Gated", spec: "{schedulerName: berth-scheduler}", want: gated},
		"Auto, beside a node autoscaler":       {binding: "Auto", autoscaler: beside, want: gated},
		"Auto, elsewhere":                      {binding: "Auto"},
		"Late stays late beside an autoscaler": {binding: "Late", autoscaler: beside},
	} {
		t.Run(name, func(t *testing.T) {
			owners := ownersIn(t, webObjects(t, twoPools+"\nscheduleStrategy: {binding: "+tc.binding+"}")...)
			handler := &podReviews{answer: (&podAdmission{owners: owners, autoscaler: tc.autoscaler}).review, clock: clock.RealClock{}}
			pod := webPod(t, tc.spec)
			admitted, _ := send(t, handler, pod)
			var gates []string
			for _, gate := range admitted.Spec.SchedulingGates {
				gates = append(gates, gate.Name)
			}
			if diff := cmp.Diff(tc.want, gates); diff != "" {
				t.Errorf("gates (-want +got):\n%s", diff)
			}
			if isGated, hasTerms := tc.want != nil, !cmp.Equal(pod.Spec.Affinity, admitted.Spec.Affinity); isGated == hasTerms {
				t.Errorf("gates %v and affinity %v, want exactly one of Berth's gate and the terms of the subsets", gates, admitted.Spec.Affinity)
			}
			if admitted.Spec.SchedulerName != v1beta1.SchedulerName || len(admitted.Spec.Tolerations) != 1 {
				t.Errorf("scheduler %q, tolerations %v", admitted.Spec.SchedulerName, admitted.Spec.Tolerations)
			}
			if _, again := send(t, handler, admitted); again.Patch != nil {
				t.Errorf("asked again, it answers %s", again.Patch)
			}
		})
	}
}

func TestPodsThatAreLeftAsTheyAre(t *testing.T) {
	ownedBy := func(apiVersion, kind string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.OwnerReferences[0].APIVersion, p.OwnerReferences[0].Kind = apiVersion, kind }
	}
	tests := map[string]struct {
		spread string
		pod    func(*corev1.Pod)
		change func(*admissionv1.AdmissionRequest)
	}{
		"a pod of another scheduler":              {twoPools, func(p *corev1.Pod) { p.Spec.SchedulerName = "volcano" }, nil},
		"a pod of another scheduler, early":       {twoPools + "\nscheduleStrategy: {binding: Early}", func(p *corev1.Pod) { p.Spec.SchedulerName = "volcano" }, nil},
		"a pod without owner":                     {twoPools, func(p *corev1.Pod) { p.OwnerReferences = nil }, nil},
		"a pod whose owner is not its controller": {twoPools, func(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil }, nil},
		"a pod of a DaemonSet":                    {twoPools, ownedBy("apps/v1", "DaemonSet"), nil},
		"a mirror pod":                            {twoPools, ownedBy("v1", "Node"), nil},
		"a pod that the spread does not select":   {twoPools + "\ntargetFilter: {selector: {matchLabels: {role: worker}}}", nil, nil},
		"a pod in a namespace without spreads":    {twoPools, nil, func(r *admissionv1.AdmissionRequest) { r.Namespace = "farm" }},
		"a pod that is not being created":         {twoPools, nil, func(r *admissionv1.AdmissionRequest) { r.Operation = admissionv1.Update }},
	}
	for rule, tc := range tests {
		t.Run(rule, func(t *testing.T) {
			pod := webPod(t, "")
			if tc.pod != nil {
				tc.pod(pod)
			}
			change := tc.change
			if change == nil {
				change = func(*admissionv1.AdmissionRequest) {}
			}
			if _, response := send(t, serve(t, webObjects(t, tc.spread)...), pod, change); response.Patch != nil || response.Warnings != nil {
				t.Errorf("patch %s, warnings %q", response.Patch, response.Warnings)
			}
		})
	}
}

// unknowing answers what is asked about owners with one answer.
type unknowing struct {
	spread  *lineage.Spread
	missing *workload.Owner
	err     error
	panics  bool
}

func (u unknowing) AwaitAnnounced(context.Context, string) {}

func (u unknowing) MayHaveSpreads(context.Context, string) (bool, error) { return true, nil }

func (u unknowing) AwaitSpreadOf(context.Context, string, *workload.Owner, map[string]string) (*lineage.Spread, *workload.Owner, error) {
	if u.panics {
		panic("a bug")
	}
	return u.spread, u.missing, u.err
}

func TestWhatIsUnknownIsAdmittedAsItIsWithAWarning(t *testing.T) {
	replicaSet := &workload.Owner{Kind: lineage.ReplicaSet, Name: "web-1"}
	tests := map[string]struct {
		owners    unknowing
		scheduler string
		want      string
	}{
		"an owner that does not arrive":              {unknowing{missing: replicaSet}, "", "Berth: ReplicaSet web-1 is not known yet; if a WorkloadSpread divides the pod, default-scheduler places the pod"},
		"that of a pod which names our scheduler":    {unknowing{missing: replicaSet}, v1beta1.SchedulerName, "Berth: ReplicaSet web-1 is not known yet; if a WorkloadSpread divides the pod, the scheduler holds the pod until then"},
		"a cache that cannot be read":                {unknowing{err: errors.New("the cache is broken")}, "", "Berth admits the pod as it is: the cache is broken"},
		"but for a spread that is invalid it is not": {unknowing{spread: &lineage.Spread{Name: "web"}}, "", "Berth: WorkloadSpread web is invalid; the scheduler holds the pod until the spread is corrected; see condition Ready of the spread"},
	}
	for rule, tc := range tests {
		t.Run(rule, func(t *testing.T) {
			handler := &podReviews{answer: (&podAdmission{owners: tc.owners}).review, clock: clock.RealClock{}}
			pod := webPod(t, "")
			if tc.scheduler != "" {
				pod.Spec.SchedulerName = tc.scheduler
			}
			admitted, response := send(t, handler, pod)
			if diff := cmp.Diff([]string{tc.want}, response.Warnings); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
			if tc.owners.spread != nil { // an invalid spread keeps its pods, and adds nothing else
				pod.Spec.SchedulerName = v1beta1.SchedulerName
			}
			if diff := cmp.Diff(pod, admitted); diff != "" {
				t.Errorf("pod (-created +admitted):\n%s", diff)
			}
		})
	}
}

func TestWhereAdmissionIsRequiredWhatIsUnknownIsAFailedCall(t *testing.T) {
	pod, err := json.Marshal(webPod(t, ""))
	if err != nil {
		t.Fatal(err)
	}
	for rule, tc := range map[string]struct {
		owners unknowing
		want   int
	}{
		"an owner that does not arrive": {unknowing{missing: &workload.Owner{Kind: lineage.ReplicaSet, Name: "web-1"}}, http.StatusServiceUnavailable},
		"a cache that cannot be read":   {unknowing{err: errors.New("the cache is broken")}, http.StatusServiceUnavailable},
		"but no pod of no spread":       {unknowing{}, http.StatusOK},
		"and none of an invalid spread": {unknowing{spread: &lineage.Spread{Name: "web"}}, http.StatusOK},
	} {
		t.Run(rule, func(t *testing.T) {
			handler := &podReviews{answer: (&podAdmission{owners: tc.owners}).review, clock: clock.RealClock{}, required: true}
			if got := post(handler, `{"request":{"operation":"CREATE","object":`+string(pod)+`}}`); got.Code != tc.want {
				t.Errorf("answered %d %s, want %d", got.Code, got.Body, tc.want)
			}
		})
	}
}

func TestAFailureToAnswerIsAFailedCallAndNoRefusal(t *testing.T) {
	handler := &podReviews{answer: (&podAdmission{owners: unknowing{panics: true}}).review, clock: clock.RealClock{}}
	pod, err := json.Marshal(webPod(t, ""))
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		body string
		want int
	}{
		"a panic":                  {`{"request":{"operation":"CREATE","object":` + string(pod) + `}}`, http.StatusInternalServerError},
		"no review":                {`no review`, http.StatusBadRequest},
		"a review of nothing":      {`{}`, http.StatusBadRequest},
		"nothing":                  {``, http.StatusBadRequest},
		"more than a pod can be":   {`{"request":"` + strings.Repeat("x", maxReview) + `"}`, http.StatusBadRequest},
		"a pod of another shape":   {`{"request":{"operation":"CREATE","object":{"spec":[]}}}`, http.StatusBadRequest},
		"a pod with odd labels":    {`{"request":{"operation":"CREATE","object":{"metadata":{"labels":{"a":1}}}}}`, http.StatusBadRequest},
		"an object that is no pod": {`{"request":{"operation":"CREATE","object":null}}`, http.StatusOK},
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	for rule, tc := range tests {
		t.Run(rule, func(t *testing.T) {
			response, err := http.Post(server.URL+endpoint.Pods, "application/json", strings.NewReader(tc.body))
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			text, err := io.ReadAll(response.Body)
			if err != nil {
				t.Fatal(err)
			}
			if response.StatusCode != tc.want {
				t.Errorf("answered %s: %s", response.Status, text)
			}
		})
	}
}

// randomPod has fields of all sorts that a patch must not harm.
func randomPod(tb testing.TB, r *rand.Rand) *corev1.Pod {
	tb.Helper()
	pod := webPod(tb, "")
	maybe := func(do func()) {
		if r.IntN(2) == 0 {
			do()
		}
	}
	term := func() corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "pool", Operator: "In", Values: []string{string(rune('a' + r.IntN(3)))}}}}
	}
	maybe(func() { pod.Annotations = map[string]string{"other": "x"} })
	for range r.IntN(3) {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{Key: []string{"spot", "x"}[r.IntN(2)], Operator: "Exists"})
	}
	maybe(func() {
		pod.Spec.Affinity = &corev1.Affinity{}
		maybe(func() { pod.Spec.Affinity.PodAffinity = &corev1.PodAffinity{} })
		maybe(func() {
			pod.Spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
			maybe(func() {
				pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{term()}}
			})
		})
	})
	return pod
}

func TestThePatchOfRandomPods(t *testing.T) {
	before, after := serve(t, webObjects(t, twoPools)...), serve(t, webObjects(t, `subsets: [{name: c, tolerations: [{key: x, operator: Exists}]}]`)...)
	for seed := range uint64(300) {
		pod := randomPod(t, rand.New(rand.NewPCG(seed, 1)))
		direct, _ := send(t, after, pod)
		first, _ := send(t, before, pod)
		second, _ := send(t, after, first)
		// An object that is left empty where there was none says the same.
		empty := cmp.Transformer("empty", func(a *corev1.Affinity) corev1.Affinity {
			if a == nil {
				return corev1.Affinity{}
			}
			return *a
		})
		emptyNode := cmp.Transformer("emptyNode", func(a *corev1.NodeAffinity) corev1.NodeAffinity {
			if a == nil {
				return corev1.NodeAffinity{}
			}
			return *a
		})
		if diff := cmp.Diff(direct, second, empty, emptyNode, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("seed %d: a spread that changed between two calls leaves a trace (-direct +second):\n%s", seed, diff)
		}
		if _, again := send(t, before, first); again.Patch != nil {
			t.Fatalf("seed %d: asked again, it answers %s", seed, again.Patch)
		}
	}
}

// FuzzReview: no body makes the webhook panic, and every answer is an admission or an HTTP error.
func FuzzReview(f *testing.F) {
	pod, err := json.Marshal(webPod(f, `{tolerations: [{key: x}], affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{}]}}}}`))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(`{"request":{"uid":"1","namespace":"shop","operation":"CREATE","object":` + string(pod) + `}}`)
	f.Add(`{"request":{"object":{"metadata":{"annotations":{"berth.dev/constraints":"{}"}}}}}`)
	handler := serve(f, webObjects(f, twoPools)...)
	f.Fuzz(func(t *testing.T, body string) {
		recorder := post(handler, body)
		if recorder.Code == http.StatusInternalServerError {
			t.Fatalf("answered %s", recorder.Body)
		}
		if recorder.Code != http.StatusOK {
			return
		}
		var review admissionv1.AdmissionReview
		if err := json.Unmarshal(recorder.Body.Bytes(), &review); err != nil || review.Response == nil || !review.Response.Allowed {
			t.Fatalf("answered %s: %v", recorder.Body, err)
		}
	})
}

func BenchmarkReview(b *testing.B) {
	spread := &v1beta1.WorkloadSpread{}
	if err := yaml.Unmarshal([]byte(twoPools+"\ntargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}"), &spread.Spec); err != nil {
		b.Fatal(err)
	}
	owners := unknowing{spread: lineage.Compile(spread)}
	handler := &podReviews{answer: (&podAdmission{owners: owners}).review, clock: clock.RealClock{}}
	content, err := json.Marshal(webPod(b, `{containers: [{name: main, image: registry.example.com/app:v1}], tolerations: [{key: node.kubernetes.io/not-ready, operator: Exists}]}`))
	if err != nil {
		b.Fatal(err)
	}
	body := `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","namespace":"shop","operation":"CREATE","object":` + string(content) + `}}`
	b.ReportAllocs()
	for b.Loop() {
		if recorder := post(handler, body); recorder.Code != http.StatusOK {
			b.Fatal(recorder.Body)
		}
	}
}

// late is told of its spreads while a pod waits for them.
type late struct {
	*lineage.Lineage
	arrived bool
}

func (l *late) AwaitAnnounced(context.Context, string) { l.arrived = true }

func (l *late) MayHaveSpreads(ctx context.Context, namespace string) (bool, error) {
	if !l.arrived {
		return false, nil
	}
	return l.Lineage.MayHaveSpreads(ctx, namespace)
}

func TestAPodWaitsForASpreadThatIsAnnounced(t *testing.T) {
	handler := &podReviews{answer: (&podAdmission{owners: &late{Lineage: ownersIn(t, webObjects(t, twoPools)...)}}).review, clock: clock.RealClock{}}
	if admitted, _ := send(t, handler, webPod(t, "")); admitted.Spec.SchedulerName != v1beta1.SchedulerName {
		t.Errorf("the pod goes to %s", admitted.Spec.SchedulerName)
	}
}
