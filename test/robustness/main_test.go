package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A fault that does not apply any more would be left out without anybody noticing. When code next to a fault changes, make its patch again.
func TestEveryFaultAppliesToTheTree(t *testing.T) {
	faults, err := readFaults("faults")
	if err != nil {
		t.Fatal(err)
	}
	if len(faults) < 25 {
		t.Errorf("there are %d faults", len(faults))
	}
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			tree := t.TempDir()
			sources, err := filepath.Glob(filepath.Join("../..", f.in, "*.go"))
			if err != nil {
				t.Fatal(err)
			}
			for _, source := range sources {
				if err := copyFile(source, filepath.Join(tree, f.in, filepath.Base(source))); err != nil {
					t.Fatal(err)
				}
			}
			path, err := filepath.Abs(f.path)
			if err != nil {
				t.Fatal(err)
			}
			if err := apply(t.Context(), tree, path); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAFaultNeedsItsHeader(t *testing.T) {
	dir := t.TempDir()
	patch := "diff --git a/pkg/ledger/ledger.go b/pkg/ledger/ledger.go\n"
	for name, text := range map[string]string{
		"no header":  "\n" + patch,
		"no suite":   "breaks: it\norigin: made up\n\n" + patch,
		"no package": "breaks: it\norigin: made up\nnoticed by: examples\n\n" + strings.ReplaceAll(patch, "ledger", "else"),
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(filepath.Join(dir, "one.patch"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if faults, err := readFaults(dir); err == nil {
				t.Errorf("accepted %+v", faults)
			}
		})
	}
}

func TestATableReplacesThePreviousOne(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	before := "# Title\n\n<!-- faults -->\nold\n<!-- end of faults -->\n\nText.\n"
	if err := os.WriteFile(page, []byte(before), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := write(page, map[string][]string{"faults": {"| a |", "|---|"}}); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if want := "# Title\n\n<!-- faults -->\n\n| a |\n|---|\n\n<!-- end of faults -->\n\nText.\n"; string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if err := write(page, map[string][]string{"states": nil}); err == nil {
		t.Error("a page without markers is accepted")
	}
}

// Whoever adds a fault runs the program, which writes its row.
func TestEachFaultHasItsRow(t *testing.T) {
	faults, err := readFaults("faults")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	if err := keepRows("../../docs/api/detected-faults.md", faults, rows); err != nil {
		t.Fatal(err)
	}
	for _, f := range faults {
		if !strings.Contains(rows[f.name], "**yes**") {
			t.Errorf("nothing notices %s: %s", f.name, rows[f.name])
		}
	}
	if err := keepRows("../../docs/api/detected-faults.md", []fault{{name: "new"}}, rows); err == nil {
		t.Error("a fault without a row is accepted")
	}
}
