package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/internal/scenario"
	"github.com/berth-project/berth/test/scenarios"
)

const (
	// firstCase is the scenario that a new user sees.
	firstCase = "normal-then-elastic"
	// lookTime is how long a user may look at the page between two steps.
	lookTime = 3 * time.Second
)

// open starts a sandbox, opens its page in a browser if there is one, and plays the first case. What the case has made
// stays until the sandbox is stopped.
func open(ctx context.Context, out io.Writer, config sandbox.Config, pageAddress string) error {
	first, err := scenarios.Get(firstCase)
	if err != nil {
		return err
	}
	interrupted := ctx
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	err = run(ctx, out, config, 0, pageAddress, func(s running, page string) {
		browse(ctx, page)
		fmt.Fprintf(out, "\n%s\n\n", first.Intent)
		go func() {
			play, err := (&scenario.Shown{Out: out, Pause: lookTime}).Play(ctx, shownBy(s), first)
			if err != nil {
				fail(fmt.Errorf("playing %s: %w", firstCase, err))
				return
			}
			fmt.Fprintf(out, "it is in namespace %s; press Ctrl-C to stop the sandbox\n", play.Namespace)
		}()
	})
	if interrupted.Err() != nil || err != nil {
		return err
	}
	return context.Cause(ctx)
}

// browse shows the page in the browser of the desktop. Where there is none, the user opens the URL that was printed.
func browse(ctx context.Context, page string) {
	if os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "" {
		return
	}
	go func() { _ = exec.CommandContext(ctx, "xdg-open", page).Run() }()
}
