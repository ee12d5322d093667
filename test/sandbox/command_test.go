package sandbox

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// withoutProduct omits Berth's own components, which these tests do not need.
const withoutProduct = "--without=scheduler,controller,kube-scheduler"

func TestUpInTheBackgroundRunsUntilDown(t *testing.T) {
	c := newCommand(t)
	up := c.expect(0, "is up", "up", "--detach", "--nodes=3", "--zones=east,west", withoutProduct)
	_, page, found := strings.Cut(up, "see it at ")
	page, _, _ = strings.Cut(page, "\n")
	if answer, err := http.Get(page); !found || err != nil {
		t.Errorf("the page at %q: %v", page, err)
	} else if answer.Body.Close(); answer.StatusCode != http.StatusOK {
		t.Errorf("the page at %s: %s", page, answer.Status)
	}

	status := c.expect(0, "NAME", "status")
	for _, component := range []string{"etcd-0", "kube-apiserver-0", "kube-controller-manager-0", "kwok-0"} {
		if !strings.Contains(status, component) {
			t.Errorf("the status lacks %s:\n%s", component, status)
		}
	}
	if !strings.Contains(status, "see it at "+page) {
		t.Errorf("the status lacks the page:\n%s", status)
	}
	if got := strings.Count(status, "running"); got != 4 {
		t.Errorf("%d components are running, want 4:\n%s", got, status)
	}
	c.expect(1, "berth-sandbox down --name default", "up", withoutProduct)

	kubectl := exec.Command(filepath.Join(binDir(t), "kubectl"),
		"--kubeconfig=.sandbox/kubeconfig", "get", "nodes", "-o=name", "-l=topology.kubernetes.io/zone=east")
	kubectl.Dir = c.dir
	output, err := kubectl.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	if want := "node/node-1\nnode/node-3\n"; string(output) != want {
		t.Errorf("nodes in zone east: got %q, want %q", output, want)
	}

	c.expect(0, "is stopped", "down")
	expectNoProcessIn(t, c.dir)
	if answer, err := http.Get(page); err == nil {
		answer.Body.Close()
		t.Errorf("%s is still there", page)
	}
	c.expect(0, "does not run", "down")
	c.expect(1, "does not run", "status")
}

// TestUpWithMembersIsAFederation: one kubeconfig has all clusters, and down leaves nothing of any, also after the supervisor was killed.
func TestUpWithMembersIsAFederation(t *testing.T) {
	c := newCommand(t)
	c.expect(0, "get clusterprofiles -A", "up", "--detach", "--nodes=1", "--members=1")
	for context, want := range map[string]string{"hub": "clusterprofile.multicluster.x-k8s.io/member-1\n", "member-1": "node/node-1\n"} {
		resource := map[string]string{"hub": "clusterprofiles", "member-1": "nodes"}[context]
		kubectl := exec.Command(filepath.Join(binDir(t), "kubectl"), "--kubeconfig=.sandbox/kubeconfig", "--context="+context, "get", resource, "-A", "-o=name")
		kubectl.Dir = c.dir
		if output, err := kubectl.CombinedOutput(); err != nil || string(output) != want {
			t.Errorf("%s in %s: %v: got %q, want %q", resource, context, err, output, want)
		}
	}
	if status := c.expect(0, "NAME", "status"); !strings.Contains(status, "hub/controller-0") || !strings.Contains(status, "member-1/kube-scheduler-0") {
		t.Errorf("the status lacks components:\n%s", status)
	}
	c.killSupervisor(t, "default")
	c.expect(0, "stale state is removed", "down")
	expectNoProcessIn(t, c.dir)
}

func TestUpInTheForegroundStopsWhenInterrupted(t *testing.T) {
	c := newCommand(t)
	up := exec.CommandContext(limited(t), c.binary, c.args("up", "--nodes=1", withoutProduct)...)
	up.Dir = c.dir
	output, err := up.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := up.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(output)
	for lines.Scan() && !strings.Contains(lines.Text(), "Ctrl-C") {
		t.Log(lines.Text())
	}
	if err := up.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() {
		t.Log(lines.Text())
	}
	if err := up.Wait(); err != nil {
		t.Errorf("up ends with %v", err)
	}
	expectNoProcessIn(t, c.dir)
}

