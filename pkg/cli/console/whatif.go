package console

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// Summary is how a command appears in the list of commands.
type Summary struct{ Use, Short string }

// The commands of berth-whatif. kubectl-berth starts that program for them, because the scheduler's filters are larger
// than everything else of it together.
var (
	Explain  = Summary{"explain POD...", "Why a pod is where it is, subset by subset, by the scheduler's own filters"}
	Simulate = Summary{"simulate (SPREAD | -f FILE)", "Where pods would be with a spread, before it is applied"}
)

// whatIf is the name of the program.
const whatIf = "berth-whatif"

// endGrace is how long berth-whatif may take to end after it was asked to.
const endGrace = 5 * time.Second

// RunWhatIf runs a command of berth-whatif, such as explain, with its arguments. The error is an *ExitError if the
// command has failed and has said why. If the context ends, or a signal ends this program, RunWhatIf ends berth-whatif
// too.
func RunWhatIf(ctx context.Context, streams genericiooptions.IOStreams, args ...string) error {
	path, err := findWhatIf()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = streams.In, streams.Out, streams.ErrOut
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = endGrace
	err = cmd.Run()
	var exited *exec.ExitError
	switch {
	case errors.As(err, &exited) && exited.Exited():
		return &ExitError{exited.ExitCode()}
	case err != nil:
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// findWhatIf is the path of berth-whatif: in the directory of this program, or else on the PATH.
func findWhatIf() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	if self, err = filepath.EvalSymlinks(self); err != nil { // plugin managers put a link on the PATH
		return "", err
	}
	dir := filepath.Dir(self)
	if path, err := exec.LookPath(filepath.Join(dir, whatIf)); err == nil {
		return path, nil
	}
	path, err := exec.LookPath(whatIf)
	if err != nil {
		return "", fmt.Errorf("the program %s, which runs this command, is neither in %s nor on the PATH; put it next to kubectl-berth, from the same archive or build", whatIf, dir)
	}
	return path, nil
}
