package documents

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// unseen are reasons that users never see as a word. The value is why.
var unseen = map[string]string{
	"ReasonTaintNotTolerated": "the scheduler says it in a sentence that names the subset",
}

// TestEveryReasonIsExplained checks that a page explains every reason and result.
func TestEveryReasonIsExplained(t *testing.T) {
	documents := []string{"operations/troubleshooting.md", "operations/budgets.md", "descheduler.md"}
	var text strings.Builder
	for _, document := range documents {
		text.WriteString(read(t, path("docs", document)))
	}
	explained := text.String()
	for file, kind := range map[string]string{
		path("pkg", "crd", "apps", "v1beta1", "names.go"):   "Reason",
		path("pkg", "crd", "policy", "v1beta1", "names.go"): "Reason",
		path("pkg", "descheduler", "cycle", "result.go"):    "evictionResult",
	} {
		constants := constantsOf(t, file, kind)
		if len(constants) < 5 {
			t.Errorf("%s: found %d constants of type %s only", relative(file), len(constants), kind)
		}
		for name, value := range constants {
			if _, hidden := unseen[name]; !hidden && !strings.Contains(explained, "`"+value+"`") {
				t.Errorf("%s: %s `%s` is in none of docs/%s: say there what it means and what to do", relative(file), name, value, strings.Join(documents, ", docs/"))
			}
		}
	}
}

// TestEveryAlertHasARunbook checks that a runbook explains what each alert means and what to do.
func TestEveryAlertHasARunbook(t *testing.T) {
	const page = "https://github.com/berth-project/berth/blob/main/docs/operations/alerts.md#"
	headings := anchors(t, path("docs", "operations", "alerts.md"))
	alerts := strings.Split(read(t, path("manifests", "observe", "rules.yaml")), "- alert: ")[1:]
	if len(alerts) < 5 {
		t.Fatalf("found %d alerts only", len(alerts))
	}
	for _, alert := range alerts {
		name, rest, _ := strings.Cut(alert, "\n")
		if !strings.Contains(rest, "runbook_url: "+page+slug(name)+"\n") || !slices.Contains(headings, slug(name)) {
			t.Errorf("alert %s has no runbook_url, or docs/operations/alerts.md has no heading for it", name)
		}
	}
}

// TestCompatibilityNamesTheVersionsThatAreBuilt checks that docs/compatibility.md names the versions of the modules that the build uses.
func TestCompatibilityNamesTheVersionsThatAreBuilt(t *testing.T) {
	modules := []string{read(t, path("go.mod"))}
	for _, pattern := range []string{"hack/tools/go.mod", "hack/tools/*/go.mod"} {
		files, err := filepath.Glob(path(pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			modules = append(modules, read(t, file))
		}
	}
	page := read(t, path("docs", "compatibility.md"))
	for module, says := range map[string]string{
		"k8s.io/kubernetes":                    "with %s: every integration test",
		"sigs.k8s.io/scheduler-plugins":        "v%s",
		"sigs.k8s.io/descheduler":              "| %s is compiled into `berth-descheduler`",
		"sigs.k8s.io/kwok":                     "KWOK %s",
		"github.com/openkruise/kruise":         "runs OpenKruise %s beside Berth",
		"github.com/argoproj/argo-rollouts":    "with the controller, %s",
		"github.com/kedacore/keda/v2":          "KEDA %s, ",
		"github.com/cert-manager/cert-manager": "cert-manager %s, ",
		"volcano.sh/volcano":                   "Volcano %s: ",
		"sigs.k8s.io/kueue":                    "Kueue %s: ",
		"github.com/prometheus/prometheus":     "Prometheus %s reads",
		"github.com/fluxcd/pkg/ssa":            "fluxcd/pkg/ssa %s)",
	} {
		in := modules
		// A module that is built from its own go.mod may be in that of another tool, in another version.
		if own := slices.IndexFunc(modules, func(text string) bool {
			return regexp.MustCompile(`(?m)^(tool )?\s*` + regexp.QuoteMeta(module) + `/cmd/`).MatchString(text)
		}); own >= 0 {
			in = modules[own:]
		}
		found := regexp.MustCompile(`(?m)^(?:require )?\s*` + regexp.QuoteMeta(module) + ` v(\S+)`).FindStringSubmatch(strings.Join(in, ""))
		if found == nil {
			t.Errorf("no module needs %s", module)
			continue
		}
		if want := fmt.Sprintf(says, found[1]); !strings.Contains(page, want) {
			t.Errorf("docs/compatibility.md does not say %q, and %s is built in that version", want, module)
		}
	}
}

// TestCompatibilityNamesTheVersionsOfEveryLine is the same for the lines of Kubernetes beside that of go.mod.
func TestCompatibilityNamesTheVersionsOfEveryLine(t *testing.T) {
	page := read(t, path("docs", "compatibility.md"))
	lines, err := filepath.Glob(path("hack/lines/*/pins.mod"))
	if err != nil || len(lines) == 0 {
		t.Fatalf("lines: %v, %v", lines, err)
	}
	for _, pins := range lines {
		for _, required := range regexp.MustCompile(`(?m)^\t(?:k8s.io/kubernetes|sigs.k8s.io/descheduler) v(\S+)$`).FindAllStringSubmatch(read(t, pins), -1) {
			if !strings.Contains(page, required[1]) {
				t.Errorf("docs/compatibility.md does not name %s, which %s requires", required[1], relative(pins))
			}
		}
	}
}

// constantsOf returns the values of the constants of a type, by name. Each constant must name its type and be a string.
func constantsOf(t *testing.T, file, kind string) map[string]string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]string{}
	ast.Inspect(parsed, func(node ast.Node) bool {
		spec, ok := node.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if named, ok := spec.Type.(*ast.Ident); !ok || named.Name != kind || len(spec.Values) != 1 {
			return true
		}
		value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatalf("%s: %s: %v", relative(file), spec.Names[0].Name, err)
		}
		values[spec.Names[0].Name] = value
		return true
	})
	return values
}
