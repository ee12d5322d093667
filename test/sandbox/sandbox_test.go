package sandbox

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/internal/sandbox"
)

const (
	// waitLimit bounds every wait.
	waitLimit    = time.Minute
	waitInterval = 50 * time.Millisecond

	// supervisorDir is an environment variable. If it is set, the test binary runs a sandbox in that directory until the test kills it.
	supervisorDir = "SANDBOX_TEST_SUPERVISOR_DIR"

	schedulerName = "kube-scheduler"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(supervisorDir); dir != "" {
		if err := supervise(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func TestSandbox(t *testing.T) {
	s := start(t, sandbox.Config{
		Nodes: 3, Components: []sandbox.Component{scheduler()}, AuditLog: true, Manifests: [][]byte{[]byte(manifests)},
	})
	client := clientFor(t, s)

	t.Run("nodes are ready in three zones", func(t *testing.T) {
		nodes, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		zones := map[string]bool{}
		for _, node := range nodes.Items {
			zones[node.Labels[corev1.LabelTopologyZone]] = true
			if !slices.ContainsFunc(node.Status.Conditions, func(condition corev1.NodeCondition) bool {
				return condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue
			}) {
				t.Errorf("node %s is not ready: %v", node.Name, node.Status.Conditions)
			}
			if len(node.Spec.Taints) > 0 {
				t.Errorf("node %s has taints %v", node.Name, node.Spec.Taints)
			}
			if got := node.Status.Allocatable.Cpu().String(); got != sandbox.DefaultNodeCPU {
				t.Errorf("node %s has %s CPUs, want %s", node.Name, got, sandbox.DefaultNodeCPU)
			}
		}
		if want := sandbox.DefaultZones(); !slices.Equal(slices.Sorted(maps.Keys(zones)), want) {
			t.Errorf("nodes are in zones %v, want %v", zones, want)
		}
	})

	t.Run("an object of a kind that the same manifest defines is there", func(t *testing.T) {
		if _, err := client.CoreV1().RESTClient().Get().AbsPath("/apis/example.com/v1/namespaces/shop/things/one").DoRaw(t.Context()); err != nil {
			t.Error(err)
		}
	})

	t.Run("pods of a deployment are scheduled and become ready", func(t *testing.T) {
		createDeployment(t, client, "web", 5, nil)
		expectReadyReplicas(t, client, "web", 5)
	})

	t.Run("a killed component is back within a second or so and does its work", func(t *testing.T) {
		before := statusOf(t, s, schedulerName)
		killed := time.Now()
		if err := s.Signal(schedulerName, 0, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "a new process", func(context.Context) (bool, error) {
			now := statusOf(t, s, schedulerName)
			return now.PID != 0 && now.PID != before.PID, nil
		})
		if took := time.Since(killed); took > 2*time.Second {
			t.Errorf("the new process was started after %s", took)
		}
		waitReady(t, s)
		if got := statusOf(t, s, schedulerName).Restarts; got != 1 {
			t.Errorf("restarts: got %d, want 1", got)
		}
		scale(t, client, "web", 8)
		expectReadyReplicas(t, client, "web", 8)
	})

	t.Run("a halted component stays down until it is resumed", func(t *testing.T) {
		restarts := statusOf(t, s, schedulerName).Restarts
		resume, err := s.Halt(schedulerName, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(resume)
		if _, err := s.Halt(schedulerName, 0); err == nil {
			t.Error("it was halted twice")
		}
		createDeployment(t, client, "waits", 1, nil)
		waitFor(t, "the pod", func(ctx context.Context) (bool, error) {
			pods, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=waits"})
			return err == nil && len(pods.Items) == 1, err
		})
		if now := statusOf(t, s, schedulerName); now.State != sandbox.Halted || now.PID != 0 || now.Restarts != restarts+1 {
			t.Errorf("got %+v", now)
		}
		resume()
		waitReady(t, s)
		expectReadyReplicas(t, client, "waits", 1)
	})

	t.Run("a killed API server is back with its data", func(t *testing.T) {
		if err := s.Signal(sandbox.APIServer, 0, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		waitReady(t, s)
		expectReadyReplicas(t, client, "web", 8)
	})

	t.Run("a pod that is deleted is gone at once and replaced", func(t *testing.T) {
		pods := podsOf(t, client, "web")
		name := pods[0].Name
		if err := client.CoreV1().Pods("default").Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "a replacement", func(ctx context.Context) (bool, error) {
			pods := podsOf(t, client, "web")
			gone := !slices.ContainsFunc(pods, func(pod corev1.Pod) bool { return pod.Name == name })
			return gone && len(pods) == 8, nil
		})
		expectReadyReplicas(t, client, "web", 8)
	})

	t.Run("a pod with a readiness gate is ready exactly while the gate is true", func(t *testing.T) {
		const gate = "example.com/open"
		createDeployment(t, client, "gated", 1, func(spec *corev1.PodSpec) {
			spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: gate}}
			spec.InitContainers = []corev1.Container{
				{Name: "init", Image: "example.com/init"},
				{Name: "sidecar", Image: "example.com/sidecar", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)},
			}
		})
		var pod corev1.Pod
		expectPod := func(what string, is func(corev1.Pod) bool) {
			t.Helper()
			waitFor(t, what, func(context.Context) (bool, error) {
				pods := podsOf(t, client, "gated")
				if len(pods) != 1 {
					return false, nil
				}
				pod = pods[0]
				return is(pod), nil
			})
		}
		expectPod("the pod to run", func(pod corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning })
		if isReady(pod) || !isTrue(pod, corev1.ContainersReady) || len(pod.Status.InitContainerStatuses) != 2 {
			t.Errorf("want an unready pod with ready containers, got %+v", pod.Status)
		}
		if isTrue(pod, gate) {
			t.Error("the gate was opened by somebody else")
		}
		setCondition(t, client, pod.Name, gate, corev1.ConditionTrue)
		expectPod("the pod to be ready", isReady)
		expectReadyReplicas(t, client, "gated", 1)
		setCondition(t, client, pod.Name, gate, corev1.ConditionFalse)
		expectPod("the pod to be unready again", func(pod corev1.Pod) bool { return !isReady(pod) })
	})

	t.Run("a job completes only if its pods carry the annotation", func(t *testing.T) {
		createJob(t, client, "endless", nil)
		createJob(t, client, "short", map[string]string{sandbox.CompleteAnnotation: "true"})
		waitFor(t, "the annotated job to complete", func(ctx context.Context) (bool, error) {
			job, err := client.BatchV1().Jobs("default").Get(ctx, "short", metav1.GetOptions{})
			return err == nil && job.Status.Succeeded == 1, err
		})
		waitFor(t, "the other job to run", func(ctx context.Context) (bool, error) {
			job, err := client.BatchV1().Jobs("default").Get(ctx, "endless", metav1.GetOptions{})
			return err == nil && ptr.Deref(job.Status.Ready, 0) == 1 && job.Status.Succeeded == 0, err
		})
	})

	t.Run("a node with the annotation is not ready until it is removed", func(t *testing.T) {
		setNotReady := func(value string) {
			t.Helper()
			patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, sandbox.NotReadyAnnotation, value)
			_, err := client.CoreV1().Nodes().Patch(t.Context(), "node-1", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
			if err != nil {
				t.Fatal(err)
			}
		}
		expectTaints := func(what string, want bool) {
			t.Helper()
			waitFor(t, what, func(ctx context.Context) (bool, error) {
				node, err := client.CoreV1().Nodes().Get(ctx, "node-1", metav1.GetOptions{})
				return err == nil && (len(node.Spec.Taints) > 0) == want, err
			})
		}
		setNotReady(`"true"`)
		expectTaints("the node to be tainted", true)
		setNotReady(`null`)
		expectTaints("the node to be ready again", false)
	})

	t.Run("a component is held to the permissions of its user", func(t *testing.T) {
		events := auditEvents(t, s)
		if !slices.ContainsFunc(events, func(event auditEvent) bool {
			return event.User.Username == "system:kube-scheduler" && event.Verb == "create" && event.ObjectRef.Subresource == "binding"
		}) {
			t.Error("the audit log shows no binding by the scheduler's user")
		}
	})

	t.Run("nothing is left after stop", func(t *testing.T) {
		statuses := s.Status()
		s.Stop()
		s.Stop()
		for _, status := range statuses {
			if status.PID != 0 && runs(status.PID) {
				t.Errorf("%s-%d still runs as %d", status.Name, status.Replica, status.PID)
			}
		}
		if _, err := os.Stat(s.Kubeconfig()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the kubeconfig is still there: %v", err)
		}
	})
}

func TestTwoSandboxesRunSideBySide(t *testing.T) {
	one := start(t, sandbox.Config{Name: "one", Nodes: 1})
	two := start(t, sandbox.Config{Name: "two", Nodes: 2})
	for s, want := range map[*sandbox.Sandbox]int{one: 1, two: 2} {
		nodes, err := clientFor(t, s).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got := len(nodes.Items); got != want {
			t.Errorf("%s has %d nodes, want %d", s.Dir(), got, want)
		}
	}
	_, err := sandbox.Start(t.Context(), sandbox.Config{Name: "three", Dir: one.Dir(), BinDir: binDir(t)})
	if err == nil || !strings.Contains(err.Error(), one.Dir()) {
		t.Errorf("starting a sandbox in a directory in use: got %v", err)
	}
}

func TestComponentThatCannotStartIsReportedWithItsLog(t *testing.T) {
	config := sandbox.Config{
		Dir: t.TempDir(), BinDir: binDir(t),
		Components: []sandbox.Component{script("broken", "echo the reason >&2; exit 3")},
	}
	s, err := sandbox.Start(limited(t), config)
	if err == nil {
		s.Stop()
		t.Fatal("want an error")
	}
	for _, want := range []string{"broken-0", "the reason", "exit status 3"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q: %v", want, err)
		}
	}
	expectNoProcessIn(t, config.Dir)
}

