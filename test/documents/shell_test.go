package documents

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berth-project/berth/test/harness"
)

// timeout bounds one command. It also bounds how long the test repeats a reading command.
const (
	timeout = harness.Timeout
	// building bounds make, which may have to build everything.
	building = 5 * time.Minute
	again    = 200 * time.Millisecond
)

// shell runs the commands of a document as a reader types them.
type shell struct {
	dir, repository string
	in              io.Writer
	lines           chan string
	process         *exec.Cmd
}

// workspace creates a directory that looks like the repository, for commands that create files in their working directory.
func workspace(t *testing.T) string {
	t.Helper()
	root, dir := harness.Root(), t.TempDir()
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), ".") {
			continue
		}
		if err := os.Symlink(filepath.Join(root, entry.Name()), filepath.Join(dir, entry.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// newShell starts a shell in a directory.
func newShell(t *testing.T, dir string) *shell {
	t.Helper()
	s := &shell{dir: dir, repository: harness.Root(), lines: make(chan string), process: exec.Command("bash", "--noprofile", "--norc")}
	s.process.Dir = dir
	s.process.Env = append(os.Environ(), "KUBECONFIG=", "KUBECACHEDIR="+filepath.Join(dir, ".kube-cache"), "LC_ALL=C.UTF-8")
	s.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := s.process.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := s.process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.process.Stderr = s.process.Stdout
	s.in = in
	if err := s.process.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.lines)
		scanner := bufio.NewScanner(out)
		scanner.Buffer(nil, 1<<20)
		for scanner.Scan() {
			s.lines <- scanner.Text()
		}
	}()
	t.Cleanup(func() {
		s.kill()
		for range s.lines { // until the reading goroutine ends
		}
		_ = s.process.Wait() // it was killed
	})
	if _, _, err := s.run("make() { command make --no-print-directory -C "+quote(s.repository)+` "$@"; }`, timeout); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *shell) kill() { _ = syscall.Kill(-s.process.Process.Pid, syscall.SIGKILL) }

const mark = "--- this was all, exit code"

// run runs one command. It returns its output and its exit code.
func (s *shell) run(text string, limit time.Duration) (printed []string, code int, err error) {
	if _, err := fmt.Fprintf(s.in, "eval %s </dev/null 2>&1; printf '\\n%s %%d\\n' $?\n", quote(text), mark); err != nil {
		return nil, 0, fmt.Errorf("typing %q: %w", text, err)
	}
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	for {
		select {
		case line, ok := <-s.lines:
			if !ok {
				return printed, 0, errors.New("the shell has ended")
			}
			if rest, ok := strings.CutPrefix(line, mark); ok {
				if _, err := fmt.Sscan(rest, &code); err != nil {
					return printed, 0, err
				}
				return s.shorten(printed), code, nil
			}
			printed = append(printed, line)
		case <-deadline.C:
			s.kill()
			return printed, 0, fmt.Errorf("it has not ended within %s; so far it printed:\n%s", limit, strings.Join(printed, "\n"))
		}
	}
}

// shorten replaces paths of the repository by relative paths, and removes the empty line before the mark.
func (s *shell) shorten(printed []string) []string {
	for i := range printed {
		printed[i] = strings.ReplaceAll(strings.ReplaceAll(printed[i], s.dir+"/", ""), s.repository+"/", "")
	}
	if n := len(printed); n > 0 && printed[n-1] == "" {
		printed = printed[:n-1]
	}
	return printed
}

func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
