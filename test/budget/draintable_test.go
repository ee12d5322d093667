package budget

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/test/harness"
)

const (
	// drained is how many pods each workload has. One of them never becomes ready.
	drained = 4
	// drains is how many cases run at the same time. They mostly wait: kubectl drain tries again every 5 s.
	drains = 32
)

// ownBudget is a budget with a subject and a rule.
const ownBudget = `
apiVersion: policy.kruise.io/v1beta1
kind: PodUnavailableBudget
metadata: {name: web}
spec:
  %s
  %s
`

// podSpec is that of all pods of a namespace: they run only on its nodes.
const podSpec = `{nodeSelector: {test/drain: NAMESPACE}, restartPolicy: %s, containers: [{name: main, image: "web:1", resources: {requests: {cpu: 10m, memory: 16Mi}}}]}`

// drainable is a workload named web of four pods.
type drainable struct {
	// object is the workload in YAML. It is empty if the pods have none.
	object string
	// target is what a budget names. It is empty if only a selector finds the pods.
	target string
	// byProgram: the test makes the pods, as the program of the kind does. once: it makes none again.
	byProgram, once bool
}

func appsKind(kind, more string) drainable {
	return drainable{target: "apps/v1, kind: " + kind, object: fmt.Sprintf("{apiVersion: apps/v1, kind: %s, metadata: {name: web}, spec: {replicas: %d, selector: {matchLabels: {app: web}}, %stemplate: {metadata: {labels: {app: web}}, spec: %s}}}",
		kind, drained, more, fmt.Sprintf(podSpec, "Always"))}
}

func customKind(kind string) drainable {
	return drainable{target: "drains.example.com/v1, kind: " + kind, byProgram: true, object: fmt.Sprintf("{apiVersion: drains.example.com/v1, kind: %s, metadata: {name: web}, spec: {size: %d}}", kind, drained)}
}

// drainables has the first column of the documents' table.
var drainables = map[string]drainable{
	"Deployment":  appsKind("Deployment", ""),
	"ReplicaSet":  appsKind("ReplicaSet", ""),
	"StatefulSet": appsKind("StatefulSet", "serviceName: web, "),
	"Job": {target: "batch/v1, kind: Job", object: fmt.Sprintf("{apiVersion: batch/v1, kind: Job, metadata: {name: web}, spec: {parallelism: %d, completions: %[1]d, backoffLimit: 100, template: {metadata: {labels: {app: web}}, spec: %s}}}",
		drained, fmt.Sprintf(podSpec, "Never"))},
	"UnitedDeployment": {target: "apps.kruise.io/v1alpha1, kind: UnitedDeployment", object: fmt.Sprintf(`
{apiVersion: apps.kruise.io/v1alpha1, kind: UnitedDeployment, metadata: {name: web}, spec: {replicas: %d, selector: {matchLabels: {app: web}}, topology: {subsets: [{name: a}, {name: b}]},
  template: {deploymentTemplate: {metadata: {labels: {app: web}}, spec: {template: {metadata: {labels: {app: web}}, spec: %s}}}}}}`, drained, fmt.Sprintf(podSpec, "Always"))},
	"a custom kind with `scale`":            customKind("Scaled"),
	"a custom kind without `scale`":         customKind("Unscaled"),
	"a custom kind that Berth may not read": {object: customKind("Unread").object, byProgram: true},
	"nobody, and somebody makes new ones":   {byProgram: true},
	"nobody, and nobody makes new ones":     {byProgram: true, once: true},
}

// drainKinds defines the custom kinds.
func drainKinds() string {
	kind := func(name, scale string) string {
		return fmt.Sprintf(`
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[1]ss.drains.example.com}
spec:
  group: drains.example.com
  scope: Namespaced
  names: {kind: %[2]s, plural: %[1]ss, singular: %[1]s}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}, subresources: {status: {}%[3]s}}]
`, strings.ToLower(name), name, scale)
	}
	const scale = ", scale: {specReplicasPath: .spec.size, statusReplicasPath: .status.size}"
	return kind("Scaled", scale) + kind("Unscaled", "") + kind("Unread", scale) + `
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: drains-reader, labels: {rbac.berth.dev/aggregate-to-workload-reader: "true"}}
rules: [{apiGroups: [drains.example.com], resources: [scaleds, scaleds/scale, unscaleds, unscaleds/scale], verbs: [get, list, watch]}]
`
}

// drainCase is a cell of the documents' tables.
type drainCase struct {
	whose, rule string
	// targeted: the budget names the workload. Otherwise it selects the pods by their labels.
	targeted bool
	// want is "ends", or the reason for which the drain waits.
	want v1beta1.Reason
}

