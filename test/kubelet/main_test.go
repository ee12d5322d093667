// Package kubelet runs Berth on real nodes: kubelets and containerds of the sandbox, whose containers run and answer. It holds the promises that depend on what a node does and
// reports: grace periods, restarts, images, resizes, a node that is lost. A test asks the containers themselves how many of them serve, and never only the API.
//
// The nodes need root and some of Debian's packages; `make test-kubelet` installs them. Where that is not possible, the package fails with one line that says what the machine lacks.
package kubelet

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/test/harness"
)

// the is the cluster that all tests share.
var the *harness.Cluster

// The nodes by what happens to them, as in their label "pool". Tests that run at the same time share the first two.
const (
	kept      = "kept"
	drained   = "drained"
	lost      = "lost"
	restarted = "restarted"
	changed   = "changed"
)

var pools = []string{kept, kept, drained, lost, restarted, changed}

var kubeletBinary = flag.String("kubelet", "", "path of the nodes' kubelet, for instance one of an earlier version; empty means that of the line")

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "10"); err != nil { // the tests wait most of the time
		panic(err)
	}
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	dir, err := os.MkdirTemp("", "berth-kubelet-")
	if err != nil {
		return 1, err
	}
	defer func() {
		if code == 0 && err == nil {
			err = os.RemoveAll(dir)
			return
		}
		err = errors.Join(err, fmt.Errorf("logs are in %s", dir))
	}()
	if login, err = listenAsLogind(dir); err != nil {
		return 1, err
	}
	defer login.listener.Close()
	config := sandbox.Config{Name: "kubelet", Dir: dir, Kubelets: len(pools)}
	if *kubeletBinary != "" {
		if config.KubeletBinary, err = filepath.Abs(*kubeletBinary); err != nil {
			return 1, err
		}
	}
	if the, err = harness.Start(ctx, config, product.Options{SidecarSets: true}); err != nil {
		return 1, err
	}
	defer the.Sandbox.Stop()
	for replica, pool := range pools {
		label := fmt.Appendf(nil, `{"metadata": {"labels": {"pool": %q}}}`, pool)
		if _, err := the.Client.CoreV1().Nodes().Patch(ctx, sandbox.KubeletNode(replica), types.MergePatchType, label, metav1.PatchOptions{}); err != nil {
			return 1, err
		}
	}
	return m.Run(), nil
}

// world is a namespace of one test.
type world struct {
	*testing.T
	ctx       context.Context
	namespace string
}

func newWorld(t *testing.T, yaml string) world {
	t.Helper()
	t.Parallel()
	namespace, err := the.CreateNamespace(t.Context(), "kubelet")
	if err != nil {
		t.Fatal(err)
	}
	w := world{t, t.Context(), namespace}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(w.kubectl(context.Background(), "get", "pods", "-o=wide"), "\n", w.kubectl(context.Background(), "get", "podunavailablebudgets,events"), "\n", w.kubectl(context.Background(), "get", "pods", "-o=jsonpath={range .items[*]}{.metadata.name} {.metadata.generation} {.status}{\"\\n\"}{end}"))
		}
		if err := the.Client.CoreV1().Namespaces().Delete(context.Background(), namespace, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	w.apply(yaml)
	return w
}

func (w world) apply(yaml string) {
	w.Helper()
	if err := the.ApplyYAML(w.ctx, w.namespace, yaml); err != nil {
		w.Fatal(err)
	}
}

// workload is a ReplicaSet of web servers. A new template is for new pods only.
type workload struct {
	replicas int
	pool     string
	// grace is terminationGracePeriodSeconds. args are those of the server.
	grace int
	args  []string
	// cpu is 1m if it is empty.
	cpu string
	// image is sandbox.ServerImage if it is empty.
	image string
}

func (l workload) yaml() string {
	return fmt.Sprintf(`apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: web}
spec:
  replicas: %d
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      nodeSelector: {pool: %s}
      terminationGracePeriodSeconds: %d
      containers:
      - name: web
        image: %s
        args: [%s]
        resources: {requests: {cpu: %s}}
        readinessProbe: {httpGet: {path: /ready, port: 8080}, periodSeconds: 1}
---
`, l.replicas, l.pool, l.grace, cmp.Or(l.image, sandbox.ServerImage), strings.Join(append([]string{"serve"}, l.args...), ", "), cmp.Or(l.cpu, "1m"))
}

// budget lets one pod be missing.
const budget = `apiVersion: policy.kruise.io/v1alpha1
kind: PodUnavailableBudget
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  maxUnavailable: 1
---
`

// waitFor polls until the condition returns an empty string, which says what is missing.
func (w world) waitFor(limit time.Duration, what string, condition func() string) {
	w.Helper()
	var missing string
	began := time.Now()
	err := wait.PollUntilContextTimeout(w.ctx, 100*time.Millisecond, limit, true, func(context.Context) (bool, error) {
		missing = condition()
		return missing == "", nil
	})
	if err != nil {
		w.Fatalf("waiting for %s: %v: %s", what, err, missing)
	}
	w.Logf("%s after %s", what, time.Since(began).Round(100*time.Millisecond))
}

const soon = 90 * time.Second

func (w world) pods() []corev1.Pod {
	w.Helper()
	pods, err := the.Pods(w.ctx, w.namespace)
	if err != nil {
		w.Fatal(err)
	}
	return pods
}