func TestComponentWhosePortWasTakenStartsOnAnother(t *testing.T) {
	var ports []int
	component := script("late", "")
	component.Args = func(in sandbox.Instance) ([]string, error) {
		ports = append(ports, in.Port("any"))
		return []string{"-c", "test -e flag && exec sleep 1000; touch flag; echo bind: address already in use; exit 1"}, nil
	}
	s := start(t, sandbox.Config{Components: []sandbox.Component{component}})
	if len(ports) != 2 || ports[0] == ports[1] {
		t.Errorf("got ports %v, want two different ones", ports)
	}
	status := statusOf(t, s, "late")
	if want := fmt.Sprintf("127.0.0.1:%d", ports[len(ports)-1]); status.Address != want || status.Restarts != 0 {
		t.Errorf("got %s after %d restarts, want %s after none", status.Address, status.Restarts, want)
	}
}

func TestComponentThatKeepsEndingIsCrashing(t *testing.T) {
	// The component becomes ready the first time. After that it always exits at once.
	s := start(t, sandbox.Config{
		Components: []sandbox.Component{script("flaky", `test -e flag && { echo flag is there; exit 1; }; touch flag; exec sleep 1000`)},
	})
	if err := s.Signal("flaky", 0, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the component to be crashing", func(context.Context) (bool, error) {
		status := statusOf(t, s, "flaky")
		return status.State == sandbox.Crashing && strings.Contains(status.LogTail, "flag is there") && status.Restarts > 2, nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := s.WaitReady(ctx); err == nil || !strings.Contains(err.Error(), "flag is there") {
		t.Errorf("waiting for a crashing component: got %v", err)
	}
	if err := os.Remove(filepath.Join(s.Dir(), "instances", "flaky-0", "flag")); err != nil {
		t.Fatal(err)
	}
	waitReady(t, s)
}

func TestMissingBinariesAreNamed(t *testing.T) {
	_, err := sandbox.Start(t.Context(), sandbox.Config{Dir: t.TempDir(), BinDir: t.TempDir()})
	for _, want := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kwok", "make tools"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q: %v", want, err)
		}
	}
}

