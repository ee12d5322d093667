package tenant

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/budget"
	appsv1beta1 "github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/endpoint"
	"github.com/berth-project/berth/test/harness"
)

const (
	// mostPods, mostBudgets and mostSpreads are how many of these the tenant has in each namespace. Berth allows 500 budgets there. A run shorter than large has a fifth
	// of that in all namespaces together.
	mostPods, mostBudgets, mostSpreads = 300, 500, 100
	// fewer is which part of its budgets the tenant has not created before the attack.
	fewer = 25
	// apps is how many values the label app of the tenant's pods has.
	apps = 10
	// annotation is about how many bytes of annotations an API server accepts.
	annotation = 250_000
	// settlers is how many requests create what the tenant has before the attack. A new budget waits until its webhook replica has read the other budgets of the namespace, once
	// for all that are created meanwhile. With more requests than that, budgets exceed the 5 s of their webhook on a machine whose processors have other work.
	settlers = 8
	// body is what the tenant sends to the webhook, without credentials.
	body = 1 << 20
)

var (
	dryRun     = []string{metav1.DryRunAll}
	configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
)

// enemy is the hostile tenant: one user with several namespaces, new ones in each phase. It makes each request in the next of them.
type enemy struct {
	namespaces []*tenant

	mu      sync.Mutex
	did     map[string]int
	took    map[string]time.Duration
	answers answers
}

// tenant is the hostile one in one of its namespaces.
type tenant struct {
	cluster   *harness.Cluster
	client    kubernetes.Interface
	dynamic   dynamic.Interface
	namespace string
	// hostile is false for the equal flood.
	hostile bool
	// pods, budgets and spreads are how many the tenant has.
	pods, budgets, spreads int
	// convert is where the webhook converts objects for anybody who can connect.
	convert  string
	stranger *http.Client
}

// costs is how long the requests of each kind took on average. It helps to find out which of them hurts.
func (e *enemy) costs() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(e.did)) {
		all = append(all, fmt.Sprintf("%s: %d, %.0f ms", name, e.did[name], ms(e.took[name]/time.Duration(e.did[name]))))
	}
	return strings.Join(all, "; ")
}

// answers counts what the API server said.
type answers map[string]int

func (a answers) String() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(a)) {
		all = append(all, fmt.Sprintf("%s %d", name, a[name]))
	}
	return strings.Join(all, ", ")
}

func newEnemy(t *testing.T, cluster *harness.Cluster, hostile bool) *enemy {
	t.Helper()
	e := &enemy{did: map[string]int{}, took: map[string]time.Duration{}, answers: answers{}}
	for range *namespaces {
		e.namespaces = append(e.namespaces, newTenant(t, cluster, hostile))
	}
	return e
}

func newTenant(t *testing.T, cluster *harness.Cluster, hostile bool) *tenant {
	t.Helper()
	e := &tenant{cluster: cluster, hostile: hostile, pods: mostPods, budgets: mostBudgets, spreads: mostSpreads}
	if parts := 5 * *namespaces; *length < large {
		e.pods, e.budgets, e.spreads = e.pods/parts, e.budgets/parts, e.spreads/parts
	}
	var err error
	if e.namespace, err = cluster.CreateNamespace(t.Context(), "tenant"); err != nil {
		t.Fatal(err)
	}
	config := as(t, cluster, "tenant", e.namespace)
	if e.client, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	if e.dynamic, err = dynamic.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	definition, err := cluster.Dynamic.Resource(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")).Get(t.Context(), endpoint.Definitions[0], metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	e.convert, _, _ = unstructured.NestedString(definition.Object, "spec", "conversion", "webhook", "clientConfig", "url")
	//nolint:gosec // a stranger trusts anybody
	e.stranger = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, Timeout: patience}
	return e
}

// settle creates what the tenant has in each namespace from the start: pods that budgets protect, as many budgets as it may have but a few, and spreads.
func (e *enemy) settle(t *testing.T) {
	t.Helper()
	for _, one := range e.namespaces {
		one.settle(t)
	}
}

// tryAgain is how often the tenant tries again to make a budget.
var tryAgain = wait.Backoff{Duration: time.Second, Jitter: 0.5, Factor: 1, Steps: 150}

