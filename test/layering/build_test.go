package layering

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestALongBuildSaysAtOnceHowLong runs hack/build.sh with a command that stands for go build.
func TestALongBuildSaysAtOnceHowLong(t *testing.T) {
	script, err := filepath.Abs("../../hack/build.sh")
	if err != nil {
		t.Fatal(err)
	}
	cache := t.TempDir()
	build := func(command string) (string, error) {
		cmd := exec.CommandContext(t.Context(), script, "the control plane", "270", "sh", "-c", command)
		cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+cache)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	const first = "building the control plane: it takes about 5 min on two cores, and less if parts of it are there\n"
	if out, err := build("echo k8s.io/api/core/v1 >&2"); err != nil || out != first {
		t.Errorf("a build of one package: %v, %q", err, out)
	}
	if out, err := build("echo example.com/a; echo 'a.go:1:1: syntax error'; exit 3"); err == nil || out != first+"a.go:1:1: syntax error\n" {
		t.Errorf("a build that fails: %v, %q", err, out)
	}
	if out, err := build("seq -f example.com/p%g 450"); err != nil || strings.Count(out, "\n") != 3 || !strings.HasPrefix(out, first+"  200 packages are compiled, after ") {
		t.Errorf("a long build: %v, %q", err, out)
	}
	if out, err := build("true"); err != nil || !strings.HasPrefix(out, "building the control plane: it took 0 min ") || !strings.Contains(out, " s the last time,") {
		t.Errorf("the build after it: %v, %q", err, out)
	}
}
