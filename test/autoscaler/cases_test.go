package autoscaler

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/test/harness"
)

var (
	nodePools  = schema.GroupVersionResource{Group: "karpenter.sh", Version: "v1", Resource: "nodepools"}
	nodeClaims = schema.GroupVersionResource{Group: "karpenter.sh", Version: "v1", Resource: "nodeclaims"}
)

const (
	// poolLabel is by which subsets select their nodes.
	poolLabel = "example.com/pool"
	// disruptedTaint is on a node that Karpenter is going to remove.
	disruptedTaint = "karpenter.sh/disrupted"
)

// shop is a Deployment with a spread of two subsets in a namespace of its own: at most 10 pods in normal, all others in elastic. Its nodes belong to no
// other test.
type shop struct {
	t         *testing.T
	namespace string
	// pods counts the ready pods that were deleted.
	pods *podWatch
}

// newShop makes the namespace, and removes everything at the end of the test. Shops run beside each other.
func newShop(t *testing.T) *shop {
	t.Helper()
	t.Parallel()
	ns, err := the.CreateNamespace(t.Context(), "shop")
	if err != nil {
		t.Fatal(err)
	}
	s := &shop{t: t, namespace: ns, pods: watchPods(t, ns)}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), harness.Timeout)
		defer cancel()
		if err := the.DeleteNamespace(ctx, ns); err != nil {
			t.Error(err)
		}
		for _, pool := range []string{"normal", "elastic"} {
			if err := the.Dynamic.Resource(nodePools).Delete(ctx, ns+"-"+pool, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				t.Error(err)
			}
		}
		if err := the.WaitFor(ctx, "Karpenter to remove its nodes", func(ctx context.Context) (string, error) {
			claims, err := the.Dynamic.Resource(nodeClaims).List(ctx, metav1.ListOptions{})
			if err != nil {
				return "", err
			}
			for i := range claims.Items {
				if strings.HasPrefix(claims.Items[i].GetName(), ns) {
					return "there is " + claims.Items[i].GetName(), nil
				}
			}
			return "", nil
		}); err != nil {
			t.Error(err)
		}
		for _, violation := range watcher.Violations() {
			t.Error(violation)
		}
	})
	return s
}

// ownNodes creates nodes of the subset normal that belong to no autoscaler.
func (s *shop) ownNodes(n int, cpu string) []*corev1.Node {
	s.t.Helper()
	var nodes []*corev1.Node
	for i := range n {
		nodes = append(nodes, sandbox.NewNode(fmt.Sprintf("%s-own-%d", s.namespace, i), "zone-a", map[string]string{poolLabel: s.namespace + "-normal"}, nil,
			sandbox.Allocatable(resource.MustParse(cpu), resource.MustParse("32Gi"))))
	}
	if err := the.Sandbox.CreateNodes(s.t.Context(), nodes); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := the.DeleteNodes(context.Background(), nodes); err != nil {
			s.t.Error(err)
		}
	})
	return nodes
}

// nodePool lets Karpenter make nodes of a subset. The options are fields of its spec.
func (s *shop) nodePool(subset string, options string) {
	s.t.Helper()
	s.apply("", fmt.Sprintf(`
apiVersion: karpenter.kwok.sh/v1alpha1
kind: KWOKNodeClass
metadata: {name: default}
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: %[1]s-%[2]s}
spec:
  template:
    metadata: {labels: {%[3]s: %[1]s-%[2]s}}
    spec:
      requirements:
      - {key: kubernetes.io/arch, operator: In, values: [amd64]}
      - {key: kubernetes.io/os, operator: In, values: [linux]}
      - {key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}
      nodeClassRef: {name: default, kind: KWOKNodeClass, group: karpenter.kwok.sh}
      expireAfter: Never
  limits: {cpu: 100}
  disruption: {consolidationPolicy: WhenEmptyOrUnderutilized, consolidateAfter: 5s}
%[4]s`, s.namespace, subset, poolLabel, options))
}