func TestWithoutLeavesAComponentOut(t *testing.T) {
	s := start(t, sandbox.Config{Without: []string{sandbox.KWOK, sandbox.ControllerManager}, Nodes: 2})
	var names []string
	for _, status := range s.Status() {
		names = append(names, status.Name)
	}
	if want := []string{sandbox.Etcd, sandbox.APIServer}; !slices.Equal(names, want) {
		t.Errorf("got %v, want %v", names, want)
	}
}

func TestKilledSupervisorLeavesNoChild(t *testing.T) {
	dir := t.TempDir()
	supervisor := exec.Command(os.Args[0])
	supervisor.Env = append(os.Environ(), supervisorDir+"="+dir)
	supervisor.Stderr = os.Stderr
	output, err := supervisor.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := supervisor.Start(); err != nil {
		t.Fatal(err)
	}
	// When all components are ready, the supervisor prints their process IDs and then waits.
	line, err := bufio.NewReader(output).ReadString('\n')
	if err != nil {
		t.Fatalf("reading the children of the supervisor: %v", err)
	}
	var pids []int
	if err := json.Unmarshal([]byte(line), &pids); err != nil {
		t.Fatal(err)
	}
	if len(pids) != 4 {
		t.Errorf("the supervisor has children %v, want 4", pids)
	}
	if err := supervisor.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := supervisor.Wait(); err == nil {
		t.Error("the supervisor was not killed")
	}
	waitFor(t, "all children to be gone", func(context.Context) (bool, error) {
		return !slices.ContainsFunc(pids, runs), nil
	})
	expectNoProcessIn(t, dir)
}

