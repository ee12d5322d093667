package install

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berth-project/berth/test/harness"
)

// firstMinute is how long a new user waits from the files of a release to a cluster that has played a case, on a machine that does nothing else.
const firstMinute = time.Minute

// sandboxArchive is the archive of the sandbox for this machine. Only the release of the default line has one.
func sandboxArchive(t *testing.T) string {
	t.Helper()
	return filepath.Join(dist(t), "sandbox", "berth-sandbox-"+runtime.GOOS+"-"+runtime.GOARCH+".tar.gz")
}

// readmeFirst are the commands with which the README begins, for this machine, and for a release that the test serves in place of GitHub.
func readmeFirst(t *testing.T, archive string) []string {
	t.Helper()
	readme, err := os.ReadFile(filepath.Join(harness.Root(), "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	before, block, _ := strings.Cut(string(readme), "\n```shell\n")
	block, _, _ = strings.Cut(block, "\n```\n")
	if words := len(strings.Fields(before)); words > 60 {
		t.Errorf("the README has %d words before its first commands", words)
	}
	server := httptest.NewServer(http.FileServer(http.Dir(filepath.Dir(archive))))
	t.Cleanup(server.Close)
	const latest = "https://github.com/berth-project/berth/releases/latest/download"
	block = strings.NewReplacer(latest, server.URL, "linux-amd64", runtime.GOOS+"-"+runtime.GOARCH).Replace(strings.TrimPrefix(block, "$ "))
	commands := strings.Split(block, "\n$ ")
	if len(commands) > 3 || !strings.Contains(block, server.URL) {
		t.Fatalf("the README begins with %q, want at most three commands, and a download from %s", commands, latest)
	}
	return commands
}

// TestTheSandboxNeedsNothingElse begins in an empty directory, without Go on the PATH, and types what the README begins with.
func TestTheSandboxNeedsNothingElse(t *testing.T) {
	archive, dir := sandboxArchive(t), t.TempDir()
	commands := readmeFirst(t, archive)
	command := func(ctx context.Context, name string, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Dir, cmd.Env = dir, []string{"PATH=/usr/bin:/bin", "HOME=" + dir}
		return cmd
	}
	began := time.Now()
	for _, text := range commands[:len(commands)-1] {
		if out, err := command(t.Context(), "sh", "-c", text).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", text, err, out)
		}
	}
	unpacked := time.Since(began)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	up := command(ctx, "sh", "-c", "exec "+commands[len(commands)-1])
	up.Cancel = func() error { return up.Process.Signal(os.Interrupt) }
	up.WaitDelay = time.Minute
	out, err := up.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	up.Stderr = up.Stdout
	if err := up.Start(); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	played := false
	for lines := bufio.NewScanner(io.TeeReader(out, &said)); !played && lines.Scan(); {
		played = strings.Contains(lines.Text(), "it is in namespace")
	}
	took := time.Since(began)
	if !played {
		t.Fatalf("%v:\n%s", errors.Join(ctx.Err(), up.Wait()), said.String())
	}
	t.Logf("%s after the first command, a sandbox has played a case; %s of that to download and unpack it", took.Round(time.Second), unpacked.Round(time.Second))
	if took > firstMinute {
		t.Errorf("it took %s, want at most %s on a machine that does nothing else:\n%s", took, firstMinute, said.String())
	}
	page := regexp.MustCompile(`see it at (\S+)`).FindStringSubmatch(said.String())
	if page == nil {
		t.Fatalf("it names no page:\n%s", said.String())
	}
	answer, err := http.Get(page[1])
	if err != nil {
		t.Fatal(err)
	}
	if answer.Body.Close(); answer.StatusCode != http.StatusOK {
		t.Errorf("the page answers %s", answer.Status)
	}
	pods := command(t.Context(), filepath.Join(dir, "berth-sandbox", "kubectl"), "--kubeconfig", ".sandbox/kubeconfig", "get", "workloadspreads", "-A")
	if table, err := pods.CombinedOutput(); err != nil || !strings.Contains(string(table), "subset-normal 90/100") {
		t.Errorf("%v: %s", err, table)
	}
	here := runtime.GOOS + "-" + runtime.GOARCH + ".cdx.json"
	for file, want := range map[string]string{
		"LICENSE": "Apache License", "THIRD_PARTY_NOTICES.txt": "k8s.io/kubernetes v", "sbom/berth-sandbox-" + here: "k8s.io/client-go", "sbom/control-plane-" + here: "go.etcd.io/etcd/server",
	} {
		if content, err := os.ReadFile(filepath.Join(dir, "berth-sandbox", filepath.FromSlash(file))); err != nil || !strings.Contains(string(content), want) {
			t.Errorf("%s of the archive does not have %q: %v", file, want, err)
		}
	}
	// Another version, beside the first.
	newer := filepath.Join(dir, "newer")
	if err := os.Mkdir(newer, 0o755); err != nil {
		t.Fatal(err)
	}
	again, err := command(t.Context(), "sh", "-c", "tar -xzf "+archive+" -C "+newer+" && "+newer+"/berth-sandbox/berth-sandbox up").CombinedOutput()
	if line := strings.TrimSuffix(string(again), "\n"); err == nil || strings.Contains(line, "\n") || !strings.HasPrefix(line, `error: sandbox "default" runs already`) {
		t.Errorf("the second one: %v: %s", err, again)
	}
	if err := up.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, out)
	if err := up.Wait(); err != nil {
		t.Errorf("it ends with %v:\n%s", err, said.String())
	}
}

