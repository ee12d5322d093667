// Package layering checks the direction of imports: cmd → adapters → model → vocabulary.
package layering

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const module = "github.com/berth-project/berth/"

// forbidden maps each package to prefixes of packages that it must not depend on, directly or indirectly, and to the reasons.
var forbidden = map[string]map[string]string{
	"pkg/...": {
		module + "cmd":               "imports point from cmd to pkg",
		module + "internal/sandbox":  "only cmd and tests start a control plane",
		module + "internal/scenario": "only cmd and tests start a control plane",
		module + "test":              "builders and checks are for tests",
	},
	"cmd/...": {
		module + "test": "builders and checks are for tests",
		"plugin":        "with Go's plugin package in a program, the linker keeps methods that nobody calls",
	},
	"pkg/crd/...": {
		module + "pkg/subset": "the vocabulary knows no rule",
		"k8s.io/client-go":    "the vocabulary is imported by everyone",
	},
	"pkg/allocation": {
		"k8s.io/":             "it divides numbers",
		module + "pkg/subset": "subsets ask it",
		module + "pkg/crd":    "it divides numbers",
	},
	"pkg/sites": {
		"k8s.io/":          "it compares names and times",
		module + "pkg/crd": "two models with different vocabularies ask it",
	},
	"pkg/podspec": {
		"k8s.io/client-go":    "it takes objects that somebody else has read",
		"k8s.io/kubernetes":   "it is used by programs that are no scheduler",
		module + "pkg/crd":    "it knows what the API server refuses in a pod, and nothing of Berth's kinds",
		module + "pkg/subset": "models ask it, and not the other way round",
	},
	"pkg/subset": {
		"k8s.io/client-go":               "the model has no client; move the reading to the adapter",
		"k8s.io/kubernetes":              "the model is used by programs that are no scheduler",
		"sigs.k8s.io/controller-runtime": "the model is used by programs that are no controller",
		module + "pkg/workload":          "the model takes numbers",
		module + "pkg/plugins":           "imports point from adapters to the model",
	},
	"pkg/ledger": {
		"k8s.io/client-go":               "the ledger has no client and no lister; the plugin gathers",
		"k8s.io/kubernetes":              "the ledger can be searched without a scheduler",
		"sigs.k8s.io/controller-runtime": "the ledger is used by a program that is no controller",
		module + "pkg/plugins":           "imports point from adapters to the ledger",
	},
	"pkg/budget": {
		"k8s.io/client-go":               "the model has no client; move the reading to the adapter",
		"k8s.io/kubernetes":              "the model is used by programs that are no scheduler",
		"sigs.k8s.io/controller-runtime": "the model is used by programs that are no controller",
		module + "pkg/guard":             "imports point from adapters to the model",
		module + "pkg/controller":        "imports point from adapters to the model",
	},
	"pkg/united": {
		"k8s.io/client-go":               "the model has no client; move the reading to the adapter",
		"k8s.io/kubernetes":              "the model is used by programs that are no scheduler",
		"sigs.k8s.io/controller-runtime": "the model is used by programs that are no controller",
		module + "pkg/webhook":           "imports point from adapters to the model",
		module + "pkg/controller":        "imports point from adapters to the model",
	},
	"pkg/federation": {
		"k8s.io/client-go":               "the model has no client; move the reading to the adapter",
		"k8s.io/kubernetes":              "the model is used by programs that are no scheduler",
		"sigs.k8s.io/controller-runtime": "the model is used by programs that are no controller",
		module + "pkg/united":            "the two share pkg/allocation and pkg/sites",
		module + "pkg/webhook":           "imports point from adapters to the model",
		module + "pkg/controller":        "imports point from adapters to the model",
	},
	"pkg/sidecar": {
		"k8s.io/client-go":               "the model has no client; move the reading to the adapter",
		"k8s.io/kubernetes":              "the model is used by programs that are no scheduler",
		"sigs.k8s.io/controller-runtime": "the model is used by programs that are no controller",
		module + "pkg/webhook":           "imports point from adapters to the model",
		module + "pkg/controller":        "imports point from adapters to the model",
	},
	"pkg/moves": {
		"k8s.io/client-go":               "the model has no client; move the reading to the adapter",
		"k8s.io/kubernetes":              "the model is used by programs that are no scheduler",
		"sigs.k8s.io/controller-runtime": "the model is used by programs that are no controller",
		"sigs.k8s.io/descheduler":        "the model is used by programs that are no descheduler",
		module + "pkg/plugins":           "imports point from adapters to the model",
		module + "pkg/descheduler":       "imports point from adapters to the model",
	},
	"pkg/guard/...": {
		module + "pkg/plugins":    "adapters do not import each other",
		module + "pkg/controller": "adapters do not import each other",
		module + "pkg/webhook":    "adapters do not import each other",
		"k8s.io/kubernetes":       "only the scheduler is built on k8s.io/kubernetes",
	},
	"pkg/endpoint": {
		module + "pkg/webhook": "the adapters use it, and not the other way round",
		module + "pkg/guard":   "the adapters use it, and not the other way round",
	},
	"pkg/workload": {
		"k8s.io/client-go":               "it takes objects that somebody else has read",
		"k8s.io/kubernetes":              "it is used by programs that are no scheduler",
		"sigs.k8s.io/controller-runtime": "it is used by programs that are no controller",
	},
	"pkg/lineage": {
		module + "pkg/plugins":     "the adapters use it, and not the other way round",
		module + "pkg/controller":  "the adapters use it, and not the other way round",
		module + "pkg/descheduler": "the adapters use it, and not the other way round",
		module + "pkg/webhook":     "the adapters use it, and not the other way round",
		"k8s.io/kubernetes":        "only the scheduler is built on k8s.io/kubernetes",
	},
	"internal/scenario": {
		module + "pkg/plugins":    "a scenario shows what the components do; it does nothing in their place",
		module + "pkg/ledger":     "a scenario shows what the components do; it does nothing in their place",
		module + "pkg/controller": "a scenario shows what the components do; it does nothing in their place",
		module + "pkg/webhook":    "a scenario shows what the components do; it does nothing in their place",
		module + "pkg/fit":        "a scenario shows what the components do; it does nothing in their place",
		"k8s.io/kubernetes":       "a scenario shows what the components do; it does nothing in their place",
	},
	"pkg/fit": {
		module + "pkg/crd":               "it runs the filters of kube-scheduler and knows nothing of the product",
		module + "pkg/subset":            "it runs the filters of kube-scheduler and knows nothing of the product",
		"sigs.k8s.io/controller-runtime": "it is used by programs that are no controller",
	},
	// What judges the product must not repeat its mistakes.
	"test/checker": {
		module + "pkg": "the checker reads the API alone, and has its own arithmetic",
		module + "cmd": "the checker reads the API alone, and has its own arithmetic",
	},
	"test/linear": {
		module + "pkg": "it knows nothing of the product",
		module + "cmd": "it knows nothing of the product",
	},
	"cmd/kubectl-berth": {
		"k8s.io/kubernetes":        "kubectl-berth is small; what asks filters is in berth-whatif",
		"sigs.k8s.io/descheduler":  "kubectl-berth is small; no command asks the descheduler",
		module + "pkg/fit":         "kubectl-berth is small; what asks filters is in berth-whatif",
		module + "pkg/descheduler": "kubectl-berth is small; no command asks the descheduler",
		module + "pkg/plugins":     "kubectl-berth is small; what asks the plugin is in berth-whatif",
	},
	"pkg/whatif": {
		module + "pkg/plugins/descheduling": "it schedules pods and moves none",
		module + "pkg/descheduler":          "programs use it, and not the other way round",
		module + "pkg/controller":           "a command reads what the components write",
		module + "pkg/webhook":              "a command reads what the components write",
	},
	"pkg/cli/...": {
		module + "pkg/controller": "a command reads what the components write",
		module + "pkg/webhook":    "a command reads what the components write",
	},
	"pkg/report": {
		"k8s.io/client-go":               "it takes an object that somebody else has read",
		"k8s.io/kubernetes":              "it is used by programs that are no scheduler",
		"sigs.k8s.io/controller-runtime": "it is used by programs that are no controller",
	},
	"pkg/ui": {
		module + "pkg/plugins":     "the page reads what the components write",
		module + "pkg/controller":  "the page reads what the components write",
		module + "pkg/webhook":     "the page reads what the components write",
		module + "pkg/descheduler": "the page reads what the components write",
		module + "pkg/cli":         "the command serves the page, and not the other way round",
		"k8s.io/kubernetes":        "it asks no filter",
	},
	"internal/sandbox": {
		module + "pkg/crd":    "the sandbox knows nothing of the product; pass it in",
		module + "pkg/subset": "the sandbox knows nothing of the product; pass it in",
		module + "manifests":  "the sandbox knows nothing of the product; pass it in",
	},
	"pkg/plugins/scheduling/...": {
		module + "pkg/controller":        "adapters do not import each other",
		module + "pkg/webhook":           "adapters do not import each other",
		module + "pkg/descheduler":       "adapters do not import each other",
		"sigs.k8s.io/controller-runtime": "a plugin reads the scheduler's own informers",
	},
	"pkg/plugins/descheduling/...": {
		module + "pkg/controller":         "adapters do not import each other",
		module + "pkg/webhook":            "adapters do not import each other",
		module + "pkg/plugins/scheduling": "adapters do not import each other",
	},
	"pkg/descheduler/...": {
		module + "pkg/controller": "adapters do not import each other",
		module + "pkg/webhook":    "adapters do not import each other",
		module + "pkg/plugins":    "strategies use it, and not the other way round",
	},
	"pkg/webhook/...": {
		module + "pkg/plugins":    "adapters do not import each other",
		module + "pkg/controller": "adapters do not import each other",
		// The webhook uses the API server's own validation of pods. It uses nothing else of k8s.io/kubernetes.
		"k8s.io/kubernetes/pkg/scheduler":  "only the scheduler is built on the scheduler",
		"k8s.io/kubernetes/pkg/controller": "only the control plane is built on its controllers",
	},
	"pkg/members": {
		module + "pkg/plugins":    "adapters do not import each other",
		module + "pkg/controller": "controllers use it, and not the other way round",
		module + "pkg/webhook":    "adapters do not import each other",
		"k8s.io/kubernetes":       "only the scheduler is built on k8s.io/kubernetes",
	},
	"pkg/controller/...": {
		module + "pkg/plugins": "adapters do not import each other",
		module + "pkg/webhook": "adapters do not import each other",
		"k8s.io/kubernetes":    "only the scheduler is built on k8s.io/kubernetes",
	},
}

