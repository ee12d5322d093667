package scenario

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

var update = flag.Bool("update", false, "rewrite the expected tables of the scenarios with what the simulation shows")

const scenarioGlob = "../../test/scenarios/*.txtar"

func TestScenarios(t *testing.T) {
	files, err := filepath.Glob(scenarioGlob)
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenario at %s: %v", scenarioGlob, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			checkpoints := play(t, file, string(data))
			if *update {
				rewrite(t, file, data, checkpoints)
				return
			}
			expectMet(t, file, checkpoints)
		})
	}
}

func rewrite(t *testing.T, file string, data []byte, checkpoints []Checkpoint) {
	t.Helper()
	archive := txtar.Parse(data)
	for _, checkpoint := range checkpoints {
		for i := range archive.Files {
			if archive.Files[i].Name == checkpoint.Section {
				archive.Files[i].Data = []byte(checkpoint.Got)
			}
		}
	}
	if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
		t.Fatal(err)
	}
}

// play parses and runs a scenario.
func play(t *testing.T, name, text string) []Checkpoint {
	t.Helper()
	scenario, err := Parse(name, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	checkpoints, err := Run(scenario)
	if err != nil {
		t.Fatal(err)
	}
	return checkpoints
}

func expectMet(t *testing.T, name string, checkpoints []Checkpoint) {
	t.Helper()
	if len(checkpoints) == 0 {
		t.Errorf("%s: no expect step", name)
	}
	for _, checkpoint := range checkpoints {
		if !checkpoint.Met() {
			t.Errorf("%s:%d: expect %s (-want +got):\n%s", name, checkpoint.Line, checkpoint.Section, cmp.Diff(checkpoint.Want, checkpoint.Got))
		}
	}
}
