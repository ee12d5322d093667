// Command demo plays the two best-known cases of WorkloadSpread on a sandbox, step by step, and compares every layout with the expected
// one. It ends with "demo: ok", or says what differed and exits with 1.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/pkg/sandbox"
	"github.com/berth-project/berth/pkg/simulate"
	"github.com/berth-project/berth/test/harness"
)

// cases of the demo, from test/scenarios.
var cases = []string{"normal-then-elastic", "one-one-three"}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "\ndemo: failed: %v\n", err)
		os.Exit(1)
	}
	fmt.Println("demo: ok")
}

func run(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "berth-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cluster, err := harness.Start(ctx, sandbox.Config{Name: "demo", Dir: dir, Progress: os.Stdout}, product.Options{})
	if err != nil {
		return err
	}
	defer cluster.Sandbox.Stop()
	for _, name := range cases {
		if err := play(ctx, cluster, name); err != nil {
			return err
		}
	}
	return nil
}

func play(ctx context.Context, cluster *harness.Cluster, name string) error {
	file := filepath.Join(harness.Root(), "test", "scenarios", name+".txtar")
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	scenario, err := simulate.Parse(filepath.Base(file), content)
	if err != nil {
		return err
	}
	fmt.Printf("\n=== %s\n%s\n\n", name, scenario.Intent)
	p, err := cluster.NewPlay(ctx, scenario)
	if err != nil {
		return err
	}
	p.Stepping = func(text string) { fmt.Printf("$ %s\n", text) }
	p.Watching = newProgress().show
	return errors.Join(p.Run(ctx), p.End(context.WithoutCancel(ctx)))
}

// progress prints one line while a layout comes about, and the table of expected and actual pods when it is there or has not come.
type progress struct {
	started time.Time
	section string
	shown   int
}

func newProgress() *progress { return &progress{} }

func (p *progress) show(section, want, got string) {
	if section != p.section {
		p.section, p.started, p.shown = section, time.Now(), -1
	}
	kept, of := keptIn(got), keptIn(want)
	if kept != p.shown {
		p.shown = kept
		fmt.Printf("\r  %d of %d pods in place, %.1fs ", kept, of, time.Since(p.started).Seconds())
	}
	if want == got {
		fmt.Printf("\n%s\n", sideBySide(want, got))
		p.section = ""
	}
}

// keptIn adds up the column KEPT.
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

// sideBySide puts the expected table to the left of the actual one.
func sideBySide(want, got string) string {
	left, right := strings.Split("expected\n"+want, "\n"), strings.Split("actual\n"+got, "\n")
	var b strings.Builder
	for i := range max(len(left), len(right)) {
		var l, r string
		if i < len(left) {
			l = left[i]
		}
		if i < len(right) {
			r = right[i]
		}
		if l != "" || r != "" {
			fmt.Fprintf(&b, "  %-48s  %s\n", l, r)
		}
	}
	return b.String()
}
