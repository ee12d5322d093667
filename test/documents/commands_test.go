package documents

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/berth-project/berth/test/harness"
)

var (
	target = regexp.MustCompile(`(?m)^([a-z][a-z-]*):.*?## `)
	// making matches make with its targets. It ends at the first word that is not a target, such as a variable.
	making = regexp.MustCompile(`^(?:- run: |run: )?make((?: +[a-z][a-z-]*)+)(?:$|[ ;&#])`)
	// running matches a run of tests by name. The name may be a prefix of several names.
	running  = regexp.MustCompile(`go test .*-run '?\^?((?:Test|Fuzz|Benchmark)\w*)`)
	function = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w*)\(`)
)

// TestNamedCommandsExist checks every "make x" and "go test -run TestX" in documents and workflows. The target or the test must exist.
func TestNamedCommandsExist(t *testing.T) {
	var targets []string
	for _, found := range target.FindAllStringSubmatch(read(t, path("Makefile")), -1) {
		targets = append(targets, found[1])
	}
	if len(targets) < 10 {
		t.Fatalf("found %d targets only", len(targets))
	}
	tests := testNames(t)
	seen := map[string]int{}
	check := func(file string, line int, text string) {
		if found := making.FindStringSubmatch(text); found != nil {
			for _, name := range strings.Fields(found[1]) {
				seen["make"]++
				if !slices.Contains(targets, name) {
					t.Errorf("%s:%d: make %s: there is no such target with a description", relative(file), line, name)
				}
			}
		}
		if found := running.FindStringSubmatch(text); found != nil {
			seen["go test"]++
			if !slices.ContainsFunc(tests, func(name string) bool { return strings.HasPrefix(name, found[1]) }) {
				t.Errorf("%s:%d: there is no test %s", relative(file), line, found[1])
			}
		}
	}
	for _, file := range documents(t) {
		for i, line := range strings.Split(read(t, file), "\n") {
			if typed, is := strings.CutPrefix(strings.TrimSpace(line), prompt); is {
				check(file, i+1, typed)
			}
			for _, found := range code.FindAllStringSubmatch(line, -1) {
				check(file, i+1, found[1])
			}
		}
	}
	workflows, err := filepath.Glob(path(".github", "workflows", "*.yml"))
	if err != nil || len(workflows) == 0 {
		t.Fatalf("no workflows: %v", err)
	}
	for _, file := range workflows {
		for i, line := range strings.Split(read(t, file), "\n") {
			check(file, i+1, strings.TrimSpace(line))
		}
	}
	if seen["make"] < 10 || seen["go test"] < 3 {
		t.Errorf("found so many commands only: %v", seen)
	}
}

// testNames returns the names of all tests, fuzz targets and benchmarks of the repository.
func testNames(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, dir := range []string{"cmd", "internal", "manifests", "pkg", "test"} {
		err := filepath.WalkDir(path(dir), func(file string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(file, "_test.go") {
				return err
			}
			content, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			for _, found := range function.FindAllStringSubmatch(string(content), -1) {
				names = append(names, found[1])
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return names
}

// TestTheMapNamesEveryDocument checks that docs/README.md links every document. Tutorials, docs/api and docs/decisions have their own index.
func TestTheMapNamesEveryDocument(t *testing.T) {
	index, decisions := read(t, path("docs", "README.md")), read(t, path("docs", "decisions", "README.md"))
	for _, file := range documents(t) {
		name := relative(file)
		inDocs, err := filepath.Rel(path("docs"), file)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case name == "docs/README.md" || strings.HasPrefix(name, ".github/"):
		case filepath.Dir(inDocs) == "tutorials" && filepath.Base(file) != "README.md": // TestIndexNamesEveryTutorial
		case filepath.Dir(inDocs) == "api" && filepath.Base(file) != "README.md": // docs/api/README.md names them
		case filepath.Dir(inDocs) == "decisions" && filepath.Base(file) != "README.md":
			if !strings.Contains(decisions, "]("+filepath.Base(file)+")") {
				t.Errorf("docs/decisions/README.md does not name %s", name)
			}
		case !strings.Contains(index, "]("+filepath.ToSlash(inDocs)+")"):
			t.Errorf("docs/README.md does not name %s", name)
		}
	}
}

// TestRootHasWhatPeopleLookFor checks that the root has the files that hosting sites and readers look for by name.
func TestRootHasWhatPeopleLookFor(t *testing.T) {
	for _, name := range []string{"CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md", ".github/CODEOWNERS"} {
		if info, err := os.Stat(filepath.Join(harness.Root(), name)); err != nil || info.Size() == 0 {
			t.Errorf("%s is missing or empty", name)
		}
	}
}

// TestEachDifferenceHasATest checks that each line of the page about OpenKruise names tests that exist.
func TestEachDifferenceHasATest(t *testing.T) {
	file, names, lines := path("docs", "what-differs.md"), testNames(t), 0
	for i, line := range strings.Split(read(t, file), "\n") {
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") || cells[len(cells)-1] == "tests" {
			continue
		}
		lines++
		named := code.FindAllStringSubmatch(cells[len(cells)-1], -1)
		if len(named) == 0 {
			t.Errorf("%s:%d: the line names no test", relative(file), i+1)
		}
		for _, found := range named {
			if !slices.Contains(names, found[1]) {
				t.Errorf("%s:%d: there is no test %s", relative(file), i+1, found[1])
			}
		}
	}
	if lines < 20 {
		t.Errorf("%s has %d lines only", relative(file), lines)
	}
}