// open creates the spread and then the Deployment, whose pods request this much CPU. The strategy is what it has besides the binding.
func (s *shop) open(replicas int, strategy, cpu string) {
	s.t.Helper()
	s.apply(s.namespace, fmt.Sprintf(`
apiVersion: apps.kruise.io/v1alpha1
kind: WorkloadSpread
metadata: {name: shop}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: shop}
  scheduleStrategy: {%[2]s}
  subsets:
  - name: normal
    maxReplicas: 10
    requiredNodeSelectorTerm: {matchExpressions: [{key: %[3]s, operator: In, values: [%[1]s-normal]}]}
  - name: elastic
    requiredNodeSelectorTerm: {matchExpressions: [{key: %[3]s, operator: In, values: [%[1]s-elastic]}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: shop}
spec:
  replicas: %[4]d
  selector: {matchLabels: {app: shop}}
  template:
    metadata: {labels: {app: shop}}
    spec:
      containers: [{name: main, image: registry.k8s.io/pause:3.10, resources: {requests: {cpu: %[5]s, memory: 128Mi}}}]
`, s.namespace, strings.TrimSuffix("binding: "+*binding+", "+strategy, ", "), poolLabel, replicas, cpu))
}

func (s *shop) apply(namespace, text string) {
	s.t.Helper()
	if err := the.ApplyYAML(s.t.Context(), namespace, text); err != nil {
		s.t.Fatal(err)
	}
}

func (s *shop) scale(replicas int) {
	s.t.Helper()
	s.patch("deployments", fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas))
}

