package descheduler

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	policyv1beta1 "github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/descheduler"
	"github.com/berth-project/berth/pkg/descheduler/cycle"
	"github.com/berth-project/berth/pkg/plugins/descheduling"
	"github.com/berth-project/berth/test/harness"
)

func quantity(text string) resource.Quantity { return resource.MustParse(text) }

// workload is a ReplicaSet or Deployment web whose pods request this much CPU.
func workload(kind string, replicas int, cpu string) string {
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: %s
metadata: {name: web}
spec:
  replicas: %d
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: main, image: registry.k8s.io/pause:3.10, resources: {requests: {cpu: %s}}}]
`, kind, replicas, cpu)
}

// spreadOf is a WorkloadSpread web over pools of the namespace: "a=3 b=-" is 3 pods in a and any number in b.
func spreadOf(ns, kind, strategy, subsets string) string {
	text := fmt.Sprintf(`
apiVersion: apps.kruise.io/v1alpha1
kind: WorkloadSpread
metadata: {name: web}
spec:
  targetRef: {apiVersion: apps/v1, kind: %s, name: web}
  scheduleStrategy: %s
  subsets:
`, kind, strategy)
	for word := range strings.FieldsSeq(subsets) {
		name, quota, _ := strings.Cut(word, "=")
		name, patch, _ := strings.Cut(name, "!")
		text += fmt.Sprintf("  - name: %s\n    requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [%s-%s]}]}\n", name, ns, name)
		if quota != "-" {
			text += fmt.Sprintf("    maxReplicas: %s\n", quota)
		}
		if patch != "" {
			text += "    patch: {spec: {containers: [{name: main, env: [{name: POOL, value: " + name + "}]}]}}\n"
		}
	}
	return text
}

func apply(t *testing.T, ns, text string) {
	t.Helper()
	if err := the.ApplyYAML(t.Context(), ns, text); err != nil {
		t.Fatal(err)
	}
}

func waitFor(t *testing.T, what string, condition func(context.Context) (missing string, err error)) {
	t.Helper()
	if err := the.WaitFor(t.Context(), what, condition); err != nil {
		t.Fatal(err)
	}
}

// live returns the pods that are not being deleted.
func live(ctx context.Context, ns string) ([]corev1.Pod, error) {
	pods, err := the.Pods(ctx, ns)
	return slices.DeleteFunc(pods, func(pod corev1.Pod) bool { return pod.DeletionTimestamp != nil }), err
}

// layout counts ready pods by subset, for example "a=3 b=2 pending=1". Pods without a subset are in "none".
func layout(pods []corev1.Pod) string {
	counts := map[string]int{}
	for i := range pods {
		in := pods[i].Labels[v1beta1.SubsetLabel]
		switch {
		case pods[i].Spec.NodeName == "":
			in = "pending"
		case !isReady(&pods[i]):
			in = "unready"
		case in == "":
			in = "none"
		}
		counts[in]++
	}
	var words []string
	for in, n := range counts {
		words = append(words, fmt.Sprintf("%s=%d", in, n))
	}
	slices.Sort(words)
	return strings.Join(words, " ")
}

func isReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// expectLayout waits until the namespace has this layout and no other pods.
func expectLayout(t *testing.T, ns, want string) {
	t.Helper()
	waitFor(t, "pods in "+want, func(ctx context.Context) (string, error) {
		pods, err := the.Pods(ctx, ns)
		if err != nil {
			return "", err
		}
		for i := range pods {
			if pods[i].DeletionTimestamp != nil {
				return "a pod is being deleted", nil
			}
		}
		if got := layout(pods); got != want {
			return "it is " + got + ".", nil
		}
		return "", nil
	})
}

// atRest waits until this number of pods are ready and no other pods exist.
func atRest(t *testing.T, ns string, replicas int) []corev1.Pod {
	t.Helper()
	var all []corev1.Pod
	waitFor(t, fmt.Sprintf("%d ready pods", replicas), func(ctx context.Context) (string, error) {
		pods, err := the.Pods(ctx, ns)
		if err != nil {
			return "", err
		}
		all = pods
		if len(pods) != replicas || slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil || !isReady(&p) }) {
			return "they are " + layout(pods) + ".", nil
		}
		return "", nil
	})
	return all
}

// The strategies have the shortest possible times, so that a test waits only for what it tests.
const (
	unschedulable = "EvictUnschedulableSubsetPods"
	enforce       = "EnforceSubsetMaxReplicas"
	rebalance     = "RebalanceToPreferredSubset"
)

// policyOf is a policy with one strategy for the namespace and additional args.
func policyOf(ns, strategy, args string) string {
	point := "deschedule"
	defaults := map[string]string{
		unschedulable: "skewTolerance: 0s, backoff: {base: 1s, longest: 2s}",
		enforce:       "settleTime: 0s, backoff: {base: 1s, longest: 2s}",
		rebalance:     "stabilizationWindow: 0s, minResidence: 0s, cooldown: 0s, backoff: {base: 1s, longest: 2s}",
	}[strategy]
	if strategy == rebalance {
		point = "balance"
	}
	if args == "" {
		args = defaults
	} else if !strings.Contains(args, "backoff") {
		args = args + ", backoff: {base: 1s, longest: 2s}"
	}
	return fmt.Sprintf(`