func (e *tenant) settle(t *testing.T) {
	t.Helper()
	working, ctx := errgroup.WithContext(t.Context())
	working.SetLimit(settlers)
	for i := range max(e.pods, e.budgets, e.spreads) {
		working.Go(func() error {
			var errs []error
			if i < e.pods {
				errs = append(errs, e.create(ctx, e.pod(fmt.Sprint("pod-", i), i%apps)))
			}
			if i < e.budgets-e.budgets/fewer {
				// Berth bounds what the lists of one namespace cost, so the tenant has to try again.
				errs = append(errs, retry.OnError(tryAgain, apierrors.IsTooManyRequests, func() error { return e.createOwn(ctx, v1beta1.Resource, e.budget(i)) }))
			}
			if i < e.spreads {
				errs = append(errs, e.createOwn(ctx, appsv1beta1.Resource, e.spread(i)))
			}
			return errors.Join(errs...)
		})
	}
	if err := working.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := e.cluster.WaitFor(t.Context(), "the hostile tenant's pods to run", func(ctx context.Context) (string, error) {
		pods, err := e.cluster.Pods(ctx, e.namespace)
		ready := 0
		for i := range pods {
			if budget.IsReady(&pods[i]) {
				ready++
			}
		}
		return map[bool]string{false: fmt.Sprintf("%d of %d are ready", ready, e.pods)}[ready == e.pods], err
	}); err != nil {
		t.Fatal(err)
	}
}

// start attacks until stop.
func (e *enemy) start(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	only := regexp.MustCompile(*attacking)
	var working sync.WaitGroup
	working.Go(func() {
		tick := time.NewTicker(time.Second / time.Duration(*rate))
		defer tick.Stop()
		busy := make(chan struct{}, *flooded)
		// Both kinds of phases draw the same sequence.
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			select {
			case <-ctx.Done():
				return
			case busy <- struct{}{}:
			}
			random := rand.New(rand.NewPCG(*seed, uint64(i)))
			one := attacks[random.IntN(len(attacks))]
			if !only.MatchString(one.name) {
				<-busy
				continue
			}
			working.Go(func() {
				defer func() { <-busy }()
				began := time.Now()
				err := one.do(ctx, e.namespaces[i%len(e.namespaces)], i, random)
				if ctx.Err() != nil {
					return
				}
				e.mu.Lock()
				defer e.mu.Unlock()
				e.did[one.name]++
				e.took[one.name] += time.Since(began)
				e.answers[reasonOf(err)]++
			})
		}
	})
	return func() { cancel(); working.Wait() }
}

func reasonOf(err error) string {
	if err == nil {
		return "done"
	}
	if reason := apierrors.ReasonForError(err); reason != metav1.StatusReasonUnknown {
		return string(reason)
	}
	return "other errors"
}

// leave deletes the tenant's namespaces and waits for their end. The namespace controller asks no budget.
func (e *enemy) leave(t *testing.T) {
	t.Helper()
	for _, one := range e.namespaces {
		one.leave(t)
	}
}

