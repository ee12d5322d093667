package console

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// Summary is how a command appears in the list of commands.
type Summary struct{ Use, Short string }

// The commands of berth-whatif. kubectl-berth starts that program for them, because the scheduler's filters and the descheduler are larger than everything
// else of it together.
var (
	Explain   = Summary{"explain pod/NAME", "Why a pod is where it is, subset by subset, by the scheduler's own filters"}
	Simulate  = Summary{"simulate (SPREAD | -f FILE)", "Where pods would be with a spread, before it is applied"}
	Rebalance = Summary{"rebalance [SPREAD] --dry-run", "Which pods the descheduler would move now, which it would keep, and why"}
)

// whatIf is the name of the program.
const whatIf = "berth-whatif"

// endGrace is how long berth-whatif may take to end after it was asked to.
const endGrace = 5 * time.Second

// WhatIf starts berth-whatif. The zero value uses the kubeconfig that kubectl uses.
type WhatIf struct {
	// Connection is flags of kubectl that choose the cluster and the user, such as --context=staging.
	Connection []string
}

// Run runs a command of berth-whatif, such as explain, with its arguments. The error is an *ExitError if the command has failed and has said why. If the
// context ends, or a signal ends this program, Run ends berth-whatif too.
func (w *WhatIf) Run(ctx context.Context, streams genericiooptions.IOStreams, command string, args ...string) error {
	path, err := findWhatIf()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	cmd := exec.CommandContext(ctx, path, append(append([]string{command}, w.Connection...), args...)...)
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

// Explain is the JSON that "kubectl berth explain pod/NAME -o json" prints.
func (w *WhatIf) Explain(ctx context.Context, namespace, pod string) ([]byte, error) {
	return w.ask(ctx, "explain", "pod/"+pod, "--namespace="+namespace, "--output=json")
}

// Simulate is the JSON that "kubectl berth simulate SPREAD -o json" prints for a number of replicas.
func (w *WhatIf) Simulate(ctx context.Context, namespace, spread string, replicas int32) ([]byte, error) {
	return w.ask(ctx, "simulate", spread, "--namespace="+namespace, "--replicas="+strconv.Itoa(int(replicas)), "--output=json")
}

// ask runs a command and returns what it prints. If the command fails, the error is what it says.
func (w *WhatIf) ask(ctx context.Context, command string, args ...string) ([]byte, error) {
	var out, errOut bytes.Buffer
	err := w.Run(ctx, genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &errOut}, command, args...)
	var exit *ExitError
	if errors.As(err, &exit) {
		err = errors.New(strings.TrimPrefix(strings.TrimSpace(errOut.String()), errorPrefix))
	}
	if err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// ConnectionOf returns the flags of kubectl that a command was started with, for WhatIf.
func ConnectionOf(flags *pflag.FlagSet) []string {
	var set []string
	flags.VisitAll(func(f *pflag.Flag) {
		if !f.Changed {
			return
		}
		values := []string{f.Value.String()}
		if several, ok := f.Value.(pflag.SliceValue); ok {
			values = several.GetSlice()
		}
		for _, value := range values {
			set = append(set, "--"+f.Name+"="+value)
		}
	})
	return set
}
