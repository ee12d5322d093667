package cli

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

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/berth-project/berth/pkg/cli/console"
)

// delegate is a command that berth-whatif runs, with everything that was typed. Its help and completion come from there
// too.
func delegate(command console.Summary, streams genericiooptions.IOStreams) *cobra.Command {
	cmd := &cobra.Command{
		Use:                command.Use,
		Short:              command.Short,
		DisableFlagParsing: true,
		Args:               cobra.ArbitraryArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return runWhatIf(cmd.Context(), streams, append([]string{cmd.Name()}, args...)...)
	}
	cmd.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		if err := runWhatIf(cmd.Root().Context(), streams, cmd.Name(), "--help"); err != nil {
			fmt.Fprintln(streams.ErrOut, err)
		}
	})
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, toComplete string) ([]cobra.Completion, cobra.ShellCompDirective) {
		var out bytes.Buffer
		typed := append(append([]string{cobra.ShellCompRequestCmd, cmd.Name()}, args...), toComplete)
		if err := runWhatIf(cmd.Context(), genericiooptions.IOStreams{In: streams.In, Out: &out, ErrOut: streams.ErrOut}, typed...); err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return completions(out.String())
	}
	return cmd
}

// completions reads what a program prints that completes its command line: a completion a line, and then a directive.
func completions(printed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	lines := strings.Split(strings.TrimSpace(printed), "\n")
	last := len(lines) - 1
	directive, err := strconv.Atoi(strings.TrimPrefix(lines[last], ":"))
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return lines[:last], cobra.ShellCompDirective(directive)
}

// whatIf is the name of the program.
const whatIf = "berth-whatif"

// endGrace is how long berth-whatif may take to end after it was asked to.
const endGrace = 5 * time.Second

// runWhatIf runs a command of berth-whatif, such as explain, with its arguments. The error is an *console.ExitError if
// the command has failed and has said why. If the context ends, or a signal ends this program, runWhatIf ends
// berth-whatif too.
func runWhatIf(ctx context.Context, streams genericiooptions.IOStreams, args ...string) error {
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
		return &console.ExitError{Code: exited.ExitCode()}
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