func (e *tenant) leave(t *testing.T) {
	t.Helper()
	if err := e.cluster.Client.CoreV1().Namespaces().Delete(t.Context(), e.namespace, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := e.cluster.WaitFor(t.Context(), "the hostile tenant's namespace to be gone", func(ctx context.Context) (string, error) {
		namespace, err := e.cluster.Client.CoreV1().Namespaces().Get(ctx, e.namespace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return fmt.Sprintf("%v", namespace.Status.Conditions), err
	}); err != nil {
		t.Fatal(err)
	}
}

// key is a label or annotation of Berth, or in the equal flood one of the same length.
func (e *tenant) key(berths string) string {
	if e.hostile {
		return berths
	}
	return strings.NewReplacer("berth.dev", "other.dev", "kruise.io", "others.io").Replace(berths)
}

// attacks is what the tenant does. All are equally likely. i is different in each request.
var attacks = []struct {
	name string
	do   func(ctx context.Context, e *tenant, i int, random *rand.Rand) error
}{
	{"create one of the largest pods", func(ctx context.Context, e *tenant, _ int, random *rand.Rand) error {
		shape := random.IntN(len(shapes))
		pod := e.pod(fmt.Sprint("large-", shape), 0)
		pod.Spec.SchedulerName = "nobody"
		shapes[shape](e, pod)
		return e.create(ctx, pod)
	}},
	{"change one of the largest pods, dry run", func(ctx context.Context, e *tenant, i int, random *rand.Rand) error {
		return e.patch(ctx, fmt.Sprint("large-", random.IntN(len(shapes))), `{"metadata":{"annotations":{"example.com/n":"%d"}}}`, i, dryRun)
	}},
	{"relabel one of the largest pods, dry run", func(ctx context.Context, e *tenant, i int, random *rand.Rand) error {
		return e.patch(ctx, fmt.Sprint("large-", random.IntN(len(shapes))), `{"metadata":{"labels":{"app":"other-%d"}}}`, i, dryRun)
	}},
	{"create a pod whose owner's kind does not exist", func(ctx context.Context, e *tenant, i int, random *rand.Rand) error {
		return e.create(ctx, e.pod(fmt.Sprint("pod-", i%e.pods), random.IntN(apps)))
	}},
	{"relabel a pod", func(ctx context.Context, e *tenant, _ int, random *rand.Rand) error {
		return e.patch(ctx, e.anyPod(random), `{"metadata":{"labels":{"app":"app-%d"}}}`, random.IntN(apps), nil)
	}},
	{"relabel a pod by which no budget goes", func(ctx context.Context, e *tenant, i int, random *rand.Rand) error {
		return e.patch(ctx, e.anyPod(random), `{"metadata":{"labels":{"role":"r-%d"}}}`, i, nil)
	}},
	{"invent the record of a pod", func(ctx context.Context, e *tenant, i int, random *rand.Rand) error {
		record := e.key(appsv1beta1.MatchedAnnotation)
		return e.patch(ctx, e.anyPod(random), `{"metadata":{"annotations":{"`+record+`":"{\"name\":\"spread-0\",\"subset\":\"s-%d\"}"}}}`, i, nil)
	}},
	{"evict a pod", func(ctx context.Context, e *tenant, _ int, random *rand.Rand) error {
		return e.evict(ctx, e.anyPod(random), nil)
	}},
	{"evict a pod, dry run", func(ctx context.Context, e *tenant, _ int, random *rand.Rand) error {
		return e.evict(ctx, e.anyPod(random), dryRun)
	}},
	{"delete a pod", func(ctx context.Context, e *tenant, _ int, random *rand.Rand) error {
		return e.client.CoreV1().Pods(e.namespace).Delete(ctx, e.anyPod(random), metav1.DeleteOptions{})
	}},
	{"delete the pods of an app, dry run", func(ctx context.Context, e *tenant, _ int, random *rand.Rand) error {
		return e.client.CoreV1().Pods(e.namespace).DeleteCollection(ctx, metav1.DeleteOptions{DryRun: dryRun}, metav1.ListOptions{LabelSelector: fmt.Sprint("app=app-", random.IntN(apps))})
	}},
	{"create a budget with the largest selector", func(ctx context.Context, e *tenant, i int, _ *rand.Rand) error {
		return e.createOwn(ctx, v1beta1.Resource, e.budget(e.budgets-e.budgets/fewer+i))
	}},
	{"create a budget of a workload that does not exist", func(ctx context.Context, e *tenant, i int, _ *rand.Rand) error {
		own := e.own(v1beta1.Kind, fmt.Sprint("missing-", i))
		own.Object["spec"] = map[string]any{"maxUnavailable": int64(1), "targetRef": madeUp(i)}
		return e.createOwn(ctx, v1beta1.Resource, own)
	}},
	{"change a budget", func(ctx context.Context, e *tenant, i int, random *rand.Rand) error {
		return e.patchOwn(ctx, v1beta1.Resource, fmt.Sprint("budget-", random.IntN(apps)), i)
	}},
	{"read all budgets in the old version", func(ctx context.Context, e *tenant, _ int, _ *rand.Rand) error {
		old := v1beta1.Resource
		old.Version = "v1alpha1"
		_, err := e.dynamic.Resource(e.resource(old)).Namespace(e.namespace).List(ctx, metav1.ListOptions{})
		return err
	}},
	{"create a spread with the largest selectors", func(ctx context.Context, e *tenant, i int, _ *rand.Rand) error {
		return e.createOwn(ctx, appsv1beta1.Resource, e.spread(i))
	}},
	{"change a spread", func(ctx context.Context, e *tenant, i int, random *rand.Rand) error {
		return e.patchOwn(ctx, appsv1beta1.Resource, fmt.Sprint("spread-", random.IntN(e.spreads)), i)
	}},
	{"delete a spread", func(ctx context.Context, e *tenant, _ int, random *rand.Rand) error {
		return e.dynamic.Resource(e.resource(appsv1beta1.Resource)).Namespace(e.namespace).Delete(ctx, fmt.Sprint("spread-", random.IntN(e.spreads)), metav1.DeleteOptions{})
	}},
	// Without credentials. In the equal flood, an object of the same size is sent to the API server.
	{"send the webhook a large review", func(ctx context.Context, e *tenant, i int, _ *rand.Rand) error {
		if !e.hostile {
			_, err := e.client.CoreV1().ConfigMaps(e.namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("large-", i)},
				Data: map[string]string{"review": strings.Repeat("{},", body/3-1_000)}}, metav1.CreateOptions{DryRun: dryRun})
			return err
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, e.convert,
			strings.NewReader(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview","request":{"uid":"1","objects":[`+strings.Repeat("{},", body/3)+`{}]}}`))
		if err != nil {
			return err
		}
		request.Header.Set("Content-Type", "application/json")
		answer, err := e.stranger.Do(request)
		if err != nil {
			return err
		}
		return answer.Body.Close()
	}},
}

func (e *tenant) anyPod(random *rand.Rand) string { return fmt.Sprint("pod-", random.IntN(e.pods)) }

// shapes make a pod as large as the API server accepts, each in another way.
var shapes = []func(e *tenant, pod *corev1.Pod){
	func(e *tenant, pod *corev1.Pod) {
		pod.Annotations[e.key(v1beta1.SelectorKeysAnnotation)] = strings.Repeat("a,", annotation/2)
	},
	func(_ *tenant, pod *corev1.Pod) {
		for i := range 5_000 {
			pod.Labels[fmt.Sprint("example.com/a-label-", i)] = "x"
		}
	},
	func(_ *tenant, pod *corev1.Pod) {
		for i := range 2_000 {
			pod.OwnerReferences = append(pod.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: fmt.Sprint("n", i), UID: types.UID(fmt.Sprint(i))})
		}
	},
	func(_ *tenant, pod *corev1.Pod) {
		for i := range 300 {
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: fmt.Sprint("c", i), Image: "image"})
		}
	},
	func(_ *tenant, pod *corev1.Pod) {
		for i := range 2_000 {
			pod.Spec.ReadinessGates = append(pod.Spec.ReadinessGates, corev1.PodReadinessGate{ConditionType: corev1.PodConditionType(fmt.Sprint("example.com/", i))})
		}
	},
}

