package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/berth-project/berth/internal/sandbox"
)

const (
	// stopTimeout is how long a sandbox may take to stop before its supervisor is killed, which ends all its children
	// too.
	stopTimeout  = 30 * time.Second
	stopInterval = 50 * time.Millisecond
)

func downCommand() *cobra.Command {
	var name string
	command := &cobra.Command{
		Use:   "down",
		Short: "Stop a sandbox and wait until nothing of it runs",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			current, err := readState(name)
			if err != nil {
				return err
			}
			out := command.OutOrStdout()
			if current == nil {
				if err := sandbox.CleanUp(sandboxDir(name)); err != nil {
					return err
				}
				fmt.Fprintf(out, "sandbox %q does not run\n", name)
				return nil
			}
			stale := !current.Supervisor.runs()
			if err := stop(command.Context(), current); err != nil {
				return fmt.Errorf("stopping sandbox %q: %w", name, err)
			}
			// Containers of a supervisor that was killed run on.
			if err := sandbox.CleanUp(sandboxDir(name)); err != nil {
				return err
			}
			// The supervisor removes its state file, unless it was killed. The next up replaces the other files.
			if err := os.Remove(statePath(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			if stale {
				fmt.Fprintf(out, "sandbox %q did not run any more, its stale state is removed\n", name)
				return nil
			}
			fmt.Fprintf(out, "sandbox %q is stopped\n", name)
			return nil
		},
	}
	addNameFlag(command.Flags(), &name)
	return command
}

// stop ends the supervisor and returns when it and all components are gone.
func stop(ctx context.Context, current *state) error {
	err := current.Supervisor.signal(syscall.SIGTERM)
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	err = awaitGone(ctx, current)
	if !wait.Interrupted(err) || ctx.Err() != nil {
		return err
	}
	if err := current.Supervisor.signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return awaitGone(ctx, current)
}

func awaitGone(ctx context.Context, current *state) error {
	var left string
	err := wait.PollUntilContextTimeout(ctx, stopInterval, stopTimeout, true, func(context.Context) (bool, error) {
		if current.Supervisor.runs() {
			left = fmt.Sprintf("supervisor (pid %d)", current.Supervisor.PID)
			return false, nil
		}
		for _, component := range current.Components {
			if component.Process.runs() {
				left = fmt.Sprintf("%s-%d (pid %d)", component.Name, component.Replica, component.PID)
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("%s still runs: %w", left, err)
	}
	return nil
}
