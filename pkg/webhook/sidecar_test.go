package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	expiring "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
	"github.com/berth-project/berth/pkg/endpoint"
	"github.com/berth-project/berth/pkg/watches"
)

// shopNamespace is a cache with namespace shop only.
type shopNamespace struct{ client.Reader }

func (shopNamespace) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	into.SetName(key.Name)
	into.SetLabels(map[string]string{corev1.LabelMetadataName: key.Name, "logs": "true"})
	return nil
}

// sidecarsOf is the admission with so many SidecarSets, of which the first ones pick the pods of app web.
func sidecarsOf(tb testing.TB, sets, picking int) *sidecarAdmission {
	tb.Helper()
	s := &sidecarAdmission{cached: shopNamespace{}, clock: clock.RealClock{}, watched: watches.NewState(clock.RealClock{}), synced: func() bool { return true }, named: expiring.NewExpiring(), sets: map[string]*sidecarSet{}}
	for i := range sets {
		app := "web"
		if i >= picking {
			app = fmt.Sprint("other-", i)
		}
		s.seen(sidecarSetOf(tb, i, app, "1"))
	}
	if len(s.sets) != sets {
		tb.Fatalf("%d of %d sets are valid", len(s.sets), sets)
	}
	return s
}

func sidecarSetOf(tb testing.TB, i int, app, version string) *v1beta1.SidecarSet {
	tb.Helper()
	set := &v1beta1.SidecarSet{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("set-%02d", i), Generation: 1}}
	set.Status = v1beta1.SidecarSetStatus{ObservedGeneration: 1, LatestRevision: set.Name + "-0123456789"}
	if err := yaml.UnmarshalStrict(fmt.Appendf(nil, `
selector: {matchLabels: {app: %[2]s}}
namespaceSelector: {matchLabels: {logs: "true"}}
containers:
- name: log-%[1]d
  image: registry.example.com/log-agent:%[3]s
  args: [--to, logs.example.com]
  env: [{name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
  resources: {requests: {cpu: 10m, memory: 32Mi}, limits: {memory: 64Mi}}
  volumeMounts: [{name: log-%[1]d, mountPath: /var/log/web}]
  transferEnv: [{sourceContainerName: main, envName: TZ}]
volumes: [{name: log-%[1]d, emptyDir: {}}]
`, i, app, version), &set.Spec); err != nil {
		tb.Fatal(err)
	}
	return set
}

// podForSidecars is about as large as the pod of a Deployment when admission sees it.
func podForSidecars(tb testing.TB) *corev1.Pod {
	tb.Helper()
	return webPod(tb, `
serviceAccountName: web
tolerations: [{key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 300}, {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 300}]
volumes:
- {name: cache, emptyDir: {}}
- {name: config, configMap: {name: web, defaultMode: 420}}
- name: token
  projected: {defaultMode: 420, sources: [{serviceAccountToken: {expirationSeconds: 3607, path: token}}, {configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}}]}
containers:
- name: main
  image: registry.example.com/web:v1
  ports: [{containerPort: 8080, protocol: TCP}]
  env: [{name: TZ, value: Asia/Shanghai}, {name: MODE, value: production}, {name: POD, valueFrom: {fieldRef: {apiVersion: v1, fieldPath: metadata.name}}}]
  resources: {requests: {cpu: 500m, memory: 1Gi}, limits: {memory: 1Gi}}
  readinessProbe: {httpGet: {path: /ready, port: 8080, scheme: HTTP}, timeoutSeconds: 1, periodSeconds: 10, successThreshold: 1, failureThreshold: 3}
  volumeMounts: [{name: cache, mountPath: /cache}, {name: config, mountPath: /etc/web}, {name: token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}]
  terminationMessagePath: /dev/termination-log
  terminationMessagePolicy: File
  imagePullPolicy: IfNotPresent
`)
}