// supervise runs a sandbox, prints its process IDs, and waits until the test kills it.
func supervise(dir string) error {
	bin, err := findBinDir()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	s, err := sandbox.Start(ctx, sandbox.Config{Dir: dir, BinDir: bin})
	if err != nil {
		return err
	}
	var pids []int
	for _, status := range s.Status() {
		pids = append(pids, status.PID)
	}
	if err := json.NewEncoder(os.Stdout).Encode(pids); err != nil {
		return err
	}
	select {}
}

// manifests define a kind and use it immediately.
const manifests = `
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: things, singular: thing, kind: Thing}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object}}
---
apiVersion: example.com/v1
kind: Thing
metadata: {name: one, namespace: shop}
`

func start(t *testing.T, config sandbox.Config) *sandbox.Sandbox {
	t.Helper()
	config.Dir, config.BinDir, config.Progress = t.TempDir(), binDir(t), testLog{t}
	s, err := sandbox.Start(limited(t), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

// testLog writes progress to the test's log.
type testLog struct{ t *testing.T }

var _ io.Writer = testLog{}

func (l testLog) Write(line []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(line)))
	return len(line), nil
}

// scheduler is the stock scheduler.
func scheduler() sandbox.Component {
	return sandbox.Component{
		Name: schedulerName, Binary: "kube-scheduler", User: "system:kube-scheduler",
		Args: func(in sandbox.Instance) ([]string, error) {
			return []string{
				"--kubeconfig=" + in.Kubeconfig,
				"--bind-address=127.0.0.1",
				fmt.Sprintf("--secure-port=%d", in.Port("secure")),
				"--cert-dir=" + in.Dir,
				"--leader-elect=false",
			}, nil
		},
		Ready: func(in sandbox.Instance) string { return "https://" + in.Address("secure") + "/readyz" },
	}
}

// script is a component that runs a shell script.
func script(name, text string) sandbox.Component {
	return sandbox.Component{
		Name: name, Binary: "/bin/sh", User: name,
		Args: func(sandbox.Instance) ([]string, error) { return []string{"-c", text}, nil },
	}
}

func binDir(t *testing.T) string {
	t.Helper()
	dir, err := findBinDir()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// findBinDir returns the directory bin at the root of the module.
func findBinDir() (string, error) {
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		return "", errors.New("the test does not know where its source is")
	}
	bin := filepath.Join(filepath.Dir(file), "..", "..", "bin")
	if _, err := os.Stat(bin); err != nil {
		return "", fmt.Errorf("%w: run `make tools`", err)
	}
	return bin, nil
}

func limited(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	t.Cleanup(cancel)
	return ctx
}

func waitFor(t *testing.T, what string, condition wait.ConditionWithContextFunc) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), waitInterval, waitLimit, true, condition); err != nil {
		t.Fatalf("waiting for %s: %v", what, err)
	}
}