const ends v1beta1.Reason = "ends"

func (c *drainCase) String() string {
	return fmt.Sprintf("%s, %s, %s", c.whose, c.rule, map[bool]string{true: "targetRef", false: "selector"}[c.targeted])
}

// drainCases reads the tables of docs/operations/budgets.md. Jobs come first, because they take longest: only after 10 s, 20 s and so on does Kubernetes remove an evicted pod and make another.
func drainCases(t *testing.T) (cases []*drainCase) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(harness.Root(), "docs", "operations", "budgets.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "### Which drains end\n")
	section, _, _ = strings.Cut(section, "\n##")
	quoted := regexp.MustCompile("`([^`]+)`")
	add := func(whose, rule, want string) {
		want = strings.Trim(want, "`")
		if drainables[whose].target != "" {
			cases = append(cases, &drainCase{whose, rule, true, v1beta1.Reason(want)})
		}
		cases = append(cases, &drainCase{whose, rule, false, v1beta1.Reason(want)})
	}
	var rules []string
	rows := map[string]bool{}
	for line := range strings.SplitSeq(section, "\n") {
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		switch {
		case len(cells) == 5 && cells[0] == "the pods are of":
			for _, cell := range cells[1:] {
				rules = append(rules, strings.Trim(cell, "`"))
			}
		case len(cells) == 5 && rules != nil:
			if _, known := drainables[cells[0]]; !known {
				t.Errorf("the page has a row %q, which the test does not know", cells[0])
			}
			rows[cells[0]] = true
			for i, rule := range rules {
				add(cells[0], rule, cells[i+1])
			}
		case len(cells) == 3 && strings.HasPrefix(cells[0], "`"):
			for _, rule := range quoted.FindAllStringSubmatch(cells[0], -1) {
				add("Deployment", rule[1], cells[1])
			}
		}
	}
	for whose := range drainables {
		if !rows[whose] {
			t.Errorf("the page has no row %q", whose)
		}
	}
	if len(rules) != 4 || len(cases) < 70 {
		t.Fatalf("the page has %d cases under %q", len(cases), rules)
	}
	slices.SortStableFunc(cases, func(a, b *drainCase) int {
		return strings.Compare(fmt.Sprint(a.whose != "Job"), fmt.Sprint(b.whose != "Job"))
	})
	return cases
}

// TestWhichDrainsEnd runs kubectl drain for each cell of the tables in docs/operations/budgets.md, in namespaces and on nodes of their own. A watcher looks at every revision of the
// pods meanwhile. Where a drain waits, the refusal must name the reason and the way out, and the drain must end once somebody has gone that way.
func TestWhichDrainsEnd(t *testing.T) {
	harness.Long(t)
	cases := drainCases(t)
	apply(t, "", drainKinds())
	createsWorkloads(t)
	waitFor(t, "the custom kinds", func(ctx context.Context) (string, error) {
		if _, err := the.Client.Discovery().ServerResourcesForGroupVersion("drains.example.com/v1"); err != nil {
			return err.Error(), nil
		}
		return "", nil
	})
	var running sync.WaitGroup
	free := make(chan struct{}, drains)
	for i, c := range cases {
		free <- struct{}{}
		running.Go(func() {
			defer func() { <-free }()
			t.Run(c.String(), func(t *testing.T) { c.run(t, i%2 == 0) })
		})
	}
	running.Wait()
}

// createsWorkloads runs the process of Berth that creates workloads until the test ends.
func createsWorkloads(t *testing.T) {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := the.WriteKubeconfigAs("system:serviceaccount:berth-system:berth-united", kubeconfig); err != nil {
		t.Fatal(err)
	}
	united := exec.CommandContext(t.Context(), filepath.Join(harness.BinDir(), "berth-controller"), "--only-workloads", "--leader-elect=false", "--metrics-bind-address=0",
		"--health-probe-bind-address=0", "--shutdown-delay=0", "--kubeconfig="+kubeconfig)
	if err := united.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = united.Wait() }) // the context of the test has ended it
}