// TestManySetsPickAPod, and it gets the containers of each, in the version that was seen last.
func TestManySetsPickAPod(t *testing.T) {
	s := sidecarsOf(t, 50, 5)
	s.seen(sidecarSetOf(t, 3, "web", "2"))
	admitted, _ := send(t, &podReviews{answer: s.review, clock: clock.RealClock{}}, podForSidecars(t))
	var got []string
	for _, c := range admitted.Spec.Containers {
		got = append(got, c.Name+" "+c.Image[strings.LastIndex(c.Image, ":")+1:])
	}
	if want := []string{"log-0 1", "log-1 1", "log-2 1", "log-3 2", "log-4 1", "main v1"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := admitted.Annotations[v1beta1.InjectedListAnnotation]; got != "set-00,set-01,set-02,set-03,set-04" {
		t.Errorf("got %s", got)
	}
	if again, response := send(t, &podReviews{answer: s.review, clock: clock.RealClock{}}, admitted); response.Patch != nil {
		t.Errorf("the second call changes %s; the pod is %+v", response.Patch, again)
	}
}

// BenchmarkInjection measures the webhook's own time for a new pod, from the request to the answer, in turn with 0, 1 and 50 SidecarSets of which some pick the pod. Each iteration
// is one request to each of them. The metrics are the median and the 99th percentile in µs.
func BenchmarkInjection(b *testing.B) {
	content, err := json.Marshal(podForSidecars(b))
	if err != nil {
		b.Fatal(err)
	}
	body := `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","namespace":"shop","operation":"CREATE","object":` + string(content) + `}}`
	type world struct {
		sets, picking int
		handler       http.Handler
		took          []time.Duration
	}
	worlds := []*world{{sets: 0}, {sets: 1, picking: 1}, {sets: 50, picking: 0}, {sets: 50, picking: 1}, {sets: 50, picking: 5}, {sets: 50, picking: 50}}
	for _, w := range worlds {
		w.handler = &podReviews{answer: sidecarsOf(b, w.sets, w.picking).review, clock: clock.RealClock{}}
		var review admissionv1.AdmissionReview
		if err := json.Unmarshal(post(w.handler, body).Body.Bytes(), &review); err != nil || (review.Response.Patch != nil) != (w.picking > 0) || len(review.Response.Warnings) > 0 {
			b.Fatalf("answered %+v: %v", review.Response, err)
		}
	}
	for b.Loop() {
		for _, w := range worlds {
			recorder, request := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, endpoint.Sidecars, strings.NewReader(body))
			began := time.Now()
			w.handler.ServeHTTP(recorder, request)
			w.took = append(w.took, time.Since(began))
			if recorder.Code != http.StatusOK {
				b.Fatal(recorder.Body)
			}
		}
	}
	for _, w := range worlds {
		slices.Sort(w.took)
		for name, q := range map[string]int{"p50": 50, "p99": 99} {
			took := w.took[(len(w.took)-1)*q/100]
			b.ReportMetric(float64(took)/float64(time.Microsecond), fmt.Sprintf("µs/%s-of-%02d-sets-%02d-pick", name, w.sets, w.picking))
		}
	}
}

// A set with which the API server would refuse the pod is left out, with a warning. Other sets are given.
func TestNoPodBecomesInvalid(t *testing.T) {
	const hardened = "securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}"
	for name, tc := range map[string]struct{ container, pod, warning string }{
		"nothing wrong":                     {"image: a", "{containers: [{name: app, image: a}]}", ""},
		"a hot upgrade on the host network": {"image: a, ports: [{containerPort: 15001}], upgradeStrategy: {upgradeType: HotUpgrade, hotUpgradeEmptyImage: e}", "{hostNetwork: true, containers: [{name: app, image: a}]}", "hostPort"},
		"a port of the pod on the network":  {"image: a, ports: [{containerPort: 9100}]", "{hostNetwork: true, containers: [{name: app, image: a, ports: [{containerPort: 9100}]}]}", "hostPort"},
		"a Windows pod":                     {"image: a, " + hardened, "{os: {name: windows}, containers: [{name: app, image: a}]}", "windows"},
		"resources of the whole pod":        {"image: a, resources: {requests: {cpu: 500m}}", "{resources: {requests: {cpu: 1}, limits: {cpu: 1}}, containers: [{name: app, image: a, resources: {requests: {cpu: 800m}}}]}", "aggregate"},
		"a mount of a privileged container": {"image: a, shareVolumePolicy: {type: enabled}", "{volumes: [{name: v, hostPath: {path: /v}}], containers: [{name: app, image: a, securityContext: {privileged: true}, volumeMounts: [{name: v, mountPath: /v, mountPropagation: Bidirectional}]}]}", "privileged"},
		"a pod that is refused anyway":      {"image: a", "{hostNetwork: true, containers: [{name: app, image: a, ports: [{containerPort: 1}, {containerPort: 1}]}]}", ""},
	} {
		s := sidecarsOf(t, 1, 1) // a set that is always given
		set := &v1beta1.SidecarSet{ObjectMeta: metav1.ObjectMeta{Name: "tried", Generation: 1}}
		if err := yaml.UnmarshalStrict([]byte("{selector: {matchLabels: {app: web}}, containers: [{name: tried, "+tc.container+"}]}"), &set.Spec); err != nil {
			t.Fatal(err)
		}
		if _, err := setReviews(s.policies).ValidateCreate(t.Context(), set); err != nil {
			t.Fatalf("%s: the set itself is refused: %v", name, err)
		}
		s.seen(set)
		pod := webPod(t, tc.pod)
		admitted, response := send(t, &podReviews{answer: s.review, clock: clock.RealClock{}}, pod)
		var got []string
		for _, c := range admitted.Spec.Containers {
			got = append(got, c.Name)
		}
		if all := strings.Join(got, " "); !strings.Contains(all, "log-0") || strings.Contains(all, "tried") != (tc.warning == "") {
			t.Errorf("%s: got %s", name, all)
		}
		if all := strings.Join(response.Warnings, " "); !strings.Contains(all, tc.warning) || (all == "") != (tc.warning == "") {
			t.Errorf("%s: warnings %q", name, all)
		}
	}
}