// TestASandboxThatCannotStartSaysWhy in one line. TestAMachineWithTooLittleMemoryIsRefused has one more reason.
func TestASandboxThatCannotStartSaysWhy(t *testing.T) {
	bin := filepath.Join(harness.Root(), "bin")
	foreign := make([]byte, 64) // a header of ELF for a processor that nobody has
	copy(foreign, "\x7fELF\x02\x01\x01")
	foreign[16], foreign[18], foreign[20], foreign[52] = 2, 1, 1, 64
	control := func(content []byte, mode os.FileMode) func(*testing.T, string) {
		return func(t *testing.T, dir string) { write(t, filepath.Join(dir, "control-plane"), string(content), mode) }
	}
	tests := map[string]struct {
		change func(t *testing.T, dir string)
		// workDir is by default one of the test's own.
		workDir string
		want    string
	}{
		"the archive is for another processor": {func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, "berth-sandbox")); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, "berth-sandbox"), string(foreign), 0o755)
		}, "", "cannot execute binary file: Exec format error"},
		"the control plane is for another processor": {control(foreign, 0o755), "", "is for another processor: unpack berth-sandbox-linux-" + runtime.GOARCH + ".tar.gz"},
		"no program has execute rights": {func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, "berth-sandbox")); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, "berth-sandbox"), "", 0o644)
		}, "", "Permission denied"},
		"the control plane has no execute rights": {control(nil, 0o644), "", "has no etcd, kube-apiserver"},
		"the archive was unpacked in part":        {func(*testing.T, string) {}, "", "unpack the whole archive"},
		"the working directory cannot be written": {control(nil, 0o755), "/sys", "go to a directory that you may write to"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			copied := filepath.Join(dir, "berth-sandbox")
			if err := os.Mkdir(copied, 0o755); err != nil {
				t.Fatal(err)
			}
			for _, program := range []string{"berth-sandbox", "berth-scheduler", "berth-controller"} {
				if err := os.Link(filepath.Join(bin, program), filepath.Join(copied, program)); err != nil {
					t.Fatal(err)
				}
			}
			for _, link := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok"} {
				if err := os.Symlink("control-plane", filepath.Join(copied, link)); err != nil {
					t.Fatal(err)
				}
			}
			tc.change(t, copied)
			up := exec.CommandContext(t.Context(), "bash", "--noprofile", "--norc", "-c", filepath.Join(copied, "berth-sandbox")+" up --bin-dir "+copied)
			up.Dir, up.Env = dir, append(os.Environ(), "LC_ALL=C")
			if tc.workDir != "" {
				up.Dir = tc.workDir
			}
			out, err := up.CombinedOutput()
			if said := strings.TrimSuffix(string(out), "\n"); err == nil || strings.Contains(said, "\n") || !strings.Contains(said, tc.want) {
				t.Errorf("%v: it says %q, want one line with %q", err, said, tc.want)
			}
		})
	}
}

func write(t *testing.T, path, content string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
}
