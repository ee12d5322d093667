package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-project/berth/internal/scenario"
	"github.com/berth-project/berth/test/checker"
	"github.com/berth-project/berth/test/harness"
)

// short are the scenarios of make test: one for each way in which a pod gets its subset, or loses it.
var short = []string{"adaptive-spill", "early-binding", "normal-then-elastic", "one-one-three", "quota-raised-while-pods-wait", "rolling-update-revision", "scheduler-killed", "when-full-wait"}

// TestScenarios plays every scenario.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "scenarios", "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios found: %v", err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		t.Run(name, func(t *testing.T) {
			if !slices.Contains(short, name) {
				harness.Long(t)
			}
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			parsed, err := scenario.Parse(file, content)
			if err != nil {
				t.Fatal(err)
			}
			play, err := scenario.Start(t.Context(), the.Sandbox, parsed)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := play.End(context.Background()); err != nil {
					t.Error(err)
				}
			})
			if err := play.Run(t.Context(), func(c scenario.Checkpoint) error {
				if !c.Met() {
					return fmt.Errorf("not met:\n%s%s", c.SideBySide(), c.Warnings)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			expectNoViolation(t)
			expectTrueStatus(t, play.Namespace)
		})
	}
}

// expectTrueStatus waits until the statuses of the namespace's spreads agree with an independent recount.
func expectTrueStatus(t *testing.T, ns string) {
	t.Helper()
	waitFor(t, "statuses to be true", func(ctx context.Context) (string, error) {
		differences, err := checker.Recount(ctx, the.Dynamic, ns)
		return strings.Join(differences, "\n"), err
	})
}