// TestAReplicaIsReadyOnceItKnowsTheSidecarSets: the API server asks replicas that are ready, and one that does not know the sets gives pods nothing.
func TestAReplicaIsReadyOnceItKnowsTheSidecarSets(t *testing.T) {
	var full bool
	s := &sidecarAdmission{clock: clock.RealClock{}, watched: watches.NewState(clock.RealClock{}), synced: func() bool { return full }, named: expiring.NewExpiring(), sets: map[string]*sidecarSet{}}
	for _, full = range []bool{false, true} {
		answers := s.review(t.Context(), &podRequest{Namespace: "shop", Object: podObject{raw: []byte(`{}`)}})
		if err := s.ready(nil); (err == nil) != full || (answers.outcome == failed) == full {
			t.Errorf("cache full %t: ready %v, a pod is %s", full, err, answers.outcome)
		}
	}
}

// storedSets is an API server with these sets. It answers nothing if it has none.
type storedSets struct {
	client.Reader
	sets []v1beta1.SidecarSet
}

func (s storedSets) List(_ context.Context, into client.ObjectList, _ ...client.ListOption) error {
	if s.sets == nil {
		return context.DeadlineExceeded
	}
	into.(*v1beta1.SidecarSetList).Items = s.sets
	return nil
}

// TestAPodGetsASetThatNoWatchShows: the set is made while the watch of sets is interrupted. The pod would lack its container for life.
func TestAPodGetsASetThatNoWatchShows(t *testing.T) {
	now := clocktesting.NewFakePassiveClock(time.Unix(1_700_000_000, 0))
	s := sidecarsOf(t, 1, 1)
	s.watched = watches.NewState(now)
	stored := []v1beta1.SidecarSet{*sidecarSetOf(t, 0, "web", "1"), *sidecarSetOf(t, 1, "web", "1")}
	expect := func(when, want, warning string) {
		t.Helper()
		admitted, response := send(t, &podReviews{answer: s.review, clock: clock.RealClock{}}, podForSidecars(t))
		if got := admitted.Annotations[v1beta1.InjectedListAnnotation]; got != want {
			t.Errorf("%s the pod gets %q, want %q", when, got, want)
		}
		if got := strings.Join(response.Warnings, " "); !strings.Contains(got, warning) || (got == "") != (warning == "") {
			t.Errorf("%s the warnings are %q, want %q", when, got, warning)
		}
	}
	s.live = storedSets{sets: stored}
	expect("before the first watch", "set-00", "")
	s.watched.Tell(true)
	expect("while the watch is open", "set-00", "")
	s.watched.Tell(false)
	expect("after its end", "set-00,set-01", "")
	s.live = storedSets{}
	expect("if the API server does not answer", "set-00", "may lack containers of a new SidecarSet")
	s.live = storedSets{sets: stored[1:]}
	expect("after the deletion of a set", "set-01", "")
	s.watched.Tell(true)
	expect("before the new watch has caught up", "set-01", "")
	now.SetTime(now.Now().Add(watches.CatchUp))
	expect("after that", "set-00", "")
}
