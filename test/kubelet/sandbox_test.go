package kubelet

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/test/harness"
)

// TestNothingIsLeftOfAKilledSandbox: its cleaner removes the containers and all else, and nothing of another sandbox. If that was killed too, the next up does it.
func TestNothingIsLeftOfAKilledSandbox(t *testing.T) {
	w := newWorld(t, workload{replicas: 1, pool: kept}.yaml())
	neighbour := w.ready(1)[0].Status.PodIP
	dir, err := os.MkdirTemp("", "berth-left-") // short, as sockets lie in it
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	command := func(args ...string) {
		t.Helper()
		run := exec.Command(filepath.Join(harness.BinDir(), "berth-sandbox"), args...)
		run.Dir = dir
		if output, err := run.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, output)
		}
	}
	defer command("down")
	up := []string{"up", "--detach", "--nodes=0", "--kubelets=1", "--without=scheduler,controller,kube-scheduler", "--page=none"}

	command(up...)
	first := w.containerOf(dir)
	w.killCleaner(dir)
	w.killSupervisor(dir)
	if err := w.ask(http.MethodGet, first, "/"); err != nil {
		t.Errorf("the container has not outlived its sandbox, so this test proves nothing: %v", err)
	}
	command(up...)
	if err := w.ask(http.MethodGet, first, "/"); err == nil {
		t.Error("the container has outlived the next up")
	}
	w.containerOf(dir)
	w.killSupervisor(dir)
	w.waitFor(soon, "nothing to be left", func() string { return w.leftOf(sandboxIn(dir)) })
	if err := w.ask(http.MethodGet, neighbour, "/"); err != nil {
		t.Errorf("the container of another sandbox: %v", err)
	}
}

func sandboxIn(dir string) string { return filepath.Join(dir, ".sandbox", sandbox.DefaultName) }

// containerOf starts a container in the sandbox of a working directory, and returns its address.
func (w world) containerOf(dir string) (address string) {
	w.Helper()
	kubectl := func(stdin string, args ...string) string {
		command := exec.CommandContext(w.ctx, filepath.Join(harness.BinDir(), "kubectl"), append([]string{"--kubeconfig=" + filepath.Join(dir, ".sandbox", "kubeconfig")}, args...)...)
		command.Stdin = strings.NewReader(stdin)
		output, err := command.CombinedOutput()
		if err != nil {
			return err.Error()
		}
		return string(output)
	}
	pod := fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  nodeName: kubelet-0\n  automountServiceAccountToken: false\n  containers: [{name: web, image: %q}]\n", sandbox.ServerImage)
	w.waitFor(soon, "the pod to be accepted", func() string { // the namespace's service account is made a moment later
		if got := kubectl(pod, "apply", "-f", "-"); !strings.HasPrefix(got, "pod/web ") {
			return got
		}
		return ""
	})
	w.waitFor(soon, "the container to answer", func() string {
		address = kubectl("", "get", "pod", "web", "-o=jsonpath={.status.podIP}")
		if err := w.ask(http.MethodGet, address, "/"); err != nil {
			return err.Error()
		}
		return ""
	})
	return address
}

func (w world) killSupervisor(dir string) {
	w.Helper()
	content, err := os.ReadFile(filepath.Join(sandboxIn(dir), "state.json"))
	if err != nil {
		w.Fatal(err)
	}
	var state struct {
		Supervisor struct{ PID int }
		Components []struct{ PID int }
	}
	if err := json.Unmarshal(content, &state); err != nil {
		w.Fatal(err)
	}
	if err := syscall.Kill(state.Supervisor.PID, syscall.SIGKILL); err != nil {
		w.Fatal(err)
	}
	w.waitFor(10*time.Second, "the components to be gone", func() string {
		for _, component := range state.Components {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", component.PID))
			if err == nil && !strings.Contains(string(stat), ") Z ") {
				return string(stat)
			}
		}
		return ""
	})
}

func (w world) killCleaner(dir string) {
	w.Helper()
	environments, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		w.Fatal(err)
	}
	for _, path := range environments {
		if environment, _ := os.ReadFile(path); !strings.Contains("\x00"+string(environment), "\x00BERTH_SANDBOX_CLEANER_OF="+sandboxIn(dir)+"\x00") { // it may be gone
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(path, "/proc/%d/", &pid); err != nil {
			w.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			w.Fatal(err)
		}
		return
	}
	w.Fatal("there is no cleaner")
}

// leftOf is what this machine has of the sandbox in the directory outside of it, or a process of it. It is empty if there is nothing.
func (w world) leftOf(dir string) string {
	w.Helper()
	sum := sha256.Sum256([]byte(dir))
	id := "berth-" + hex.EncodeToString(sum[:4])
	for _, pattern := range []string{"/sys/class/net/" + id, "/sys/fs/cgroup/" + id, "/sys/fs/cgroup/*/" + id, "/var/lib/cni/results/" + id + "-*", filepath.Join(dir, "instances")} {
		if found, err := filepath.Glob(pattern); err != nil || len(found) > 0 {
			return fmt.Sprint(found, err)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), dir) {
		return fmt.Sprintf("a mount, %v\n%s", err, mounts)
	}
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		w.Fatal(err)
	}
	for _, path := range processes {
		line, _ := os.ReadFile(path + "/cmdline") // it may be gone
		environment, _ := os.ReadFile(path + "/environ")
		if strings.Contains(string(line), dir+"/") || strings.Contains(string(environment), "="+dir+"\x00") {
			return strings.ReplaceAll(string(line), "\x00", " ")
		}
	}
	return ""
}
