package documents

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// notRun are the blocks of commands that the tests do not run. The key is the document. Each entry has the beginning of the block and the reason.
// Before you add one, look for another way. The text of the document must tell readers what they have to know.
var notRun = map[string][]struct{ begins, why string }{
	"README.md": {
		{"curl -fLO", "TestTheSandboxNeedsNothingElse runs them, with a release that it serves itself"},
		{"git clone", "needs the network"},
		{"kubectl berth doctor --before-install", "test/install does so, with the chart of a registry on the machine"},
	},
	"docs/install.md": {
		{"kubectl berth doctor --before-install", "test/install runs it"},
		{"kubectl apply -f https://", "test/install applies the file of a release"},
		{"helm install berth oci://", "test/install upgrades to the chart of a registry on the machine"},
		{"kubectl krew install", "needs the network: TestArchive does what Krew does"},
		{"make release", "make test-release makes one"},
		{"helm upgrade berth oci://", "needs a control plane of 1.37: TestChangeOfTheLine, make test-line"},
		{"kubectl apply -k .", "test/install runs it"},
		{"helm install", "test/install runs it"},
		{"kubectl apply --server-side", "test/install runs it"},
		{"helm pull oci://", "TestUpgradeFromThePreviousVersion runs it, with the chart of a registry on the machine"},
		{"for kind in uniteddeployments", "test/install runs it"},
		{"helm uninstall", "test/install runs it"},
		{"kubectl delete -k .", "test/install runs it"},
		{"for part in descheduler/cronjob", "test/install runs its command for each part"},
		{"kubectl delete pods", "test/install runs it"},
	},
	"docs/kind.md": {{"curl -fL https://raw", "needs Docker: .github/workflows/kind.yml does the same with what it builds"}},
	"docs/releases.md": {
		{"gh release download", "needs a release on GitHub: TestImagesOfAReleaseRun pushes images-TAG.tar, and TestAssetsOfAllLines checks the sums"},
		{"git checkout v1.2.3", "make test-release makes a release twice and compares"},
	},
	"docs/migration.md": {
		{"kubectl berth migrate --from kruise --dry-run=client", "needs OpenKruise: TestMigrationFromOpenKruiseAndBack"},
		{"for definition in workloadspreads", "needs definitions of OpenKruise that store v1alpha1: TestMigrationFromOpenKruiseAndBack"},
		{"kubectl patch --local -f manifests/sidecar", "needs OpenKruise: TestMigrationFromOpenKruiseAndBack"},
	},
	"docs/uniteddeployments.md":        {{"kubectl patch --local -f manifests/crd", "needs OpenKruise: TestUnitedDeploymentsOfTheKindsOfOpenKruise"}},
	"docs/descheduler.md":              {{"kubectl -n berth-system create job why", "needs Berth in pods"}},
	"docs/operations/failure-modes.md": {{"kubectl -n berth-system get leases", "needs Berth in pods"}},
	"docs/scenarios.md":                {{"bin/berth-sandbox play", "test/sandbox plays a scenario, and another sandbox would take long here"}},
	"docs/kubectl-berth.md":            {{"kubectl berth ui", "runs until it is ended; test/ui does so"}},
}

// played returns the documents whose commands the tests run.
func played(t *testing.T) []string {
	t.Helper()
	tutorials, err := filepath.Glob(path("docs", "tutorials", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	return append(append(tutorials, operations(t)...), path("README.md"), path("docs", "migration.md"), path("docs", "kubectl-berth.md"), path("docs", "descheduler.md"))
}

// operations returns the pages for operators.
func operations(t *testing.T) []string {
	t.Helper()
	pages, err := filepath.Glob(path("docs", "operations", "*.md"))
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages of operations: %v", err)
	}
	return pages
}

func TestCommandsRunOrHaveAReasonNotTo(t *testing.T) {
	isPlayed, found := played(t), map[string]int{}
	for _, file := range documents(t) {
		fenced, err := blocks(read(t, file))
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		name := relative(file)
		for _, b := range fenced {
			if b.note != "" {
				t.Errorf("%s:%d: no reader sees %q: say it in the text", name, b.line, b.note)
			}
			switch {
			case b.kind == "shell":
				i := found[name]
				found[name]++
				if i >= len(notRun[name]) || len(b.lines) == 0 || !strings.HasPrefix(strings.TrimPrefix(b.lines[0], prompt), notRun[name][i].begins) {
					t.Errorf("%s:%d: notRun has no reason why block %d of kind shell does not run: make it console, or give one", name, b.line, i+1)
				}
			case b.kind != "console" && slices.Contains(isPlayed, file) && slices.ContainsFunc(b.lines, func(line string) bool { return strings.HasPrefix(line, prompt) }):
				t.Errorf("%s:%d: commands in a block of kind %q do not run: make it console, or shell with a reason in notRun", name, b.line, b.kind)
			}
		}
	}
	for name, reasons := range notRun {
		if found[name] != len(reasons) {
			t.Errorf("%s: %d blocks of kind shell, and %d reasons why they do not run", name, found[name], len(reasons))
		}
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

// TestExamplesDoNotReplaceEachOther checks that a user can apply several examples without conflicts. It also checks that the index names each file.
func TestExamplesDoNotReplaceEachOther(t *testing.T) {
	// changes are the examples that change an object of another example.
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