func (s *shop) rollOut() {
	s.t.Helper()
	s.patch("deployments", fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"restarted":"%d"}}}}}`, time.Now().UnixNano()))
}

func (s *shop) patch(resource, patch string) {
	s.t.Helper()
	of := schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: resource}
	if _, err := the.Dynamic.Resource(of).Namespace(s.namespace).Patch(s.t.Context(), "shop", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

// layout is how many pods are ready in each subset, and how many are there otherwise.
func (s *shop) layout(ctx context.Context) (map[string]int, error) {
	pods, err := the.Pods(ctx, s.namespace)
	if err != nil {
		return nil, err
	}
	nodes, err := the.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: fmt.Sprintf("%[1]s in (%[2]s-normal, %[2]s-elastic)", poolLabel, s.namespace)})
	if err != nil {
		return nil, err
	}
	poolOf := map[string]string{}
	for i := range nodes.Items {
		poolOf[nodes.Items[i].Name] = strings.TrimPrefix(nodes.Items[i].Labels[poolLabel], s.namespace+"-")
	}
	layout := map[string]int{}
	for i := range pods {
		switch pod := &pods[i]; {
		case pod.DeletionTimestamp != nil:
			layout["ending"]++
		case pod.Spec.NodeName == "":
			layout["pending"]++
		case !isReady(pod):
			layout["starting"]++
		default:
			layout[poolOf[pod.Spec.NodeName]]++
		}
	}
	return layout, nil
}

func isReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue })
}

// expect waits until the pods of each subset are ready, and no others are there.
func (s *shop) expect(want map[string]int) {
	s.t.Helper()
	if err := the.WaitFor(s.t.Context(), fmt.Sprintf("%v", want), func(ctx context.Context) (string, error) {
		got, err := s.layout(ctx)
		if err != nil || maps.Equal(got, want) {
			return "", err
		}
		return fmt.Sprint(got), nil
	}); err != nil {
		s.t.Fatalf("%v\n%s", err, s.state())
	}
}

// expectToStay fails if the layout changes for this long.
func (s *shop) expectToStay(want map[string]int, during time.Duration) {
	s.t.Helper()
	before := s.pods.deleted()
	until := time.Now().Add(during)
	ctx, cancel := context.WithDeadline(s.t.Context(), until)
	defer cancel()
	ticker := time.NewTicker(250 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		got, err := s.layout(s.t.Context())
		if err != nil {
			s.t.Fatal(err)
		}
		if deleted := s.pods.deleted() - before; !maps.Equal(got, want) || deleted > 0 {
			s.t.Fatalf("%v before the end, the pods are %v, want %v, and %d were deleted\n%s", time.Until(until).Round(time.Second), got, want, deleted, s.state())
		}
	}
}

// state is what a person would look at.
func (s *shop) state() string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var b strings.Builder
	pods, err := the.Pods(ctx, s.namespace)
	if err != nil {
		return err.Error()
	}
	for i := range pods {
		p := &pods[i]
		fmt.Fprintf(&b, "%s on %q, gates %v, picked %s", p.Name, p.Spec.NodeName, p.Spec.SchedulingGates, p.Annotations["berth.dev/admitted-subset"])
		for _, c := range p.Status.Conditions {
			if c.Status != corev1.ConditionTrue {
				fmt.Fprintf(&b, ", %s %s: %s", c.Type, c.Reason, c.Message)
			}
		}
		b.WriteByte('\n')
	}
	if claims, err := the.Dynamic.Resource(nodeClaims).List(ctx, metav1.ListOptions{}); err == nil {
		for i := range claims.Items {
			fmt.Fprintf(&b, "node claim %s\n", claims.Items[i].GetName())
		}
	}
	return b.String()
}

// podWatch counts the pods of a namespace that ran and were deleted.
type podWatch struct {
	mu      sync.Mutex
	running map[types.UID]bool
	// nodes are those of all pods that ran, also of pods that are gone.
	nodes map[types.UID]string
	gone  int
	// fewest is how many pods were ready at the least since somebody has set it.
	fewest int
}

func watchPods(t *testing.T, namespace string) *podWatch {
	t.Helper()
	w := &podWatch{running: map[types.UID]bool{}, nodes: map[types.UID]string{}}
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(the.Client.CoreV1().RESTClient(), "pods", namespace, fields.Everything()),
		ObjectType:    &corev1.Pod{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { w.see(obj.(*corev1.Pod)) },
			UpdateFunc: func(_, obj any) { w.see(obj.(*corev1.Pod)) },
		},
	})
	go informer.RunWithContext(t.Context())
	return w
}

func (w *podWatch) see(pod *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case pod.DeletionTimestamp == nil:
		w.running[pod.UID], w.nodes[pod.UID] = isReady(pod), pod.Spec.NodeName
	case w.running[pod.UID]:
		w.running[pod.UID] = false
		w.gone++
	}
	w.fewest = min(w.fewest, w.ready())
}

func (w *podWatch) ready() (n int) {
	for _, ready := range w.running {
		if ready {
			n++
		}
	}
	return n
}

// deleted is how many ready pods were deleted so far.
func (w *podWatch) deleted() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.gone
}

// nodeOf is the node of a pod that ran.
func (w *podWatch) nodeOf(pod types.UID) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.nodes[pod]
}

// The first case of the README. The own nodes have more room than the quota allows to use, and no elastic node exists.
func TestNodesAreMadeForPodsBeyondTheQuota(t *testing.T) {
	s := newShop(t)
	s.ownNodes(3, "8")
	s.nodePool("elastic", "")
	s.open(15, "", "500m")
	s.expect(map[string]int{"normal": 10, "elastic": 5})
	s.expectPromptStarts()
	// Consolidation is allowed from 5 s on. A pod that runs in the elastic subset must not look as if it had room on the own nodes.
	s.expectToStay(map[string]int{"normal": 10, "elastic": 5}, 40*time.Second)
	s.scale(8)
	s.expect(map[string]int{"normal": 8})
}

// expectPromptStarts fails if a pod that waited for a node of Karpenter was ready much later than the node. Conditions have times in seconds.
func (s *shop) expectPromptStarts() {
	s.t.Helper()
	const limit = 10 * time.Second
	pods, err := the.Pods(s.t.Context(), s.namespace)
	if err != nil {
		s.t.Fatal(err)
	}
	nodes, err := the.Client.CoreV1().Nodes().List(s.t.Context(), metav1.ListOptions{LabelSelector: poolLabel + "=" + s.namespace + "-elastic"})
	if err != nil {
		s.t.Fatal(err)
	}
	ready := map[string]time.Time{}
	for i := range nodes.Items {
		for _, c := range nodes.Items[i].Status.Conditions {
			if c.Type == corev1.NodeReady {
				ready[nodes.Items[i].Name] = c.LastTransitionTime.Time
			}
		}
	}
	var waits []time.Duration
	for i := range pods {
		node, elastic := ready[pods[i].Spec.NodeName]
		for _, c := range pods[i].Status.Conditions {
			if elastic && c.Type == corev1.PodReady {
				waits = append(waits, c.LastTransitionTime.Sub(node))
			}
		}
	}
	slices.Sort(waits)
	s.t.Logf("from a ready node to a ready pod: %v", waits)
	if len(waits) == 0 || waits[len(waits)-1] > limit {
		s.t.Errorf("pods were ready %v after their nodes, want at most %s", waits, limit)
	}
}

// Pods lose their gates one after the other, and Karpenter makes nodes for those that it sees. It must not make many more than for a Deployment without a
// spread.
func TestNoMoreNodesAreMadeThanWithoutASpread(t *testing.T) {
	const pods = 60
	bought := map[string]float64{}
	for _, name := range []string{"without a spread", "gated"} {
		t.Run(name, func(t *testing.T) {
			s := newShop(t)
			s.nodePool("elastic", "")
			s.patchPool("elastic", `{"spec":{"disruption":{"consolidateAfter":"Never"}}}`)
			if s.open(0, "", "900m"); name == "gated" {
				s.ownNodes(3, "8")
				s.scale(10 + pods)
				s.expect(map[string]int{"normal": 10, "elastic": pods})
			} else {
				s.apply(s.namespace, fmt.Sprintf(plainDeployment, pods, poolLabel, s.namespace))
				s.expect(map[string]int{"elastic": pods})
			}
			cpus, err := s.boughtCPUs(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("Karpenter made nodes of %v CPUs for %d pods of 0.9", cpus, pods)
			measured.Lock()
			defer measured.Unlock()
			if bought[name] = cpus; len(bought) == 2 && bought["gated"] > 1.1*bought["without a spread"] {
				t.Errorf("Karpenter made nodes of %v CPUs, and of %v without a spread", bought["gated"], bought["without a spread"])
			}
		})
	}
}

// measured guards what two shops compare.
var measured sync.Mutex

const plainDeployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: plain}
spec:
  replicas: %[1]d
  selector: {matchLabels: {app: plain}}
  template:
    metadata: {labels: {app: plain}}
    spec:
      nodeSelector: {%[2]s: %[3]s-elastic}
      containers: [{name: main, image: registry.k8s.io/pause:3.10, resources: {requests: {cpu: 900m, memory: 128Mi}}}]
`