func (c *drainCase) run(t *testing.T, crashes bool) {
	t.Helper()
	d := drainables[c.whose]
	var nodes []*corev1.Node
	t.Cleanup(func() {
		if err := the.DeleteNodes(context.Background(), nodes); err != nil {
			t.Error(err)
		}
	})
	namespace := newNamespace(t)
	node := func(kind string, pods int64) string {
		allocatable := sandbox.Allocatable(resource.MustParse("4"), resource.MustParse("4Gi"))
		allocatable[corev1.ResourcePods] = *resource.NewQuantity(pods, resource.DecimalSI)
		n := sandbox.NewNode(kind+"-"+namespace, "zone-a", map[string]string{"test/drain": namespace}, nil, allocatable)
		nodes = append(nodes, n)
		if err := the.Sandbox.CreateNodes(t.Context(), []*corev1.Node{n}); err != nil {
			t.Fatal(err)
		}
		return n.Name
	}
	if d.object != "" {
		apply(t, namespace, strings.ReplaceAll(d.object, "NAMESPACE", namespace))
	}
	stop := func() {}
	if d.byProgram {
		stop = c.makePods(t, namespace)
	}
	there := drained - 1 // on the node whose pods become ready
	if c.whose == "Job" {
		there-- // each eviction takes twice as long as the one before, so one pod is on the spare node from the start
	}
	whole := node("whole", int64(there))
	waitFor(t, "the pods that become ready", func(context.Context) (string, error) {
		all, ready := pods(t, namespace), 0
		for i := range all {
			if isAvailable(&all[i]) {
				ready++
			}
		}
		return map[bool]string{false: fmt.Sprintf("%d of %d", ready, len(all))}[ready == there && len(all) == drained], nil
	})
	bad := node("broken", 1)
	var broken *corev1.Pod
	waitFor(t, "the pod that does not become ready", func(context.Context) (string, error) {
		for _, pod := range pods(t, namespace) {
			if pod.Spec.NodeName == bad {
				broken = &pod
				return "", nil
			}
		}
		return "it has no node", nil
	})
	neverReady(t, broken, crashes)
	node("spare", 2*drained)
	waitFor(t, "the other pods", func(context.Context) (string, error) {
		all := pods(t, namespace)
		return map[bool]string{false: "not all have a node"}[len(all) == drained && !slices.ContainsFunc(all, func(pod corev1.Pod) bool { return pod.Spec.NodeName == "" })], nil
	})
	if d.once {
		stop()
	}
	subject := "selector: {matchLabels: {app: web}}"
	if c.targeted {
		subject = "targetRef: {apiVersion: " + d.target + ", name: web}"
	}
	apply(t, namespace, fmt.Sprintf(ownBudget, subject, c.rule))
	inForce(t, namespace, drained-1)

	desired := desired(t, c.rule)
	floor := min(desired, drained-1)
	if c.want == v1beta1.ReasonReplicasUnknown {
		floor = drained - 1
	}
	w := watch(t, namespace, floor)
	if c.want == ends {
		c.mustEnd(t, namespace, whole, bad)
		return
	}
	out, err := drain(t, 6*time.Second, whole)
	if err == nil {
		t.Fatalf("the drain ended, and must wait: %s", out)
	}
	for _, text := range append(waysOut[c.want], "PodUnavailableBudget web") {
		if !strings.Contains(out, strings.ReplaceAll(text, "POD", broken.Name)) {
			t.Errorf("the drain printed no %q:\n%s", text, out)
		}
	}
	b, err := read(t.Context(), namespace)
	if err != nil {
		t.Fatal(err)
	}
	if is := meta.FindStatusCondition(b.Status.Conditions, v1beta1.ConditionDisruptionAllowed); is == nil || is.Status != metav1.ConditionFalse || is.Reason != string(c.want) {
		t.Errorf("condition %+v, want reason %s", is, c.want)
	}
	switch c.want {
	case v1beta1.ReasonReplicasUnknown:
		apply(t, namespace, fmt.Sprintf(ownBudget, subject, c.rule+fmt.Sprintf("\n  protectTotalReplicas: %d", drained)))
	case v1beta1.ReasonNoneMayGo:
		desired = 2
		apply(t, namespace, fmt.Sprintf(ownBudget, subject, fmt.Sprintf("maxUnavailable: %d", drained-desired)))
	}
	w.setFloor(desired)
	if d.once {
		c.makePods(t, namespace)
	}
	// The pod that is not ready goes first, if the others wait for its successor.
	c.mustEnd(t, namespace, bad, whole)
}

// waysOut are texts of refusals. POD stands for the pod that is not ready.
var waysOut = map[v1beta1.Reason][]string{
	v1beta1.ReasonReplicasUnknown:  {"has maxUnavailable or a percentage", "use minAvailable with a count, or set spec.protectTotalReplicas"},
	v1beta1.ReasonNoneMayGo:        {"no pod may go while the budget needs all of them: raise maxUnavailable, lower minAvailable, or scale up"},
	v1beta1.ReasonInsufficientPods: {"missing: ", "POD", "try again when more are available"},
}