// madeUp refers to an object of a kind that does not exist.
func madeUp(i int) map[string]any {
	return map[string]any{"apiVersion": fmt.Sprintf("made-up-%d.example.com/v1", i), "kind": "Thing", "name": fmt.Sprint("thing-", i)}
}

// pod has the protection label from the start, and an owner of a kind that does not exist.
func (e *tenant) pod(name string, app int) *corev1.Pod {
	owner := metav1.OwnerReference{APIVersion: fmt.Sprintf("made-up-%s.example.com/v1", name), Kind: "Thing", Name: name, UID: types.UID("uid-" + name), Controller: ptr.To(true)}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{owner}, Annotations: map[string]string{},
			Labels: map[string]string{"app": fmt.Sprint("app-", app), e.key(v1beta1.ProtectedLabel): v1beta1.ProtectedValue}},
		Spec: corev1.PodSpec{TerminationGracePeriodSeconds: new(int64), Containers: []corev1.Container{{Name: "main", Image: "registry.example.com/main:0"}}},
	}
}

func (e *tenant) create(ctx context.Context, pod *corev1.Pod) error {
	_, err := e.client.CoreV1().Pods(e.namespace).Create(ctx, pod, metav1.CreateOptions{})
	return err
}

func (e *tenant) patch(ctx context.Context, pod, format string, i int, dryRun []string) error {
	_, err := e.client.CoreV1().Pods(e.namespace).Patch(ctx, pod, types.MergePatchType, fmt.Appendf(nil, format, i), metav1.PatchOptions{DryRun: dryRun})
	return err
}