// boughtCPUs are those of the nodes that Karpenter has made.
func (s *shop) boughtCPUs(ctx context.Context) (cpus float64, err error) {
	nodes, err := the.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: poolLabel + "=" + s.namespace + "-elastic"})
	if err != nil {
		return 0, err
	}
	for i := range nodes.Items {
		cpus += nodes.Items[i].Status.Capacity.Cpu().AsApproximateFloat64()
	}
	return cpus, nil
}

// Both subsets are on nodes of Karpenter, and there is none at first.
func TestEachSubsetGetsNodesForItsQuota(t *testing.T) {
	s := newShop(t)
	s.nodePool("normal", "")
	s.nodePool("elastic", "")
	s.open(15, "", "900m")
	s.expect(map[string]int{"normal": 10, "elastic": 5})
	s.expectToStay(map[string]int{"normal": 10, "elastic": 5}, 20*time.Second)
}

// With a budget, no node stays half drained.
func TestABudgetLeavesNoNodeHalfDrained(t *testing.T) {
	s := newShop(t)
	s.ownNodes(3, "8")
	s.nodePool("elastic", "")
	s.apply(s.namespace, `
apiVersion: policy.kruise.io/v1alpha1
kind: PodUnavailableBudget
metadata: {name: shop}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: shop}
  maxUnavailable: 1
`)
	s.open(15, "", "500m")
	s.expect(map[string]int{"normal": 10, "elastic": 5})
	s.expectToStay(map[string]int{"normal": 10, "elastic": 5}, 20*time.Second)
	// Fewer pods need fewer nodes, and what Karpenter begins it must be able to end.
	s.scale(11)
	s.expect(map[string]int{"normal": 10, "elastic": 1})
	s.expectNothingHalfDrained()
}

