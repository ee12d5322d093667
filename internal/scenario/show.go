package scenario

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"
)

// Shown is a scenario that a person watches.
type Shown struct {
	// Out gets each step, the pods while they move to their places, and each table beside the expected one.
	Out io.Writer
	// Pause is how long to wait after each step. Zero does not wait.
	Pause time.Duration

	section string
	started time.Time
	shown   int
}

// Play plays a scenario. It returns an error if a table is not the expected one. The caller ends the play, unless it is
// nil.
func (s *Shown) Play(ctx context.Context, stage Stage, parsed *Scenario) (*Play, error) {
	p, err := Start(ctx, stage, parsed)
	if err != nil {
		return nil, err
	}
	first := true
	p.Stepping = func(text string) {
		if !first {
			s.pause(ctx)
		}
		first = false
		fmt.Fprintf(s.Out, "$ %s\n", text)
	}
	p.Watching = s.Watch
	err = p.Run(ctx, s.End)
	if err == nil {
		s.pause(ctx)
	}
	return p, err
}

func (s *Shown) pause(ctx context.Context) {
	select {
	case <-time.After(s.Pause):
	case <-ctx.Done():
	}
}

// Watch prints one line while pods move to the expected layout.
func (s *Shown) Watch(c Checkpoint) {
	if c.Section != s.section {
		s.section, s.started, s.shown = c.Section, time.Now(), -1 //nolint:forbidigo // for the eyes of a person
	}
	kept, of := keptIn(c.Got), keptIn(c.Want)
	if kept != s.shown {
		s.shown = kept
		fmt.Fprintf(s.Out, "\r  %d of %d pods in place, %.1fs ", kept, of, time.Since(s.started).Seconds())
	}
}

// End prints the table of expected and actual pods. It returns an error if they differ.
func (s *Shown) End(c Checkpoint) error {
	s.section = ""
	fmt.Fprintf(s.Out, "\n%s\n", c.SideBySide())
	if !c.Met() {
		return fmt.Errorf("the layout is not the expected one\n%s", c.Warnings)
	}
	return nil
}

// keptIn sums the column KEPT.
func keptIn(table string) int {
	sum := 0
	for _, line := range strings.Split(table, "\n") {
		var name, quota string
		var kept int
		if n, err := fmt.Sscan(line, &name, &kept, &quota); n == 3 && err == nil {
			sum += kept
		}
	}
	return sum
}