// scenarios are files that the sandbox plays too.
const scenarios = module + "test/scenarios"

func TestImportsPointOneWay(t *testing.T) {
	output, err := exec.CommandContext(t.Context(), "go", "list", "-f", `{{.ImportPath}} {{join .Deps " "}}`, module+"...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	found, dependencies := map[string]bool{}, map[string][]string{}
	for line := range strings.Lines(string(output)) {
		pkg, deps, _ := strings.Cut(strings.TrimSpace(line), " ")
		dependencies[pkg] = strings.Fields(deps)
		for pattern, rules := range forbidden {
			if !match(module+pattern, pkg) {
				continue
			}
			found[pattern] = true
			for dep := range strings.FieldsSeq(deps) {
				for prefix, why := range rules {
					if match(strings.TrimSuffix(prefix, "/")+"/...", dep) && dep != scenarios {
						t.Errorf("%s depends on %s: %s", pkg, dep, why)
					}
				}
			}
		}
	}
	for pkg, deps := range dependencies {
		for _, dep := range deps {
			other, isController := strings.CutPrefix(dep, module+"pkg/controller/")
			if strings.HasPrefix(pkg, module+"pkg/controller/") && isController && other != "frame" && other != "apply" {
				t.Errorf("%s depends on %s: controllers share pkg/controller/frame and pkg/controller/apply, and nothing else", pkg, dep)
			}
		}
	}
	for pattern := range forbidden {
		if !found[pattern] {
			t.Errorf("no package is %s", pattern)
		}
	}
}

// match is whether a pattern is this package. A pattern that ends in /... is also each package below it.
func match(pattern, pkg string) bool {
	dir, below := strings.CutSuffix(pattern, "/...")
	return pkg == dir || below && strings.HasPrefix(pkg, dir+"/")
}

// If the control plane and the product use different versions of a package, Go compiles it twice. Then a newcomer's first command takes longer.
func TestTheControlPlaneSharesItsPackagesWithTheProduct(t *testing.T) {
	product := versions(t, "../..", "./cmd/...", "./test/demo")
	for pkg, theirs := range versions(t, "../../hack/tools", "./controlplane") {
		if ours, shared := product[pkg]; shared && ours != theirs {
			t.Errorf("%s is of %s in the product and of %s in hack/tools: `replace` it in hack/tools/go.mod", pkg, ours, theirs)
		}
	}
}

// The modules of a line of Kubernetes are not edited. They follow the product's go.mod.
func TestLinesFollowTheProduct(t *testing.T) {
	if testing.Short() {
		t.Skip("a long test: make test-all runs it")
	}
	lines, err := filepath.Glob("../../hack/lines/*/pins.mod")
	if err != nil || len(lines) == 0 {
		t.Fatalf("lines: %v, %v", lines, err)
	}
	for _, pins := range lines {
		line := filepath.Base(filepath.Dir(pins))
		check := exec.CommandContext(t.Context(), "go", "run", "./hack/lines/derive", "-check", line)
		check.Dir = "../.."
		if output, err := check.CombinedOutput(); err != nil {
			t.Errorf("line %s: %v\n%s", line, err, output)
		}
	}
}

// versions returns the dependencies of the packages, with their modules and versions. It omits the standard library.
func versions(t *testing.T, dir string, packages ...string) map[string]string {
	t.Helper()
	const format = `{{$pkg := .ImportPath}}{{with .Module}}{{if .Replace}}{{$pkg}} {{.Replace}}{{else}}{{$pkg}} {{.}}{{end}}{{end}}`
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-deps", "-f", format}, packages...)...)
	cmd.Dir = dir
	output, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list in %s: %v", dir, err)
	}
	of := map[string]string{}
	for line := range strings.Lines(string(output)) {
		if pkg, module, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			of[pkg] = module
		}
	}
	return of
}