// Karpenter does not know Berth's budgets. It plans by the PodDisruptionBudget that Berth keeps: it begins with no node while no pod may go, and otherwise it
// ends what it begins.
func TestKarpenterPlansByTheKeptPodDisruptionBudget(t *testing.T) {
	const pods = 6
	s := newShop(t)
	s.nodePool("elastic", "")
	allow := func(maxUnavailable int32) {
		s.apply(s.namespace, fmt.Sprintf(`
apiVersion: policy.kruise.io/v1beta1
kind: PodUnavailableBudget
metadata: {name: plain}
spec: {selector: {matchLabels: {app: plain}}, maxUnavailable: %d, keepPodDisruptionBudget: true}
`, maxUnavailable))
		s.wait("the PodDisruptionBudget", func(ctx context.Context) (string, error) {
			pdb, err := the.Client.PolicyV1().PodDisruptionBudgets(s.namespace).Get(ctx, "plain", metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return "there is none", nil
			}
			return map[bool]string{false: fmt.Sprintf("%+v", pdb.Status)}[err == nil && pdb.Status.CurrentHealthy == pods && pdb.Status.DisruptionsAllowed == maxUnavailable], err
		})
	}
	s.apply(s.namespace, fmt.Sprintf(plainDeployment, pods, poolLabel, s.namespace))
	s.expect(map[string]int{"elastic": pods})
	allow(0)
	s.pods.set(pods)
	const generation = "example.com/generation"
	s.patchPool("elastic", fmt.Sprintf(`{"spec":{"template":{"metadata":{"labels":{%q:"2"}}}}}`, generation)) // each node has to be replaced
	s.wait("Karpenter to know that each node has to be replaced", func(ctx context.Context) (string, error) {
		claims, err := the.Dynamic.Resource(nodeClaims).List(ctx, metav1.ListOptions{LabelSelector: "karpenter.sh/nodepool=" + s.namespace + "-elastic"})
		if err != nil {
			return "", err
		}
		for i := range claims.Items {
			conditions, _, err := unstructured.NestedSlice(claims.Items[i].Object, "status", "conditions")
			if err != nil || !slices.ContainsFunc(conditions, func(c any) bool {
				condition, is := c.(map[string]any)
				return is && condition["type"] == "Drifted" && condition["status"] == "True"
			}) {
				return fmt.Sprintf("%s has %v", claims.Items[i].GetName(), conditions), err
			}
		}
		return "", nil
	})
	s.expectToStay(map[string]int{"elastic": pods}, 20*time.Second)
	if names, err := s.tainted(t.Context()); err != nil || len(names) > 0 {
		t.Errorf("Karpenter has begun with %v, error %v", names, err)
	}
	allow(1)
	s.wait("all nodes to be replaced", func(ctx context.Context) (string, error) {
		nodes, err := the.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: fmt.Sprintf("%s=%s-elastic,%s!=2", poolLabel, s.namespace, generation)})
		return map[bool]string{false: fmt.Sprintf("%d are old", len(nodes.Items))}[len(nodes.Items) == 0], err
	})
	s.expect(map[string]int{"elastic": pods})
	s.expectNothingHalfDrained()
	if fewest := s.pods.set(0); fewest != pods-1 {
		t.Errorf("%d pods were ready at the least, want %d", fewest, pods-1)
	}
}

// set begins to look for the fewest ready pods, and returns how many they were before.
func (w *podWatch) set(fewest int) (before int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before, w.fewest = w.fewest, fewest
	return before
}

// wait fails the test if the condition does not come true.
func (s *shop) wait(what string, check func(context.Context) (string, error)) {
	s.t.Helper()
	if err := the.WaitFor(s.t.Context(), what, check); err != nil {
		s.t.Fatalf("%v\n%s", err, s.state())
	}
}

// tainted are the nodes that Karpenter has begun to remove.
func (s *shop) tainted(ctx context.Context) (names []string, err error) {
	nodes, err := the.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: poolLabel})
	if err != nil {
		return nil, err
	}
	for i := range nodes.Items {
		if node := &nodes.Items[i]; strings.HasPrefix(node.Labels[poolLabel], s.namespace) && slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == disruptedTaint }) {
			names = append(names, node.Name)
		}
	}
	return names, nil
}