func (e *tenant) evict(ctx context.Context, pod string, dryRun []string) error {
	return e.client.CoreV1().Pods(e.namespace).EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod}, DeleteOptions: &metav1.DeleteOptions{DryRun: dryRun}})
}

// own is an object of a kind of Berth.
func (e *tenant) own(kind schema.GroupVersionKind, name string) *unstructured.Unstructured {
	own := &unstructured.Unstructured{Object: map[string]any{}}
	own.SetGroupVersionKind(kind)
	own.SetName(name)
	return own
}

// budget is as large as Berth accepts: 20 requirements with 200 keys and values, and 32 KiB in all. Those of the first apps cover pods of the tenant.
func (e *tenant) budget(i int) *unstructured.Unstructured {
	own := e.own(v1beta1.Kind, fmt.Sprint("budget-", i%e.budgets))
	var expressions []any
	for key := range 19 {
		var values []any
		for value := range 8 {
			values = append(values, fmt.Sprintf("%s-%d", strings.Repeat("v", 60), value))
		}
		expressions = append(expressions, map[string]any{"key": fmt.Sprintf("example.com/%s-%d", strings.Repeat("k", 50), key), "operator": "NotIn", "values": values})
	}
	own.Object["spec"] = map[string]any{"minAvailable": int64(1), "selector": map[string]any{
		"matchLabels": map[string]any{"app": fmt.Sprint("app-", i%e.budgets)}, "matchExpressions": expressions}}
	own.SetAnnotations(map[string]string{"example.com/note": strings.Repeat("n", 18_000)})
	return own
}

// spread has many subsets with many values, for a workload that does not exist.
func (e *tenant) spread(i int) *unstructured.Unstructured {
	own := e.own(appsv1beta1.Kind, fmt.Sprint("spread-", i%e.spreads))
	var subsets []any
	for subset := range 50 {
		var values []any
		for value := range 30 {
			values = append(values, fmt.Sprintf("%s-%d-%d", strings.Repeat("v", 50), subset, value))
		}
		subsets = append(subsets, map[string]any{"name": fmt.Sprint("s-", subset), "maxReplicas": int64(1), "requiredNodeSelector": map[string]any{
			"matchExpressions": []any{map[string]any{"key": "example.com/pool", "operator": "In", "values": values}}}})
	}
	own.Object["spec"] = map[string]any{"targetRef": madeUp(i), "subsets": subsets}
	return own
}

// resource is that of Berth, or that of ConfigMaps.
func (e *tenant) resource(berths schema.GroupVersionResource) schema.GroupVersionResource {
	if e.hostile {
		return berths
	}
	return configMaps
}

// createOwn creates an object of Berth, or a ConfigMap of the same size.
func (e *tenant) createOwn(ctx context.Context, resource schema.GroupVersionResource, own *unstructured.Unstructured) error {
	if !e.hostile {
		content := &bytes.Buffer{}
		if err := json.NewEncoder(content).Encode(own.Object["spec"]); err != nil {
			return err
		}
		own = &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": own.GetName()}, "data": map[string]any{"spec": content.String()}}}
	}
	_, err := e.dynamic.Resource(e.resource(resource)).Namespace(e.namespace).Create(ctx, own, metav1.CreateOptions{})
	return err
}

// patchOwn changes an annotation.
func (e *tenant) patchOwn(ctx context.Context, resource schema.GroupVersionResource, name string, i int) error {
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"example.com/n":"%d"}}}`, i)
	_, err := e.dynamic.Resource(e.resource(resource)).Namespace(e.namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}