func TestUpShowsTheLogOfAComponentThatCannotStart(t *testing.T) {
	c := newCommand(t)
	c.bin = t.TempDir()
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kwok"} {
		if err := os.Symlink(filepath.Join(binDir(t), name), filepath.Join(c.bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	broken := "#!/bin/sh\necho what is wrong with it\nexit 1\n"
	if err := os.WriteFile(filepath.Join(c.bin, "berth-scheduler"), []byte(broken), 0o700); err != nil {
		t.Fatal(err)
	}
	c.expect(1, "what is wrong with it", "up", "--detach", "--nodes=0", "--without=controller,kube-scheduler")
	c.expect(1, "does not run", "status")
	expectNoProcessIn(t, c.dir)
}

// killSupervisor kills the process that runs a sandbox, and returns the path of the state that stays.
func (c *command) killSupervisor(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(c.dir, ".sandbox", name, "state.json")
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var state struct{ Supervisor struct{ PID int } }
	if err := json.Unmarshal(content, &state); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(state.Supervisor.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the supervisor to be gone", func(context.Context) (bool, error) { return !runs(state.Supervisor.PID), nil })
	return path
}

func TestDownAfterTheSupervisorWasKilledRemovesItsState(t *testing.T) {
	c := newCommand(t)
	c.expect(0, "is up", "up", "--detach", "--nodes=0", "--name=killed", withoutProduct)
	path := c.killSupervisor(t, "killed")
	c.expect(0, "stale state is removed", "down", "--name=killed")
	expectNoProcessIn(t, c.dir)
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the state is still there: %v", err)
	}
}

func TestBadFlagsAreExplainedInOneLine(t *testing.T) {
	c := newCommand(t)
	foreign := filepath.Join(c.dir, "foreign")
	if err := os.WriteFile(foreign, []byte("apiVersion: v1\nkind: Config\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for flag, want := range map[string]string{
		"--name=../x":                 "--name",
		"--nodes=-1":                  "--nodes -1: must not be negative",
		"--kubelets=51":               "kubelets 51: must be from 0 to 50",
		"--members=-1":                "--members -1: must not be negative",
		"--members=1":                 "a federation has fixed components",
		"--node-cpu=many":             "--node-cpu",
		"--node-memory=0":             "--node-memory",
		"--without=nothing":           "no such component",
		"--replicas=nothing=2":        "no such component",
		"--replicas=scheduler=0":      "without",
		"--scheduler-config=nothing":  "--scheduler-config",
		"--scheduler-config=foreign":  "want KubeSchedulerConfiguration",
		"--kubeconfig=" + foreign:     "remove it or choose another path",
		"--bin-dir=" + t.TempDir():    "make tools",
		"--no-such-flag":              "--help",
		"--page=nowhere":              "--page nowhere",
		"--scheduler-config=.sandbox": "--scheduler-config",
	} {
		t.Run(flag, func(t *testing.T) {
			c := c
			c.t = t
			args := []string{"up", withoutProduct, flag}
			if strings.HasPrefix(flag, "--without") {
				args = []string{"up", flag}
			}
			if output := c.expect(1, want, args...); strings.Count(output, "\n") != 1 {
				t.Errorf("want one line, got:\n%s", output)
			}
		})
	}
}

func TestWhatAMachineLacksForRealNodesIsSaidInOneLine(t *testing.T) {
	c := newCommand(t)
	t.Setenv("PATH", t.TempDir())
	output := c.expect(1, "this machine cannot run kubelets, it lacks ", "up", "--kubelets=1", withoutProduct)
	if strings.Count(output, "\n") != 1 || !strings.Contains(output, "containerd, containerd-shim-runc-v2, ctr, runc, ip") {
		t.Errorf("want one line that names every program, got:\n%s", output)
	}
}

// twoTables expects a table that is there only until the pods are created, and then one that stays.
const twoTables = `A table that is not met, and one that is.

-- cluster.yaml --
- {name: a, count: 1, labels: {pool: a}}
- {name: b, count: 1, labels: {pool: b}}
-- objects.yaml --
apiVersion: apps.kruise.io/v1alpha1
kind: WorkloadSpread
metadata: {name: web-spread}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  subsets:
  - name: first
    maxReplicas: 2
    requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [a]}]}
  - name: second
    requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [b]}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: app, image: registry.k8s.io/pause:3.10}]}
-- steps --
apply objects.yaml
expect empty
expect divided
-- empty --
web-spread  Deployment/web  replicas 3
SUBSET  KEPT  QUOTA
first   0     2
second  0     -
-- divided --
web-spread  Deployment/web  replicas 3
SUBSET  KEPT  QUOTA
first   2     2
second  1     -
`

func TestPlayFailsIfATableIsNotMet(t *testing.T) {
	c := newCommand(t)
	for name, text := range map[string]string{"two.txtar": twoTables, "broken.txtar": "Nothing.\n-- steps --\nwait\n"} {
		if err := os.WriteFile(filepath.Join(c.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c.expect(1, `broken.txtar:3: unknown command "wait"`, "play", "two.txtar", "broken.txtar")
	c.expect(1, "--name", "play", "--name=../x", "two.txtar")

	play := exec.CommandContext(t.Context(), c.binary, c.args("play", "--timeout=20s", "two.txtar")...)
	play.Dir = c.dir
	var out, progress bytes.Buffer
	play.Stdout, play.Stderr = &out, &progress
	if err := play.Run(); play.ProcessState.ExitCode() != 1 {
		t.Errorf("play ends with %v, want exit code 1", err)
	}
	want := `two.txtar:30: table empty is not met
  expected                                actual
  web-spread  Deployment/web  replicas 3  web-spread  Deployment/web  replicas 3
  SUBSET  KEPT  QUOTA                     SUBSET  KEPT  QUOTA
  first   0     2                         first   2     2
  second  0     -                         second  1     -
two.txtar:31
web-spread  Deployment/web  replicas 3
SUBSET  KEPT  QUOTA
first   2     2
second  1     -
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("printed (-want +got):\n%s", diff)
	}
	if !strings.Contains(progress.String(), "1 of 2 tables are not met") {
		t.Errorf("standard error has\n%s", progress.String())
	}
	expectNoProcessIn(t, c.dir)
}

// command runs berth-sandbox in a new directory.
type command struct {
	t                *testing.T
	binary, bin, dir string
}

func newCommand(t *testing.T) command {
	t.Helper()
	c := command{t: t, binary: filepath.Join(t.TempDir(), "berth-sandbox"), bin: binDir(t), dir: t.TempDir()}
	build := exec.Command("go", "build", "-o", c.binary, "github.com/berth-project/berth/cmd/sandbox")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building berth-sandbox: %v\n%s", err, output)
	}
	t.Cleanup(func() {
		for _, name := range []string{"default", "killed"} {
			c.run("down", "--name="+name)
		}
	})
	return c
}

// expect runs the command and returns its output. The output must contain the text.
func (c command) expect(wantCode int, wantText string, args ...string) string {
	c.t.Helper()
	code, output := c.run(args...)
	if code != wantCode || !strings.Contains(output, wantText) {
		c.t.Errorf("%v: exit code %d, want %d, and %q in:\n%s", args, code, wantCode, wantText, output)
	}
	return output
}

func (c command) run(args ...string) (int, string) {
	c.t.Helper()
	// Cleanup runs after the test's context has ended, so this is a new context.
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	run := exec.CommandContext(ctx, c.binary, c.args(args...)...)
	run.Dir = c.dir
	var output bytes.Buffer
	run.Stdout, run.Stderr = &output, &output
	err := run.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		c.t.Fatal(err)
	}
	return run.ProcessState.ExitCode(), output.String()
}

// args adds the directory of the binaries, unless the arguments name one.
func (c command) args(args ...string) []string {
	if args[0] != "up" && args[0] != "play" || strings.Contains(strings.Join(args, " "), "--bin-dir") {
		return args
	}
	return append(args, "--bin-dir="+c.bin)
}
