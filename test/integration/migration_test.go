package integration

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/manifests"
	"github.com/berth-project/berth/pkg/cli"
	"github.com/berth-project/berth/pkg/conversion"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	policyv1beta1 "github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/endpoint"
	"github.com/berth-project/berth/test/harness"
)

// The workload of the migration. Both products must keep these numbers at any time.
const (
	migratedQuota        = 3 // of subset a, for each revision
	migratedMinAvailable = 5
	migratedPair         = `
apiVersion: apps.kruise.io/v1alpha1
kind: WorkloadSpread
metadata: {name: web}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  subsets:
  - {name: a, maxReplicas: 3, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [a]}]}}
  - {name: b, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [b]}]}}
---
apiVersion: policy.kruise.io/v1alpha1
kind: PodUnavailableBudget
metadata: {name: web}
spec: {selector: {matchLabels: {app: web}}, minAvailable: 5}
`
	kruise = "kruise-manager"
)

// standIn does the writes of OpenKruise's manager that matter to a migration, as its notes and sources describe them: it gives pods their subset at admission
// and records that in the status, keeps the status of spreads and budgets, refuses evictions and deletions, converts, writes its own converter into every
// definition whose first version it knows, and writes its webhooks from a template. It obeys its feature gates in its Deployment.
type standIn struct {
	cluster *harness.Cluster
	ns      string
	server  *httptest.Server
	// converter is how the API server reaches the conversion of this program.
	converter *apiextensionsv1.WebhookClientConfig

	mu sync.Mutex
	// creating are the subsets of pods that were admitted a moment ago, by revision. approved are pods that may go.
	creating []creation
	approved map[types.UID]bool
	enabled  bool
}

type creation struct {
	revision, subset string
	at               time.Time
}

func startStandIn(t *testing.T, cluster *harness.Cluster, ns string) *standIn {
	t.Helper()
	s := &standIn{cluster: cluster, ns: ns, approved: map[types.UID]bool{}, enabled: true}
	mux := http.NewServeMux()
	mux.Handle(endpoint.Conversion, conversion.Handler())
	mux.HandleFunc("/mutate-pod", s.review(s.mutate))
	mux.HandleFunc("/validate-pod", s.review(s.validate))
	mux.HandleFunc("/validate-apps-kruise-io-workloadspread", s.review(func(*admissionv1.AdmissionRequest) ([]map[string]any, string) {
		if !s.isEnabled() {
			return nil, "feature-gate WorkloadSpread is not enabled"
		}
		return nil, ""
	}))
	s.server = httptest.NewTLSServer(mux)
	t.Cleanup(s.server.Close)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.server.Certificate().Raw})
	url := s.server.URL + endpoint.Conversion
	s.converter = &apiextensionsv1.WebhookClientConfig{URL: &url, CABundle: authority}
	return s
}

func (s *standIn) isEnabled() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.enabled }

// review answers one call of the API server: with a JSON patch, or with a refusal.
func (s *standIn) review(judge func(*admissionv1.AdmissionRequest) (patch []map[string]any, refusal string)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = json.Unmarshal(body, &review)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		patch, refusal := judge(review.Request)
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: refusal == ""}
		if refusal != "" {
			review.Response.Result = &metav1.Status{Code: http.StatusForbidden, Message: refusal}
		}
		if patch != nil {
			kind := admissionv1.PatchTypeJSONPatch
			review.Response.PatchType = &kind
			review.Response.Patch, _ = json.Marshal(patch) // strings and maps
		}
		review.Request = nil
		_ = json.NewEncoder(w).Encode(review)
	}
}