apiVersion: descheduler/v1alpha2
kind: DeschedulerPolicy
profiles:
- name: test
  pluginConfig:
  - {name: DefaultEvictor, args: {}}
  - {name: SubsetEvictor, args: {}}
  - {name: %s, args: {namespaces: {include: [%s]}, %s}}
  plugins:
    filter: {enabled: [SubsetEvictor]}
    preEvictionFilter: {enabled: [SubsetEvictor]}
    %s: {enabled: [%s]}
`, strategy, ns, args, point, strategy)
}

func writePolicy(t *testing.T, policy string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(path, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// descheduleOnce runs one cycle in this process. Like a CronJob's, the run starts without state.
func descheduleOnce(t *testing.T, policy string, change ...func(*descheduler.Options)) (*cycle.Report, error) {
	t.Helper()
	options, err := descheduler.NewOptions(descheduling.Register)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	options.Out, options.Explain = &out, "json"
	options.Server.PolicyConfigFile = writePolicy(t, policy)
	options.Server.ClientConnection.Kubeconfig = kubeconfigAs(t, serviceAccount)
	options.Server.SecureServing.BindPort = 0
	options.Server.DisableMetrics = true
	for _, c := range change {
		c(options)
	}
	err = descheduler.Run(t.Context(), options)
	report := &cycle.Report{}
	if out.Len() > 0 {
		if jsonErr := json.Unmarshal(out.Bytes(), report); jsonErr != nil {
			t.Fatal(jsonErr)
		}
	}
	return report, err
}

// at makes the cycle decide with this time as the current time.
func at(now time.Time) func(*descheduler.Options) {
	return func(o *descheduler.Options) { o.Clock = clocktesting.NewFakeClock(now) }
}

// mustDeschedule runs a cycle that must succeed. It returns the moved pods, and the reasons why it kept the others.
func mustDeschedule(t *testing.T, policy string, change ...func(*descheduler.Options)) (moved []cycle.Line, kept map[v1beta1.Reason]int) {
	t.Helper()
	report, err := descheduleOnce(t, policy, change...)
	if err != nil {
		t.Fatalf("exit code %d: %v\n%+v", descheduler.ExitCode(err), err, report.Lines)
	}
	kept = map[v1beta1.Reason]int{}
	for _, line := range report.Lines {
		if line.Verdict == "Move" {
			moved = append(moved, line)
		} else {
			kept[line.Reason]++
		}
	}
	return moved, kept
}

// process starts the command as it runs in a pod. The end of the test kills it.
func process(t *testing.T, user, policy string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	output := &bytes.Buffer{}
	cmd := exec.CommandContext(t.Context(), filepath.Join(harness.BinDir(), "berth-descheduler"), append([]string{
		"--kubeconfig=" + kubeconfigAs(t, user), "--policy-config-file=" + writePolicy(t, policy), "--secure-port=0", "--cert-dir=" + t.TempDir()}, args...)...)
	cmd.Stdout, cmd.Stderr = output, output
	return cmd, output
}

// exitCode returns the exit code of a process after Wait.
func exitCode(t *testing.T, err error) int {
	t.Helper()
	if err == nil {
		return 0
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return exit.ExitCode()
}

// disruptions watches the pods of a namespace. It counts the pods whose deletion begins, and the lowest number of ready pods at any revision.
type disruptions struct {
	mu      sync.Mutex
	pods    map[types.UID]bool // ready and not being deleted
	deleted map[types.UID]bool
	fewest  int
	broken  []string
}

// watchDisruptions begins with this number of ready pods. At least atLeast of them must stay ready.
func watchDisruptions(t *testing.T, ns string, atLeast int) *disruptions {
	t.Helper()
	d := &disruptions{pods: map[types.UID]bool{}, deleted: map[types.UID]bool{}, fewest: 1 << 30}
	factory := informers.NewSharedInformerFactoryWithOptions(the.Client, 0, informers.WithNamespace(ns))
	synced := false
	see := func(obj any, gone bool) {
		if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = tombstone.Obj
		}
		pod, ok := obj.(*corev1.Pod)
		if !ok {
			return
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if gone || pod.DeletionTimestamp != nil {
			d.deleted[pod.UID] = true
			delete(d.pods, pod.UID)
		} else if isReady(pod) {
			d.pods[pod.UID] = true
		} else {
			delete(d.pods, pod.UID)
		}
		if n := len(d.pods); synced {
			d.fewest = min(d.fewest, n)
			if n < atLeast {
				d.broken = append(d.broken, fmt.Sprintf("at revision %s %d pods were ready", pod.ResourceVersion, n))
			}
		}
	}
	registration, err := factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { see(obj, false) }, UpdateFunc: func(_, obj any) { see(obj, false) }, DeleteFunc: func(obj any) { see(obj, true) },
	})
	if err != nil {
		t.Fatal(err)
	}
	factory.Start(t.Context().Done())
	if !cache.WaitForCacheSync(t.Context().Done(), registration.HasSynced) {
		t.Fatal("the watch of pods did not begin")
	}
	d.mu.Lock()
	synced = true
	d.mu.Unlock()
	return d
}

// expect fails unless there were this many disruptions and at least atLeast pods were ready at every revision.
func (d *disruptions) expect(t *testing.T, want int) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.deleted) != want {
		t.Errorf("%d pods were disrupted, want %d", len(d.deleted), want)
	}
	for _, broken := range d.broken {
		t.Error(broken)
	}
}

// count returns how many pods began to be deleted.
func (d *disruptions) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.deleted)
}

// setQuota changes maxReplicas of the first subset.
func setQuota(t *testing.T, ns string, quota int) {
	t.Helper()
	patchSpread(t, ns, types.JSONPatchType, fmt.Sprintf(`[{"op":"replace","path":"/spec/subsets/0/maxReplicas","value":%d}]`, quota))
}

func patchSpread(t *testing.T, ns string, kind types.PatchType, body string) {
	t.Helper()
	if _, err := the.Dynamic.Resource(v1beta1.Resource).Namespace(ns).Patch(t.Context(), "web", kind, []byte(body), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

func patchNode(t *testing.T, name, body string) {
	t.Helper()
	if _, err := the.Client.CoreV1().Nodes().Patch(t.Context(), name, types.MergePatchType, []byte(body), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

func cordon(t *testing.T, nodes []*corev1.Node, cordoned bool) {
	t.Helper()
	for _, node := range nodes {
		patchNode(t, node.Name, fmt.Sprintf(`{"spec":{"unschedulable":%t}}`, cordoned))
	}
}

func spreadStatus(t *testing.T, ns string) v1beta1.WorkloadSpreadStatus {
	t.Helper()
	spread, err := the.Spread(t.Context(), ns, "web")
	if err != nil {
		t.Fatal(err)
	}
	return spread.Status
}

// told waits until the spread's status shows no pending pod. The controller writes that a moment after it becomes true.
func told(t *testing.T, ns string) {
	t.Helper()
	waitFor(t, "the status to say that no pod waits", func(ctx context.Context) (string, error) {
		spread, err := the.Spread(ctx, ns, "web")
		if err != nil {
			return "", err
		}
		status := &spread.Status
		if status.ObservedGeneration != spread.Generation || status.PendingPods > 0 || len(status.SubsetStatuses) != len(spread.Spec.Subsets) {
			return fmt.Sprintf("%+v", status), nil
		}
		for i := range status.SubsetStatuses {
			if !meta.IsStatusConditionTrue(status.SubsetStatuses[i].Conditions, v1beta1.ConditionSchedulable) {
				return status.SubsetStatuses[i].Name + " is not schedulable", nil
			}
		}
		return "", nil
	})
}

// inForce waits until the PodUnavailableBudget web allows this many disruptions.
func inForce(t *testing.T, ns string, allowed int64) {
	t.Helper()
	waitFor(t, "the budget", func(ctx context.Context) (string, error) {
		object, err := the.Dynamic.Resource(policyv1beta1.Resource).Namespace(ns).Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		status, _ := object.Object["status"].(map[string]any)
		if status["observedGeneration"] != object.GetGeneration() || status["unavailableAllowed"] != allowed {
			return fmt.Sprint(status), nil
		}
		return "", nil
	})
}