func waitReady(t *testing.T, s *sandbox.Sandbox) {
	t.Helper()
	if err := s.WaitReady(limited(t)); err != nil {
		t.Fatal(err)
	}
}

func clientFor(t *testing.T, s *sandbox.Sandbox) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(s.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func statusOf(t *testing.T, s *sandbox.Sandbox, component string) sandbox.ComponentStatus {
	t.Helper()
	for _, status := range s.Status() {
		if status.Name == component {
			return status
		}
	}
	t.Fatalf("no component %s", component)
	return sandbox.ComponentStatus{}
}

func createDeployment(t *testing.T, client kubernetes.Interface, name string, replicas int32, change func(*corev1.PodSpec)) {
	t.Helper()
	labels := map[string]string{"app": name}
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/main"}}},
			},
		},
	}
	if change != nil {
		change(&deployment.Spec.Template.Spec)
	}
	if _, err := client.AppsV1().Deployments("default").Create(t.Context(), deployment, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func createJob(t *testing.T, client kubernetes.Interface, name string, annotations map[string]string) {
	t.Helper()
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Annotations: annotations},
			Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever,
				Containers:    []corev1.Container{{Name: "main", Image: "example.com/main"}},
			},
		}},
	}
	if _, err := client.BatchV1().Jobs("default").Create(t.Context(), job, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func scale(t *testing.T, client kubernetes.Interface, name string, replicas int) {
	t.Helper()
	patch := fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas)
	_, err := client.AppsV1().Deployments("default").Patch(
		t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

func setCondition(
	t *testing.T, client kubernetes.Interface, pod string, kind corev1.PodConditionType, status corev1.ConditionStatus,
) {
	t.Helper()
	patch := fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":%q}]}}`, kind, status)
	_, err := client.CoreV1().Pods("default").Patch(
		t.Context(), pod, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatal(err)
	}
}

func expectReadyReplicas(t *testing.T, client kubernetes.Interface, name string, want int32) {
	t.Helper()
	waitFor(t, fmt.Sprintf("%d ready replicas of %s", want, name), func(ctx context.Context) (bool, error) {
		deployment, err := client.AppsV1().Deployments("default").Get(ctx, name, metav1.GetOptions{})
		return err == nil && deployment.Status.ReadyReplicas == want, err
	})
}

func podsOf(t *testing.T, client kubernetes.Interface, app string) []corev1.Pod {
	t.Helper()
	pods, err := client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		t.Fatal(err)
	}
	return pods.Items
}

func isReady(pod corev1.Pod) bool { return isTrue(pod, corev1.PodReady) }

func isTrue(pod corev1.Pod, kind corev1.PodConditionType) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(condition corev1.PodCondition) bool {
		return condition.Type == kind && condition.Status == corev1.ConditionTrue
	})
}

type auditEvent struct {
	Verb string
	User struct{ Username string }
	// ObjectRef is empty if the request is not about an object.
	ObjectRef struct{ Resource, Subresource string }
}

func auditEvents(t *testing.T, s *sandbox.Sandbox) []auditEvent {
	t.Helper()
	file, err := os.Open(s.AuditLog())
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var events []auditEvent
	decoder := json.NewDecoder(file)
	for {
		var event auditEvent
		err := decoder.Decode(&event)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) { // the API server may still be writing the last line
			return events
		}
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, event)
	}
}

// runs is true if the process exists and is not a zombie. An orphan remains a zombie if no process waits for it.
func runs(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z")
}

// expectNoProcessIn fails if the command line or the working directory of any process contains the directory.
func expectNoProcessIn(t *testing.T, dir string) {
	t.Helper()
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range commands {
		if filepath.Base(filepath.Dir(path)) == fmt.Sprint(os.Getpid()) {
			continue
		}
		command, err := os.ReadFile(path)
		if err != nil {
			continue // the process has ended
		}
		workDir, err := os.Readlink(filepath.Join(filepath.Dir(path), "cwd"))
		if err != nil {
			continue // the process has ended, or is a zombie
		}
		if strings.Contains(string(command), dir) || strings.HasPrefix(workDir, dir) {
			t.Errorf("%s is left: %s", filepath.Dir(path), strings.ReplaceAll(string(command), "\x00", " "))
		}
	}
}