// pods are those of the workload. Only the caller that holds the mutex decides by them.
func (s *standIn) pods(ctx context.Context) ([]corev1.Pod, error) {
	list, err := s.cluster.Client.CoreV1().Pods(s.ns).List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// subsetOf is the subset of a pod: that of its node, or the one that it was given.
func subsetOf(pod *corev1.Pod) string {
	if pod.Spec.NodeName != "" {
		return strings.TrimPrefix(pod.Spec.NodeName, "node-")
	}
	var record v1beta1.MatchedSubset
	_ = json.Unmarshal([]byte(pod.Annotations[v1beta1.MatchedAnnotation]), &record) // none is no subset
	return record.Subset
}

func (s *standIn) mutate(request *admissionv1.AdmissionRequest) ([]map[string]any, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var pod corev1.Pod
	if err := json.Unmarshal(request.Object.Raw, &pod); err != nil || !s.enabled || request.Namespace != s.ns || pod.Labels["app"] != "web" {
		return nil, ""
	}
	pods, err := s.pods(context.Background())
	if err != nil {
		return nil, err.Error()
	}
	revision, kept := pod.Labels["pod-template-hash"], 0
	for i := range pods {
		if pods[i].DeletionTimestamp == nil && pods[i].Labels["pod-template-hash"] == revision && subsetOf(&pods[i]) == "a" {
			kept++
		}
	}
	// A pod counts twice for a moment, when it was created since. The manager drops it from its map when it sees the pod.
	s.creating = slices.DeleteFunc(s.creating, func(c creation) bool { return time.Since(c.at) > 2*time.Second })
	for _, c := range s.creating {
		if c.revision == revision && c.subset == "a" {
			kept++
		}
	}
	subset := "b"
	if kept < migratedQuota {
		subset = "a"
	}
	s.creating = append(s.creating, creation{revision, subset, time.Now()})
	s.writeStatus(v1beta1.Resource.Resource, map[string]any{"observedGeneration": 1, "subsetStatuses": []any{
		map[string]any{"name": subset, "replicas": kept, "missingReplicas": max(0, migratedQuota-kept), "creatingPods": map[string]any{"pod-" + fmt.Sprint(len(s.creating)): time.Now().UTC().Format(time.RFC3339)}}}})
	record, _ := json.Marshal(map[string]string{"name": "web", "subset": subset, "uid": string(request.UID)})
	patch := []map[string]any{
		{"op": "add", "path": "/spec/affinity", "value": map[string]any{"nodeAffinity": map[string]any{"requiredDuringSchedulingIgnoredDuringExecution": map[string]any{
			"nodeSelectorTerms": []any{map[string]any{"matchExpressions": []any{map[string]any{"key": "pool", "operator": "In", "values": []any{subset}}}}}}}}},
	}
	if pod.Annotations == nil {
		patch = append(patch, map[string]any{"op": "add", "path": "/metadata/annotations", "value": map[string]any{}})
	}
	return append(patch, map[string]any{"op": "add", "path": "/metadata/annotations/apps.kruise.io~1matched-workloadspread", "value": string(record)}), ""
}

func isAvailable(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodRunning && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func (s *standIn) validate(request *admissionv1.AdmissionRequest) ([]map[string]any, string) {
	if request.Namespace != s.ns || request.SubResource != "eviction" && request.Operation != admissionv1.Delete {
		return nil, ""
	}
	return nil, s.refusal(request.Name)
}

// refusal says why a pod may not become unavailable now. It is empty if it may.
func (s *standIn) refusal(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.enabled {
		return ""
	}
	pods, err := s.pods(context.Background())
	if err != nil {
		return err.Error()
	}
	var available int
	var leaving *corev1.Pod
	for i := range pods {
		if isAvailable(&pods[i]) && !s.approved[pods[i].UID] {
			available++
		}
		if pods[i].Name == name {
			leaving = &pods[i]
		}
	}
	if leaving == nil || !isAvailable(leaving) || s.approved[leaving.UID] {
		return ""
	}
	s.writeStatus(policyv1beta1.Resource.Resource, map[string]any{"disruptedPods": map[string]any{leaving.Name: time.Now().UTC().Format(time.RFC3339)}, "unavailableAllowed": available - migratedMinAvailable})
	if available <= migratedMinAvailable {
		return "pub unavailable allowed is negative"
	}
	s.approved[leaving.UID] = true
	time.AfterFunc(2*time.Second, func() { s.mu.Lock(); defer s.mu.Unlock(); delete(s.approved, leaving.UID) })
	return ""
}

// update does what CloneSet does to update a pod in place: it asks the budget, takes the pod out of service, and puts it back. Its writes of the status are
// those that Berth checks. It returns whether it was allowed.
func (s *standIn) update(ctx context.Context, pod *corev1.Pod) (bool, error) {
	if s.refusal(pod.Name) != "" {
		return false, nil
	}
	ready := func(is corev1.ConditionStatus) error {
		patch := fmt.Sprintf(`{"metadata":{"uid":%q},"status":{"conditions":[{"type":"Ready","status":%q}]}}`, pod.UID, is)
		_, err := s.cluster.Client.CoreV1().Pods(s.ns).Patch(ctx, pod.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: kruise}, "status")
		return err
	}
	if err := ready(corev1.ConditionFalse); err != nil {
		return false, err
	}
	return true, ready(corev1.ConditionTrue)
}

// writeStatus does not look at what stands there, as a manager does whose cache is late.
func (s *standIn) writeStatus(resource string, status map[string]any) {
	gvr := v1beta1.Resource
	if resource == policyv1beta1.Resource.Resource {
		gvr = policyv1beta1.Resource
	}
	body, _ := json.Marshal(map[string]any{"status": status})
	// Another write may be faster; the manager tries again later.
	_, _ = s.cluster.Dynamic.Resource(gvr).Namespace(s.ns).Patch(context.Background(), "web", types.MergePatchType, body, metav1.PatchOptions{FieldManager: kruise}, "status")
}

// run reads the gates, and writes converters and webhooks again and again, as the manager does.
func (s *standIn) run(ctx context.Context) error {
	deployment, err := s.cluster.Client.AppsV1().Deployments("kruise-system").Get(ctx, "kruise-controller-manager", metav1.GetOptions{})
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.enabled = !strings.Contains(strings.Join(deployment.Spec.Template.Spec.Containers[0].Args, " "), "WorkloadSpread=false")
	s.mu.Unlock()
	definitions := s.cluster.Dynamic.Resource(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"))
	for _, name := range endpoint.Definitions {
		object, err := definitions.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		var definition apiextensionsv1.CustomResourceDefinition
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &definition); err != nil {
			return err
		}
		knows := slices.Contains([]string{"v1alpha1", "v1beta1"}, definition.Spec.Versions[0].Name)
		if is := definition.Spec.Conversion.Webhook.ClientConfig; knows && (is.URL == nil || *is.URL != *s.converter.URL) {
			definition.Spec.Conversion.Webhook.ClientConfig = s.converter
			if object, err = harness.Unstructured(&definition); err == nil {
				_, err = definitions.Update(ctx, object, metav1.UpdateOptions{FieldManager: kruise})
			}
			if err != nil && !apierrors.IsConflict(err) {
				return err
			}
		}
	}
	configurations := s.cluster.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	configuration, err := configurations.Get(ctx, "kruise-validating-webhook-configuration", metav1.GetOptions{})
	if err != nil {
		return err
	}
	var template []admissionregistrationv1.ValidatingWebhook
	if err := json.Unmarshal([]byte(configuration.Annotations["template"]), &template); err != nil {
		return err
	}
	if namesOf(template) != namesOf(configuration.Webhooks) {
		configuration.Webhooks = template
		if _, err := configurations.Update(ctx, configuration, metav1.UpdateOptions{}); err != nil && !apierrors.IsConflict(err) {
			return err
		}
	}
	return nil
}

func namesOf(webhooks []admissionregistrationv1.ValidatingWebhook) string {
	var names []string
	for i := range webhooks {
		names = append(names, webhooks[i].Name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// definitionsOfStandIn are definitions without the fields that only Berth has.
func (s *standIn) definitions() ([]*unstructured.Unstructured, error) {
	var all []*unstructured.Unstructured
	for _, content := range manifests.CRDs() {
		var definition apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(content, &definition); err != nil {
			return nil, err
		}
		definition.Annotations = map[string]string{"controller-gen.kubebuilder.io/version": "v0.16.5"}
		definition.Spec.Conversion.Webhook.ClientConfig = s.converter
		for i := range definition.Spec.Versions {
			schema := definition.Spec.Versions[i].Schema.OpenAPIV3Schema.Properties
			for _, field := range []string{"binding", "quotaScope", "whenFull"} {
				delete(schema["spec"].Properties["scheduleStrategy"].Properties, field)
			}
			delete(schema["status"].Properties, "ledger")
		}
		object, err := harness.Unstructured(&definition)
		if err != nil {
			return nil, err
		}
		all = append(all, object)
	}
	return all, nil
}

// entry is one webhook of the stand-in.
func (s *standIn) entry(name, path, group, resource string, operations ...admissionregistrationv1.OperationType) admissionregistrationv1.ValidatingWebhook {
	url, none := s.server.URL+path, admissionregistrationv1.SideEffectClassNone
	return admissionregistrationv1.ValidatingWebhook{Name: name, AdmissionReviewVersions: []string{"v1"}, SideEffects: &none,
		ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: s.converter.CABundle},
		Rules: []admissionregistrationv1.RuleWithOperations{{Operations: operations,
			Rule: admissionregistrationv1.Rule{APIGroups: []string{group}, APIVersions: []string{"*"}, Resources: []string{resource}}}}}
}

// install makes the cluster one that uses OpenKruise.
func (s *standIn) install(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	all, err := s.definitions()
	if err != nil {
		t.Fatal(err)
	}
	definitions := s.cluster.Dynamic.Resource(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"))
	for _, object := range all {
		live, err := definitions.Get(ctx, object.GetName(), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		object.SetResourceVersion(live.GetResourceVersion())
		if _, err := definitions.Update(ctx, object, metav1.UpdateOptions{FieldManager: kruise}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.cluster.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kruise-system"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := s.cluster.ApplyYAML(ctx, "kruise-system", strings.Replace(plain("kruise-controller-manager", 2), "[{name: main, ", `[{name: main, args: ["--feature-gates=SidecarTerminator=true"], `, 1)); err != nil {
		t.Fatal(err)
	}
	create, update, remove := admissionregistrationv1.Create, admissionregistrationv1.Update, admissionregistrationv1.Delete
	webhooks := []admissionregistrationv1.ValidatingWebhook{
		s.entry("vworkloadspread.kb.io", "/validate-apps-kruise-io-workloadspread", "apps.kruise.io", "workloadspreads", create, update),
		s.entry("vpodunavailablebudget.kb.io", "/validate-apps-kruise-io-workloadspread", "policy.kruise.io", "podunavailablebudgets", create, update),
		s.entry("vcloneset.kb.io", "/validate-apps-kruise-io-workloadspread", "apps.kruise.io", "clonesets", create, update),
		s.entry("vpod.kb.io", "/validate-pod", "", "pods", remove),
		s.entry("vpodeviction.kb.io", "/validate-pod", "", "pods/eviction", create),
	}
	template, err := json.Marshal(webhooks)
	if err != nil {
		t.Fatal(err)
	}
	client := s.cluster.Client.AdmissionregistrationV1()
	if _, err := client.ValidatingWebhookConfigurations().Create(ctx, &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "kruise-validating-webhook-configuration", Annotations: map[string]string{"template": string(template)}}, Webhooks: webhooks}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	mutating := s.entry("mpod.kb.io", "/mutate-pod", "", "pods", create)
	if _, err := client.MutatingWebhookConfigurations().Create(ctx, &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "kruise-mutating-webhook-configuration"}, Webhooks: []admissionregistrationv1.MutatingWebhook{{Name: mutating.Name, ClientConfig: mutating.ClientConfig,
			Rules: mutating.Rules, SideEffects: mutating.SideEffects, AdmissionReviewVersions: mutating.AdmissionReviewVersions}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// promises are what holds at every moment, whoever is in charge. They are checked after every event of a pod, in the order of the API server.
type promises struct {
	mu         sync.Mutex
	pods       map[types.UID]*corev1.Pod
	violations []string
	began      bool
	binds      int
}

func (p *promises) take(e watch.Event) {
	pod, ok := e.Object.(*corev1.Pod)
	if !ok {
		if e.Type == watch.Error {
			p.violations = append(p.violations, fmt.Sprint("the watch of pods ended: ", e.Object))
		}
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.pods[pod.UID]
	if p.pods[pod.UID] = pod; e.Type == watch.Deleted {
		delete(p.pods, pod.UID)
	}
	available, inA := 0, map[string]int{}
	for _, pod := range p.pods {
		if isAvailable(pod) {
			available++
		}
		if pod.DeletionTimestamp == nil && pod.Spec.NodeName == "node-a" {
			inA[pod.Labels["pod-template-hash"]]++
		}
	}
	if bound := pod.Spec.NodeName != "" && (before == nil || before.Spec.NodeName == ""); bound {
		p.binds++
		if n := inA[pod.Labels["pod-template-hash"]]; pod.Spec.NodeName == "node-a" && n > migratedQuota {
			p.violations = append(p.violations, fmt.Sprintf("revision %s: %s is number %d in subset a, placed by %s", pod.ResourceVersion, pod.Name, n, pod.Spec.SchedulerName))
		}
	}
	if p.began && available < migratedMinAvailable && before != nil && isAvailable(before) {
		p.violations = append(p.violations, fmt.Sprintf("revision %s: %d pods are available after %s of %s", pod.ResourceVersion, available, e.Type, pod.Name))
	}
}

func (p *promises) placed() int { p.mu.Lock(); defer p.mu.Unlock(); return p.binds }

// TestMigrationFromOpenKruiseAndBack walks docs/migration.md with a live workload: pods are evicted, updated in place, scaled and rolled out all the time. No subset is over its
// quota and the budget holds, before, during and after the migration, and on the way back.
func TestMigrationFromOpenKruiseAndBack(t *testing.T) {
	harness.Long(t)
	cluster, err := harness.Start(t.Context(), sandbox.Config{Name: "migration", Dir: t.TempDir(), Without: []string{product.Scheduler, product.Controller}}, product.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Sandbox.Stop)
	ctx, end := context.WithCancel(t.Context())
	defer end()
	wait := func(what string, condition func(context.Context) (string, error)) {
		t.Helper()
		if err := cluster.WaitFor(ctx, what, condition); err != nil {
			t.Fatal(err)
		}
	}
	ns, err := cluster.CreateNamespace(ctx, "shop")
	if err != nil {
		t.Fatal(err)
	}
	if err := cluster.Sandbox.CreateNodes(ctx, []*corev1.Node{sandbox.NewNode("node-a", "zone-a", map[string]string{"pool": "a"}, nil, nil), sandbox.NewNode("node-b", "zone-a", map[string]string{"pool": "b"}, nil, nil)}); err != nil {
		t.Fatal(err)
	}
	s := startStandIn(t, cluster, ns)
	s.install(t)
	var running sync.WaitGroup
	defer running.Wait()
	defer end()
	again := func(every time.Duration, do func(context.Context) error) {
		running.Add(1)
		go func() {
			defer running.Done()
			for ticker := time.NewTicker(every); ; {
				select {
				case <-ctx.Done():
					ticker.Stop()
					return
				case <-ticker.C:
					if err := do(ctx); err != nil && ctx.Err() == nil {
						t.Error(err)
					}
				}
			}
		}()
	}
	again(100*time.Millisecond, s.run)
	wait("the objects", func(ctx context.Context) (string, error) {
		if err := cluster.ApplyYAML(ctx, ns, migratedPair); err != nil {
			return err.Error(), nil //nolint:nilerr // the definitions have just changed
		}
		return "", nil
	})

	// A live workload.
	p := &promises{pods: map[types.UID]*corev1.Pod{}}
	watcher, err := cluster.Client.CoreV1().Pods(ns).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	running.Add(1)
	go func() {
		defer running.Done()
		for e := range watcher.ResultChan() {
			p.take(e)
		}
		if ctx.Err() == nil {
			t.Error("the watch of pods ended")
		}
	}()
	if err := cluster.ApplyYAML(ctx, ns, plain("web", 7)); err != nil {
		t.Fatal(err)
	}
	wait("the workload", func(ctx context.Context) (string, error) {
		pods, err := s.pods(ctx)
		if n := len(slices.DeleteFunc(pods, func(pod corev1.Pod) bool { return !isAvailable(&pod) })); n < 7 {
			return fmt.Sprintf("%d pods are available", n), err
		}
		return "", err
	})
	p.mu.Lock()
	p.began = true
	p.mu.Unlock()
	var evicted, updated, changed atomic.Int32
	// The pod may be gone, its budget may be exhausted, or the webhook of the product that is being removed has just ended.
	expected := func(err error) bool {
		return apierrors.IsNotFound(err) || apierrors.IsTooManyRequests(err) || apierrors.IsForbidden(err) || apierrors.IsConflict(err) || apierrors.IsInternalError(err)
	}
	// More evictions at once than any budget allows.
	again(400*time.Millisecond, func(ctx context.Context) error {
		pods, err := s.pods(ctx)
		if err != nil {
			return err
		}
		var evicting errgroup.Group
		for _, at := range rand.Perm(len(pods)) {
			evicting.Go(func() error {
				err := cluster.Client.CoreV1().Pods(ns).EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pods[at].Name, Namespace: ns}})
				if err == nil {
					evicted.Add(1)
				}
				if expected(err) {
					return nil
				}
				return err
			})
		}
		return evicting.Wait()
	})
	again(200*time.Millisecond, func(ctx context.Context) error {
		pods, err := s.pods(ctx)
		pods = slices.DeleteFunc(pods, func(pod corev1.Pod) bool { return !isAvailable(&pod) })
		if err != nil || len(pods) == 0 {
			return err
		}
		done, err := s.update(ctx, &pods[rand.IntN(len(pods))])
		if done {
			updated.Add(1)
		}
		if expected(err) {
			return nil
		}
		return err
	})
	again(3*time.Second, func(ctx context.Context) error {
		n := changed.Add(1)
		patch := fmt.Sprintf(`{"spec":{"replicas":%d}}`, 6+n%3)
		if n%4 == 0 {
			patch = fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"revision":"%d"}}}}}`, n)
		}
		_, err := cluster.Client.AppsV1().Deployments(ns).Patch(ctx, "web", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	})
	live := func(whose string) { // until the workload has lived on for a while
		t.Helper()
		pods, gone, updates, changes := p.placed(), evicted.Load(), updated.Load(), changed.Load()
		wait("pods of "+whose, func(context.Context) (string, error) {
			if p.placed() >= pods+10 && evicted.Load() >= gone+5 && updated.Load() >= updates+3 && changed.Load() >= changes+4 {
				return "", nil
			}
			return fmt.Sprintf("%d placed, %d evicted, %d updated, %d changes", p.placed()-pods, evicted.Load()-gone, updated.Load()-updates, changed.Load()-changes), nil
		})
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, violation := range p.violations {
			t.Errorf("%s: %s", whose, violation)
		}
		p.violations = nil
	}
	live("OpenKruise")

	backup := filepath.Join(t.TempDir(), "before")
	migrate := func(args ...string) (out string, done bool) {
		t.Helper()
		cmd := exec.CommandContext(ctx, filepath.Join(harness.BinDir(), "kubectl-berth"), append([]string{"migrate", "--from=kruise", "--backup=" + backup, "--kubeconfig=" + cluster.Sandbox.Kubeconfig()}, args...)...)
		text, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		t.Logf("%s\n%s", strings.Join(args, " "), text)
		return string(text), err == nil
	}
	expect := func(done bool, args []string, parts ...string) string {
		t.Helper()
		out, is := migrate(args...)
		for _, part := range parts {
			if is != done || !strings.Contains(strings.Join(strings.Fields(out), " "), part) {
				t.Fatalf("migrate %s: done %t, without %q:\n%s", args, is, part, out)
			}
		}
		return out
	}
	before := s.state(t)
	expect(false, []string{"--dry-run=server"}, "save needed", "install needed", "definitions needed", "webhooks needed", "gates needed")
	if diff := cmp.Diff(before, s.state(t)); diff != "" {
		t.Fatalf("a dry run changed (-before +after)\n%s", diff)
	}
	if _, err := os.Stat(backup); err == nil {
		t.Fatal("a dry run wrote copies")
	}
	expect(false, nil, "save done copies", "install yours install Berth")
	for file, part := range map[string]string{"workloadspreads": "requiredNodeSelectorTerm", "podunavailablebudgets": "minAvailable", "definitions": "openAPIV3Schema", "webhooks": "vworkloadspread.kb.io"} {
		if copied, err := os.ReadFile(filepath.Join(backup, file+".yaml")); err != nil || !strings.Contains(string(copied), part) {
			t.Errorf("the copies in %s: %v\n%s", file, err, copied)
		}
	}
	stop := startBerth(t, cluster)
	wait("Berth", func(context.Context) (string, error) {
		configuration, err := cluster.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(ctx, "berth-webhook", metav1.GetOptions{})
		if err != nil || len(configuration.Webhooks[0].ClientConfig.CABundle) > 0 {
			return "", err
		}
		return "no authority", nil
	})
	expect(false, []string{"--dry-run=server"}, "definitions needed", "webhooks needed", "gates needed") // the API server accepts what is next, and does nothing
	out := expect(false, nil, "definitions done the definitions become", "webhooks done OpenKruise does not check", "gates yours set the feature gates")
	_, gates, _ := strings.Cut(out, `--set featureGates="`)
	gates, _, _ = strings.Cut(gates, `"`)
	if want := `SidecarTerminator=true\,PodUnavailableBudgetDeleteGate=false\,WorkloadSpread=false`; gates != want {
		t.Fatalf("gates %s, want %s", gates, want)
	}
	setGates := func(gates string) {
		t.Helper()
		patch := fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[{"name":"main","args":["--feature-gates=%s"]}]}}}}`, strings.ReplaceAll(gates, `\,`, ","))
		if _, err := cluster.Client.AppsV1().Deployments("kruise-system").Patch(ctx, "kruise-controller-manager", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	setGates(gates)
	wait("the end of the migration", func(context.Context) (string, error) {
		out, done := migrate()
		if !done {
			return out, nil
		}
		return "", nil
	})
	live("Berth")
	spread, err := cluster.Spread(ctx, ns, "web")
	if err != nil || len(spread.Status.SubsetStatuses) != 2 || len(spread.Status.SubsetStatuses[0].CreatingPods) > 0 {
		t.Errorf("the status is not Berth's: %+v, %v", spread.Status, err)
	}
	expect(true, nil, "All steps are done.") // nothing has come back
	doctor := func() []cli.Check {
		t.Helper()
		cmd := exec.CommandContext(ctx, filepath.Join(harness.BinDir(), "kubectl-berth"), "doctor", "-o=json", "--kubeconfig="+cluster.Sandbox.Kubeconfig())
		text, _ := cmd.Output() // the exit code is 1 if anything is wrong
		var found struct{ Items []cli.Check }
		if err := json.Unmarshal(text, &found); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		return found.Items
	}
	for _, check := range doctor() {
		if slices.Contains([]string{"definitions", "conversion", "webhooks"}, check.Name) && check.Result != "ok" {
			t.Errorf("doctor: %+v", check)
		}
	}

	// Back, by the commands of the page.
	kubectl := func(args ...string) {
		t.Helper()
		text, err := exec.CommandContext(ctx, filepath.Join(harness.BinDir(), "kubectl"), append(args, "--kubeconfig="+cluster.Sandbox.Kubeconfig())...).CombinedOutput()
		if err != nil {
			t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, text)
		}
	}
	setGates("SidecarTerminator=true")
	kubectl("-n", "kruise-system", "rollout", "status", "deployment", "kruise-controller-manager", "--timeout=5m")
	kubectl("replace", "-f", filepath.Join(backup, "webhooks.yaml"))
	live("both")
	wait("doctor to name both controllers", func(context.Context) (string, error) {
		found := doctor()
		if slices.ContainsFunc(found, func(c cli.Check) bool {
			return c.Name == "one controller" && c.Result == "problem" && strings.Contains(c.Says, kruise)
		}) {
			return "", nil
		}
		return fmt.Sprintf("%+v", found), nil
	})
	stop()
	kubectl("replace", "-f", filepath.Join(backup, "definitions.yaml"))
	kubectl("delete", "pods", "-A", "--field-selector", "spec.schedulerName=berth-scheduler,spec.nodeName=")
	live("OpenKruise again")
	if diff := cmp.Diff(before, s.state(t)); diff != "" {
		t.Errorf("it is not as before (-before +after)\n%s", diff)
	}
	t.Logf("%d pods were placed, %d evicted and %d updated in place, with %d changes of the workload", p.placed(), evicted.Load(), updated.Load(), changed.Load())
}

// state is what a migration changes and gives back: definitions, webhooks and the specs of the objects.
func (s *standIn) state(t *testing.T) map[string]any {
	t.Helper()
	state := map[string]any{}
	for _, name := range endpoint.Definitions {
		object, err := s.cluster.Dynamic.Resource(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		stored, _, _ := unstructured.NestedStringSlice(object.Object, "status", "storedVersions")
		state[name] = []any{object.Object["spec"], object.GetAnnotations(), object.GetLabels(), stored}
	}
	configuration, err := s.cluster.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(t.Context(), "kruise-validating-webhook-configuration", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var template []admissionregistrationv1.ValidatingWebhook
	if err := json.Unmarshal([]byte(configuration.Annotations["template"]), &template); err != nil {
		t.Fatal(err)
	}
	state["webhooks"], state["template"] = namesOf(configuration.Webhooks), namesOf(template)
	spread, err := s.cluster.Spread(t.Context(), s.ns, "web")
	if err != nil {
		t.Fatal(err)
	}
	state["spread"] = spread.Spec
	return state
}

// startBerth starts Berth beside OpenKruise. stop ends and removes it, without the definitions.
func startBerth(t *testing.T, cluster *harness.Cluster) (stop func()) {
	t.Helper()
	ports := freePorts(t, 3)
	config, err := clientcmd.LoadFromFile(cluster.Sandbox.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range config.AuthInfos {
		user.Impersonate, user.ImpersonateGroups = "system:serviceaccount:berth-system:berth-controller", []string{"system:serviceaccounts", "system:serviceaccounts:berth-system", "system:authenticated"}
	}
	kubeconfig := filepath.Join(t.TempDir(), "controller.kubeconfig")
	if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
		t.Fatal(err)
	}
	url := fmt.Sprintf("https://localhost:%d", ports[1])
	var configurations []*unstructured.Unstructured
	for content, configuration := range map[string]runtime.Object{
		string(manifests.ValidatingWebhook): &admissionregistrationv1.ValidatingWebhookConfiguration{}, string(manifests.MutatingWebhook): &admissionregistrationv1.MutatingWebhookConfiguration{},
		string(manifests.BudgetWebhook): &admissionregistrationv1.ValidatingWebhookConfiguration{}, string(manifests.EvictionWebhook): &admissionregistrationv1.MutatingWebhookConfiguration{}} {
		if err := yaml.UnmarshalStrict([]byte(content), configuration); err != nil {
			t.Fatal(err)
		}
		for _, webhook := range endpoint.WebhooksOf(configuration) {
			*webhook.Client = admissionregistrationv1.WebhookClientConfig{URL: &url}
		}
		object, err := harness.Unstructured(configuration)
		if err != nil {
			t.Fatal(err)
		}
		configurations = append(configurations, object)
	}
	startScheduler(t, cluster, ports[2])
	controller := startProgram(t, "berth-controller", "--kubeconfig="+kubeconfig, "--metrics-bind-address=0",
		fmt.Sprintf("--health-probe-bind-address=127.0.0.1:%d", ports[0]), "--webhook-host=127.0.0.1", fmt.Sprintf("--webhook-port=%d", ports[1]),
		"--cert-dir="+filepath.Join(t.TempDir(), "certs"), "--shutdown-delay=0", "--leader-elect=false")
	for _, object := range configurations {
		if err := cluster.Apply(t.Context(), "", object); err != nil {
			t.Fatal(err)
		}
	}
	return func() {
		for _, object := range configurations {
			client, err := cluster.Resource(object, "")
			if err == nil {
				err = client.Delete(t.Context(), object.GetName(), metav1.DeleteOptions{})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		for _, program := range []*exec.Cmd{controller, scheduler} {
			if err := program.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			_ = program.Wait() // it ends by the signal
		}
	}
}