func (w world) pod(name string) *corev1.Pod {
	w.Helper()
	pod, err := the.Client.CoreV1().Pods(w.namespace).Get(w.ctx, name, metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return pod
}

func isReady(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// ready returns when so many pods are ready and no others exist, with these pods.
func (w world) ready(count int) []corev1.Pod {
	w.Helper()
	var ready []corev1.Pod
	w.waitFor(soon, fmt.Sprintf("%d ready pods", count), func() string {
		all := w.pods()
		ready = nil
		for _, pod := range all {
			if isReady(&pod) && pod.DeletionTimestamp == nil {
				ready = append(ready, pod)
			}
		}
		if len(ready) == count && len(all) == count {
			return ""
		}
		return fmt.Sprintf("%d of %d pods are", len(ready), len(all))
	})
	return ready
}

func (w world) budget() v1beta1.PodUnavailableBudgetStatus {
	w.Helper()
	object, err := the.Dynamic.Resource(v1beta1.Resource).Namespace(w.namespace).Get(w.ctx, "web", metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	var read v1beta1.PodUnavailableBudget
	if err := k8sruntime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &read); err != nil {
		w.Fatal(err)
	}
	return read.Status
}

// counts returns when the budget says that so many pods are available and so many more may go.
func (w world) counts(limit time.Duration, available, allowed int32) {
	w.Helper()
	w.waitFor(limit, fmt.Sprintf("%d available, %d allowed", available, allowed), func() string {
		status := w.budget()
		if status.CurrentAvailable == available && status.UnavailableAllowed == allowed {
			return ""
		}
		return fmt.Sprintf("%d available, %d allowed, ledger %v", status.CurrentAvailable, status.UnavailableAllowed, status.Ledger)
	})
}

func (w world) evict(name string) error {
	return the.Client.PolicyV1().Evictions(w.namespace).Evict(w.ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: w.namespace}})
}

// refuses fails the test unless the pod may not be evicted now.
func (w world) refuses(name string) {
	w.Helper()
	if err := w.evict(name); !apierrors.IsTooManyRequests(err) {
		w.Errorf("the eviction of %s: got %v, want a refusal", name, err)
	}
}

// ask sends a request to the server in the pod.
func (w world) ask(method, address, path string) error {
	request, err := http.NewRequestWithContext(w.ctx, method, "http://"+address+":8080"+path, nil)
	if err != nil {
		return err
	}
	answer, err := askers.Do(request)
	if err != nil {
		return err
	}
	return answer.Body.Close()
}

var askers = &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// answers counts the containers that answer, until the returned function is called. It asks each pod that the API has at its address, ten times a second.
func (w world) answers() (stop func() (least, most int)) {
	ctx, cancel := context.WithCancel(w.ctx)
	var counting sync.WaitGroup
	least, most := 1<<30, 0
	counting.Go(func() {
		for ctx.Err() == nil {
			pods, err := the.Pods(ctx, w.namespace)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				w.Error(err)
				return
			}
			var mu sync.Mutex
			var asking sync.WaitGroup
			count := 0
			for _, pod := range pods {
				if pod.Status.PodIP != "" {
					asking.Go(func() {
						if w.ask(http.MethodGet, pod.Status.PodIP, "/") == nil {
							mu.Lock()
							defer mu.Unlock()
							count++
						}
					})
				}
			}
			asking.Wait()
			if ctx.Err() != nil {
				return
			}
			least, most = min(least, count), max(most, count)
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	return func() (int, int) {
		cancel()
		counting.Wait()
		return least, most
	}
}

// changing is locked by the test that has the node of pool changed.
var changing sync.Mutex

// takeNode lets no other test change that node until this one ends.
func (w world) takeNode() {
	changing.Lock()
	w.Cleanup(changing.Unlock)
}

// reconfigure restarts the kubelet of pool changed with other lines of its configuration, until the test ends or the returned function is called.
func (w world) reconfigure(changes ...string) (restore func()) {
	w.Helper()
	node := slices.Index(pools, changed)
	path := filepath.Join(the.Sandbox.KubeletDir(node), "config.yaml")
	before, err := os.ReadFile(path)
	if err != nil {
		w.Fatal(err)
	}
	restart := func(config string) {
		resume, err := the.Sandbox.Halt(sandbox.Kubelet, node)
		if err != nil {
			w.Error(err)
			return
		}
		defer resume()
		if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
			w.Error(err)
		}
	}
	after := strings.NewReplacer(changes...).Replace(string(before))
	if after == string(before) {
		w.Fatalf("there is nothing to change in\n%s", before)
	}
	restart(after)
	restore = sync.OnceFunc(func() { restart(string(before)) })
	w.Cleanup(restore)
	return restore
}

// kubectl returns what kubectl prints, also its error.
func (w world) kubectl(ctx context.Context, args ...string) string {
	command := exec.CommandContext(ctx, filepath.Join(harness.BinDir(), "kubectl"), append([]string{"--kubeconfig=" + the.Sandbox.Kubeconfig(), "--namespace=" + w.namespace}, args...)...)
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	if err := command.Run(); err != nil {
		fmt.Fprintf(&output, "kubectl %s: %v", strings.Join(args, " "), err)
	}
	return output.String()
}