// mustEnd drains the nodes one after the other, and waits until all pods have successors.
func (c *drainCase) mustEnd(t *testing.T, namespace string, nodes ...string) {
	t.Helper()
	if out, err := drain(t, 2*time.Minute, nodes...); err != nil {
		t.Fatalf("draining %q: %v\n%s", nodes, err, out)
	} else if c.want == ends && !strings.Contains(out, "PodUnavailableBudget web") {
		t.Errorf("the budget refused nothing: %s", out)
	}
	inForce(t, namespace, drained)
	for _, pod := range pods(t, namespace) {
		if slices.Contains(nodes, pod.Spec.NodeName) {
			t.Errorf("pod %s is still on node %s", pod.Name, pod.Spec.NodeName)
		}
	}
}

// drain runs kubectl drain, and returns what it prints.
func drain(t *testing.T, timeout time.Duration, nodes ...string) (string, error) {
	t.Helper()
	args := append([]string{"drain", "--ignore-daemonsets", "--force", "--timeout=" + timeout.String()}, nodes...)
	kubectl := exec.CommandContext(t.Context(), filepath.Join(harness.BinDir(), "kubectl"), args...)
	kubectl.Env = append(os.Environ(), "KUBECONFIG="+the.Sandbox.Kubeconfig())
	out, err := kubectl.CombinedOutput()
	var failed *exec.ExitError
	if err != nil && !errors.As(err, &failed) {
		t.Fatal(err)
	}
	return string(out), err
}

// desired is how many of the pods a rule asks for.
func desired(t *testing.T, rule string) int {
	t.Helper()
	name, value, _ := strings.Cut(rule, ": ")
	digits, isPercent := strings.CutSuffix(value, "%")
	n, err := strconv.Atoi(digits)
	if err != nil {
		t.Fatal(err)
	}
	if isPercent {
		n = (n*drained + 99) / 100
	}
	if name == "maxUnavailable" {
		n = drained - n
	}
	return n
}

// neverReady reports, as the kubelet of a broken node, that the container of a pod crashes or that its image cannot be pulled.
func neverReady(t *testing.T, pod *corev1.Pod, crashes bool) {
	t.Helper()
	setStatus(t.Context(), pod, func(status *corev1.PodStatus, live *corev1.Pod) {
		container := corev1.ContainerStatus{Name: "main", Image: live.Spec.Containers[0].Image, Resources: live.Spec.Containers[0].Resources.DeepCopy(),
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}}
		status.ObservedGeneration, status.Phase = live.Generation, corev1.PodPending
		if crashes {
			status.Phase, container.RestartCount, container.State.Waiting.Reason = corev1.PodRunning, 5, "CrashLoopBackOff"
		}
		setCondition(status, corev1.PodReady, false)
		setCondition(status, corev1.ContainersReady, false)
		status.ContainerStatuses = []corev1.ContainerStatus{container}
	})
}

// makePods makes pods until there are four, and again whenever one is missing, until somebody calls stop or the test ends. They belong to the object web if the workload is one.
func (c *drainCase) makePods(t *testing.T, namespace string) (stop func()) {
	t.Helper()
	labels := map[string]string{"app": "web"}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "web-", Labels: labels},
		Spec:       corev1.PodSpec{NodeSelector: map[string]string{"test/drain": namespace}, Containers: []corev1.Container{{Name: "main", Image: "web:1"}}},
	}
	if text := drainables[c.whose].object; text != "" {
		objects, err := harness.Documents(text)
		if err != nil {
			t.Fatal(err)
		}
		client, err := the.Resource(objects[0], namespace)
		if err != nil {
			t.Fatal(err)
		}
		var owner *unstructured.Unstructured
		if owner, err = client.Get(t.Context(), "web", metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, owner.GroupVersionKind())}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var program sync.WaitGroup
	program.Go(func() {
		_ = wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) { // it ends with the context
			all, err := the.Pods(ctx, namespace)
			if err != nil {
				return false, nil // the next round tries again
			}
			alive := slices.DeleteFunc(all, func(pod corev1.Pod) bool { return pod.DeletionTimestamp != nil })
			for range drained - len(alive) {
				if _, err := the.Client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
					return false, nil
				}
			}
			return false, nil
		})
	})
	stop = func() { cancel(); program.Wait() }
	t.Cleanup(stop)
	return stop
}
