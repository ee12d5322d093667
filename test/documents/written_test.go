package documents

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// notRun are the blocks of commands that are not run, and why, by document. Whoever adds one should find no other way.
var notRun = map[string][]string{
	"README.md":                        {"needs the network"},
	"docs/migration.md":                {"needs OpenKruise", "replaces the definitions of the cluster", "deletes the definitions of the cluster"},
	"docs/operations/failure-modes.md": {"needs Berth in pods"},
	"docs/kubectl-berth.md":            {"runs until it is ended; test/ui does so"},
}

// played are the documents whose commands run.
func played(t *testing.T) []string {
	t.Helper()
	tutorials, err := filepath.Glob(path("docs", "tutorials", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	return append(append(tutorials, operations(t)...), path("README.md"), path("docs", "migration.md"), path("docs", "kubectl-berth.md"), path("docs", "descheduler.md"))
}

// operations are the pages for those who run Berth.
func operations(t *testing.T) []string {
	t.Helper()
	pages, err := filepath.Glob(path("docs", "operations", "*.md"))
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages of operations: %v", err)
	}
	return pages
}

func TestCommandsThatDoNotRunSayWhy(t *testing.T) {
	got := map[string][]string{}
	for _, file := range played(t) {
		fenced, err := blocks(read(t, file))
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, b := range fenced {
			switch b.kind {
			case "console":
				if b.note != "" {
					t.Errorf("%s:%d: a block that runs needs no %q", relative(file), b.line, b.note)
				}
			case "shell":
				got[relative(file)] = append(got[relative(file)], b.note)
			default:
				if slices.ContainsFunc(b.lines, func(line string) bool { return strings.HasPrefix(line, prompt) }) {
					t.Errorf("%s:%d: commands in a block of kind %q do not run: make it console, or shell with a reason", relative(file), b.line, b.kind)
				}
			}
		}
	}
	if diff := cmp.Diff(notRun, got); diff != "" {
		t.Errorf("blocks that do not run (-want +got):\n%s", diff)
	}
}

func TestYAMLIsPartOfAnExample(t *testing.T) {
	examples, err := filepath.Glob(path("docs", "examples", "*.yaml"))
	if err != nil || len(examples) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	used := map[string]bool{}
	for _, file := range played(t) {
		text := read(t, file)
		fenced, err := blocks(text)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, example := range examples {
			used[example] = used[example] || strings.Contains(text, "docs/examples/"+filepath.Base(example))
		}
		for _, b := range fenced {
			if b.kind != "yaml" {
				continue
			}
			piece := "\n" + strings.Join(b.lines, "\n") + "\n"
			if !slices.ContainsFunc(examples, func(example string) bool {
				return strings.Contains(text, "examples/"+filepath.Base(example)+")") && strings.Contains("\n"+read(t, example), piece)
			}) {
				t.Errorf("%s:%d: the block is in no example that the document links to:\n%s", relative(file), b.line, piece)
			}
		}
	}
	for example, is := range used {
		if !is {
			t.Errorf("no document uses %s", relative(example))
		}
	}
}

func TestIndexNamesEveryTutorial(t *testing.T) {
	tutorials, err := filepath.Glob(path("docs", "tutorials", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	index := read(t, path("docs", "tutorials", "README.md"))
	for _, file := range tutorials {
		if name := filepath.Base(file); name != "README.md" && !strings.Contains(index, "]("+name+")") {
			t.Errorf("docs/tutorials/README.md does not name %s", name)
		}
	}
}

// TestExamplesDoNotReplaceEachOther: whoever applies several examples has the objects of all of them, and finds each file in the index.
func TestExamplesDoNotReplaceEachOther(t *testing.T) {
	// changes are the examples that change an object of another one.
	changes := map[string]string{"quota-changed.yaml": "one-one-three.yaml"}
	index := read(t, path("docs", "examples", "README.md"))
	files, err := filepath.Glob(path("docs", "examples", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	type object struct {
		Kind     string
		Metadata struct{ Name string }
	}
	type written struct{ file, text string }
	seen := map[object]written{}
	for _, file := range files {
		name := filepath.Base(file)
		if !strings.Contains(index, "]("+name+")") {
			t.Errorf("docs/examples/README.md does not name %s", name)
		}
		if changes[name] != "" {
			continue
		}
		for text := range strings.SplitSeq(read(t, file), "\n---\n") {
			text = strings.TrimSpace(text)
			var o object
			if err := yaml.Unmarshal([]byte(text), &o); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if other, twice := seen[o]; twice && other.text != text {
				t.Errorf("%s and %s have different %ss %s", other.file, name, o.Kind, o.Metadata.Name)
			}
			seen[o] = written{name, text}
		}
	}
}