// expectNothingHalfDrained waits until Karpenter has ended what it has begun.
func (s *shop) expectNothingHalfDrained() {
	s.t.Helper()
	if err := the.WaitFor(s.t.Context(), "no node to be half drained", func(ctx context.Context) (string, error) {
		names, err := s.tainted(ctx)
		return strings.Join(names, " "), err
	}); err != nil {
		s.t.Errorf("%v\n%s", err, s.state())
	}
}

// expectEvictionsToHaveRemovedNodes fails if a node is still there from which Karpenter has evicted pods: they moved for nothing. Karpenter writes an event for
// each pod. Returns how many there are.
func (s *shop) expectEvictionsToHaveRemovedNodes() int {
	s.t.Helper()
	moved := 0
	if err := the.WaitFor(s.t.Context(), "the nodes of evicted pods to be gone", func(ctx context.Context) (string, error) {
		events, err := the.Client.CoreV1().Events(s.namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=Evicted,involvedObject.kind=Pod"})
		if err != nil {
			return "", err
		}
		nodes, err := the.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: poolLabel + "=" + s.namespace + "-elastic"})
		if err != nil {
			return "", err
		}
		moved = len(events.Items)
		for i := range events.Items {
			pod := events.Items[i].InvolvedObject
			if node := s.pods.nodeOf(pod.UID); slices.ContainsFunc(nodes.Items, func(n corev1.Node) bool { return n.Name == node }) {
				return fmt.Sprintf("%s was evicted from %s", pod.Name, node), nil
			}
		}
		return "", nil
	}); err != nil {
		s.t.Errorf("%v\n%s", err, s.state())
	}
	return moved
}

// With strategy Adaptive, pods for which the own nodes have no room go on, before any node is made for them.
func TestAdaptivePodsGoOnToTheElasticNodes(t *testing.T) {
	s := newShop(t)
	s.ownNodes(1, "3200m")
	s.nodePool("elastic", "")
	s.open(15, "type: Adaptive", "500m")
	s.expect(map[string]int{"normal": 6, "elastic": 9})
}

// Pods that no subset has a node for wait in the first subset. Those that wait there in vain go on, and no pod that runs is moved.
func TestAdaptivePodsGoOnAfterAWaitInVain(t *testing.T) {
	for name, tc := range map[string]struct {
		cpus string
		want map[string]int
	}{
		"the first pool has capacity": {"100", map[string]int{"normal": 6}},
		"the first pool has none":     {"0", map[string]int{"elastic": 6}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShop(t)
			s.nodePool("normal", "")
			s.limit("normal", tc.cpus)
			s.nodePool("elastic", "")
			for _, pool := range []string{"normal", "elastic"} { // Karpenter may join the nodes that it made for the first pods and for later ones
				s.patchPool(pool, `{"spec":{"disruption":{"consolidateAfter":"Never"}}}`)
			}
			s.open(6, "type: Adaptive, adaptive: {rescheduleCriticalSeconds: 10}", "500m")
			s.expect(tc.want)
			if moved := s.pods.deleted(); moved > 0 {
				t.Errorf("%d ready pods were deleted\n%s", moved, s.state())
			}
		})
	}
}

