package documents

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/berth-project/berth/test/harness"
)

var update = flag.Bool("update", false, `write what commands print in place of an output "?"`)

const (
	// asked marks an output. -update replaces it with the real output.
	asked = "?"
	// calm is how long the output of a reading command must stay unchanged before -update takes it.
	calm = 3 * time.Second
)

// play runs the commands of a document.
func play(t *testing.T, s *shell, file string, commands []command) {
	t.Helper()
	var answers []answer
	if *update {
		defer func() {
			if err := write(file, answers); err != nil {
				t.Error(err)
			}
		}()
	}
	for _, c := range commands {
		began := time.Now()
		printed, err := s.play(t.Context(), c)
		if err != nil {
			t.Fatalf("%s:%d: $ %s\n%v\n%s", file, c.from, c.text, err, s.logs())
		}
		t.Logf("%5.1fs $ %s", time.Since(began).Seconds(), c.text)
		if isAsked(c.shown) {
			answers = append(answers, answer{c, printed})
		}
	}
}

// play runs a command until it prints the shown output. It returns the last output.
func (s *shell) play(ctx context.Context, c command) ([]string, error) {
	limit := timeout
	if strings.HasPrefix(c.text, "make ") {
		limit = building
	}
	var printed []string
	var code int
	same := time.Now()
	err := wait.PollUntilContextTimeout(ctx, again, timeout, true, func(context.Context) (bool, error) {
		before, err := printed, error(nil)
		if printed, code, err = s.run(c.text, limit); err != nil {
			return false, err
		}
		if isAsked(c.shown) && *update {
			if !slices.Equal(normaliseAll(before), normaliseAll(printed)) {
				same = time.Now()
			}
			return !reads(c.text) || time.Since(same) > calm, nil
		}
		if (code != 0) == fails(c.shown) && matches(c.shown, printed) {
			return true, nil
		}
		if !reads(c.text) {
			return false, errors.New("it is not what is shown")
		}
		return false, nil
	})
	if err != nil {
		return nil, fmt.Errorf("%w: exit code %d; what is shown (-) and what it printed (+):\n%s\nprinted:\n%s", err, code,
			cmp.Diff(normaliseAll(c.shown), normaliseAll(printed)), strings.Join(printed, "\n"))
	}
	return printed, nil
}

// logs returns the ends of the log files in the sandbox's directory.
func (s *shell) logs() string {
	files, err := filepath.Glob(filepath.Join(s.dir, ".sandbox", "*.log"))
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return err.Error()
		}
		fmt.Fprintf(&b, "%s:\n%s\n", filepath.Base(file), content[max(0, len(content)-4000):])
	}
	return b.String()
}

func isAsked(shown []string) bool { return len(shown) > 0 && strings.TrimSpace(shown[0]) == asked }

// answer is the output of a command that the document does not show yet.
type answer struct {
	command
	printed []string
}

func write(file string, answers []answer) error {
	if len(answers) == 0 {
		return nil
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	lines := strings.Split(string(content), "\n")
	for _, a := range slices.Backward(answers) {
		var indented []string
		for _, line := range a.printed {
			indented = append(indented, strings.TrimRight(a.indentation+line, " "))
		}
		lines = slices.Replace(lines, a.from, a.to, indented...)
	}
	return os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o644)
}

func path(parts ...string) string {
	return filepath.Join(append([]string{harness.Root()}, parts...)...)
}

// TestReadme runs what a user types who has only the README.
func TestReadme(t *testing.T) {
	t.Parallel()
	dir := workspace(t)
	s := newShell(t, dir)
	stopSandbox(t, dir)
	file := path("README.md")
	commands, err := commandsOf(file)
	if err != nil {
		t.Fatal(err)
	}
	play(t, s, file, commands)
}

// stopSandbox stops at the end of the test everything that the commands of a document have started, also after a failure.
func stopSandbox(t *testing.T, dir string) {
	t.Helper()
	t.Cleanup(func() {
		s := newShell(t, dir)
		for _, name := range []string{"default", "federation", "gangs"} {
			if printed, code, err := s.run("bin/berth-sandbox down --name "+name, timeout); err != nil || code != 0 {
				t.Errorf("stopping sandbox %s: exit code %d, %v\n%s", name, code, err, strings.Join(printed, "\n"))
			}
		}
	})
}

// TestTutorials runs all tutorials one after the other, between the first and the last commands of their index.
func TestTutorials(t *testing.T) {
	t.Parallel()
	dir := workspace(t)
	index := path("docs", "tutorials", "README.md")
	frame, err := commandsOf(index)
	if err != nil {
		t.Fatal(err)
	}
	last := slices.IndexFunc(frame, func(c command) bool { return strings.Contains(c.text, "berth-sandbox down") })
	if last < 0 {
		t.Fatalf("%s does not stop the sandbox", index)
	}
	s := newShell(t, dir)
	stopSandbox(t, dir)
	play(t, s, index, frame[:last])
	files, err := filepath.Glob(path("docs", "tutorials", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	files = append(append(files, operations(t)...), path("docs", "migration.md"), path("docs", "kubectl-berth.md"), path("docs", "descheduler.md"))
	for _, file := range files {
		if file == index || file == gangs() {
			continue
		}
		commands, err := commandsOf(file)
		if err != nil {
			t.Fatal(err)
		}
		name, err := filepath.Rel(path("docs"), strings.TrimSuffix(file, ".md"))
		if err != nil {
			t.Fatal(err)
		}
		if !t.Run(strings.TrimPrefix(name, "tutorials/"), func(t *testing.T) {
			before := s.state(t)
			play(t, s, file, commands)
			s.expectState(t, before)
		}) {
			t.Fatal("what is left of it would be in the way of the others")
		}
	}
	play(t, s, index, frame[last:])
}

// gangs is the tutorial that needs Kubernetes 1.37.
func gangs() string { return path("docs", "tutorials", "gangs.md") }

// TestTheTutorialOfGangs builds that Kubernetes, and so is no part of CI. make test-line LINE=1.37 runs it.
func TestTheTutorialOfGangs(t *testing.T) {
	dir := workspace(t)
	s := newShell(t, dir)
	stopSandbox(t, dir)
	commands, err := commandsOf(gangs())
	if err != nil {
		t.Fatal(err)
	}
	play(t, s, gangs(), commands)
}

// state returns the objects that tutorials change and must restore.
func (s *shell) state(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, text := range []string{
		`kubectl get nodes -o jsonpath='{range .items[*]}{.metadata.name} {.metadata.labels} {.spec}{"\n"}{end}'`,
		`kubectl get deployments,replicasets,statefulsets,jobs,pods,ws,pub,pdb,priorityclasses -A -o name`,
		`kubectl get namespaces -o jsonpath='{range .items[*]}{.metadata.name} {.metadata.labels}{"\n"}{end}'`,
	} {
		printed, code, err := s.run(text, timeout)
		if err != nil || code != 0 {
			t.Fatalf("%s: exit code %d, %v\n%s", text, code, err, strings.Join(printed, "\n"))
		}
		all = append(all, printed...)
	}
	return all
}

// expectState waits until the cluster is in the previous state again.
func (s *shell) expectState(t *testing.T, want []string) {
	t.Helper()
	var diff string
	if err := wait.PollUntilContextTimeout(t.Context(), again, timeout, true, func(context.Context) (bool, error) {
		diff = cmp.Diff(want, s.state(t))
		return diff == "", nil
	}); err != nil {
		t.Fatalf("the document leaves the cluster otherwise than it was (-before +after):\n%s", diff)
	}
}