// A pod beyond all quotas may run on any node. Its own nodes are full, so a node must be made for it.
func TestNodesAreMadeForPodsBeyondAllQuotas(t *testing.T) {
	s := newShop(t)
	s.ownNodes(1, "5")
	s.nodePool("elastic", "")
	s.open(0, "whenFull: Schedule", "500m")
	spreads := schema.GroupVersionResource{Group: "apps.kruise.io", Version: "v1alpha1", Resource: "workloadspreads"}
	if _, err := the.Dynamic.Resource(spreads).Namespace(s.namespace).Patch(t.Context(), "shop", types.JSONPatchType,
		[]byte(`[{"op": "add", "path": "/spec/subsets/1/maxReplicas", "value": 2}]`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	// no nodes of others
	s.patch("deployments", fmt.Sprintf(`{"spec": {"template": {"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
		{"matchExpressions": [{"key": %q, "operator": "In", "values": [%q, %q]}]}]}}}}}}}`, poolLabel, s.namespace+"-normal", s.namespace+"-elastic"))
	s.scale(14)
	s.expect(map[string]int{"normal": 10, "elastic": 4})
}

// A pod that waits for another gate too is placed when that is gone, whichever goes first. The queue opens its gate for later pods, too: kube-controller-manager may evict a pod that
// was bound just after Karpenter removed its taint from a new node.
func TestAGateOfSomebodyElse(t *testing.T) {
	s := newShop(t)
	s.ownNodes(1, "8")
	s.nodePool("elastic", "")
	s.open(0, "", "500m")
	s.patch("deployments", `{"spec":{"replicas":12,"template":{"spec":{"schedulingGates":[{"name":"example.com/queue"}]}}}}`)
	s.expect(map[string]int{"pending": 12})
	pods, err := the.Pods(t.Context(), s.namespace)
	if err != nil {
		t.Fatal(err)
	}
	for i := range pods {
		if gates := pods[i].Spec.SchedulingGates; len(gates) != 2 {
			t.Errorf("%s has the gates %v, want two", pods[i].Name, gates)
		}
	}
	want := map[string]int{"normal": 10, "elastic": 2}
	if err := the.WaitFor(t.Context(), "the pods of the queue", func(ctx context.Context) (string, error) {
		pods, err := the.Pods(ctx, s.namespace)
		if err != nil {
			return "", err
		}
		for i := range pods {
			if !slices.ContainsFunc(pods[i].Spec.SchedulingGates, func(gate corev1.PodSchedulingGate) bool { return gate.Name == "example.com/queue" }) {
				continue
			}
			patch := []byte(`{"spec":{"schedulingGates":[{"$patch":"delete","name":"example.com/queue"}]}}`)
			if _, err := the.Client.CoreV1().Pods(s.namespace).Patch(ctx, pods[i].Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return "", err
			}
		}
		got, err := s.layout(ctx)
		if err != nil || maps.Equal(got, want) {
			return "", err
		}
		return fmt.Sprint(got), nil
	}); err != nil {
		t.Fatalf("%v\n%s", err, s.state())
	}
}

// A pod that waits for a node in a subset that no pool can serve says so, and the others run.
func TestASubsetThatNoPoolServes(t *testing.T) {
	s := newShop(t)
	s.ownNodes(1, "8")
	s.open(12, "", "500m")
	s.expect(map[string]int{"normal": 10, "pending": 2})
	s.expectToSay("elastic: no node belongs to it", 2)
}

// A template that contradicts all subsets makes no node, and its pods say which subset has none for them.
func TestATemplateThatContradictsAllSubsets(t *testing.T) {
	s := newShop(t)
	s.ownNodes(1, "8")
	s.nodePool("elastic", "")
	s.open(0, "", "500m")
	s.patch("deployments", fmt.Sprintf(`{"spec":{"replicas":2,"template":{"spec":{"nodeSelector":{%q:"elsewhere"}}}}}`, poolLabel))
	s.expectToSay("normal: ", 2)
	s.expectToStay(map[string]int{"pending": 2}, 20*time.Second)
	if cpus, err := s.boughtCPUs(t.Context()); err != nil || cpus > 0 {
		t.Errorf("Karpenter made nodes of %v CPUs for pods that no subset can have (error %v)", cpus, err)
	}
}

// expectToSay waits until this many pods say in their condition PodScheduled, as unschedulable, what they wait for.
func (s *shop) expectToSay(part string, pods int) {
	s.t.Helper()
	if err := the.WaitFor(s.t.Context(), "the pods to say what they wait for", func(ctx context.Context) (string, error) {
		all, err := the.Pods(ctx, s.namespace)
		if err != nil {
			return "", err
		}
		said := 0
		for i := range all {
			if slices.ContainsFunc(all[i].Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable && strings.Contains(c.Message, part)
			}) {
				said++
			}
		}
		if said != pods {
			return fmt.Sprintf("%d of %d pods do", said, pods), nil
		}
		return "", nil
	}); err != nil {
		s.t.Fatalf("%v\n%s", err, s.state())
	}
}
