// Command metrics writes docs/api/metrics.md: the metrics of each component, from the calls that make them. Tests on a running scheduler, controller and
// descheduler compare the page with what these expose.
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// components in the order of the page, with the packages that have metrics.
var components = []struct {
	name string
	dirs []string
}{
	{"berth-scheduler", []string{"pkg/plugins/scheduling/workloadspread"}},
	{"berth-controller", []string{"pkg/controller/spread", "pkg/controller/sidecar", "pkg/webhook", "pkg/autoscaler", "pkg/guard"}},
	{"berth-united", []string{"pkg/controller/united", "pkg/controller/federation"}},
	{"berth-descheduler", []string{"pkg/descheduler", "pkg/descheduler/cycle"}},
}

const introduction = `# Metrics

Generated from the code by ` + "`make generate`" + `. The components also serve the metrics of kube-scheduler, controller-runtime and kubernetes-sigs/descheduler. Where they serve them, and what
to ask of them: [metrics](../operations/metrics.md).
`

// metric is a row of the page.
type metric struct {
	name, kind, help string
	labels           []string
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: metrics REPOSITORY > docs/api/metrics.md")
		os.Exit(2)
	}
	text, err := write(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "metrics:", err)
		os.Exit(1)
	}
	fmt.Print(text)
}

func write(root string) (string, error) {
	var text strings.Builder
	text.WriteString(introduction)
	for _, component := range components {
		fmt.Fprintf(&text, "\n## %s\n\n| metric | type | labels | |\n|---|---|---|---|\n", component.name)
		var all []metric
		for _, dir := range component.dirs {
			found, err := metricsOf(filepath.Join(root, dir))
			if err != nil {
				return "", fmt.Errorf("%s: %w", dir, err)
			}
			if len(found) == 0 {
				return "", fmt.Errorf("%s makes no metric", dir)
			}
			all = append(all, found...)
		}
		slices.SortFunc(all, func(a, b metric) int { return strings.Compare(a.name, b.name) })
		for _, m := range all {
			labels := ""
			if len(m.labels) > 0 {
				labels = "`" + strings.Join(m.labels, "`, `") + "`"
			}
			fmt.Fprintf(&text, "| `%s` | %s | %s | %s |\n", m.name, m.kind, labels, strings.ReplaceAll(m.help, "|", `\|`))
		}
	}
	return text.String(), nil
}

// metricsOf are the metrics that a package makes.
func metricsOf(dir string) ([]metric, error) {
	files, err := parse(dir)
	if err != nil {
		return nil, err
	}
	constants := constants{}
	for _, file := range files {
		constants.add(file)
	}
	var all []metric
	for _, file := range files {
		ast.Inspect(file, func(node ast.Node) bool {
			call, ok := node.(*ast.CallExpr)
			if !ok || err != nil {
				return err == nil
			}
			function, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if from, ok := function.X.(*ast.Ident); !ok || from.Name != "prometheus" && from.Name != "metrics" {
				return true
			}
			var made *metric
			if made, err = constants.metric(function.Sel.Name, call.Args); made != nil {
				all = append(all, *made)
			}
			return err == nil
		})
	}
	return all, err
}

func parse(dir string) ([]*ast.File, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var files []*ast.File
	for _, entry := range entries {
		if !isSource(entry) {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, entry.Name()), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}

func isSource(entry fs.DirEntry) bool {
	return strings.HasSuffix(entry.Name(), ".go") && !strings.HasSuffix(entry.Name(), "_test.go")
}

// constants of a package, by name.
type constants map[string]ast.Expr

func (c constants) add(file *ast.File) {
	for _, declaration := range file.Decls {
		general, ok := declaration.(*ast.GenDecl)
		if !ok || general.Tok != token.CONST {
			continue
		}
		for _, one := range general.Specs {
			spec := one.(*ast.ValueSpec)
			for i, name := range spec.Names {
				if i < len(spec.Values) {
					c[name.Name] = spec.Values[i]
				}
			}
		}
	}
}

// metric is what a call of a metrics package makes, or nil if that is no metric.
func (c constants) metric(function string, args []ast.Expr) (*metric, error) {
	kind, vector := strings.CutSuffix(strings.TrimPrefix(function, "New"), "Vec")
	var m metric
	var labels ast.Expr
	switch kind {
	case "Counter", "Gauge", "Histogram":
		options, err := c.options(args[0])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", function, err)
		}
		m = metric{kind: strings.ToLower(kind), name: options["Name"], help: options["Help"]}
		if subsystem := options["Subsystem"]; subsystem != "" {
			m.name = subsystem + "_" + m.name
		}
		if vector {
			labels = args[1]
		}
	case "Desc":
		var err error
		if m.name, err = c.text(args[0]); err != nil {
			return nil, err
		}
		if m.help, err = c.text(args[1]); err != nil {
			return nil, err
		}
		// A description has no type; ours are named as Prometheus asks for.
		if m.kind = "gauge"; strings.HasSuffix(m.name, "_total") {
			m.kind = "counter"
		}
		labels = args[2]
	default:
		return nil, nil
	}
	list, ok := labels.(*ast.CompositeLit)
	if !ok {
		return &m, nil
	}
	for _, element := range list.Elts {
		label, err := c.text(element)
		if err != nil {
			return nil, err
		}
		m.labels = append(m.labels, label)
	}
	return &m, nil
}

// options are the fields of Opts that are texts.
func (c constants) options(expr ast.Expr) (map[string]string, error) {
	if pointer, ok := expr.(*ast.UnaryExpr); ok {
		expr = pointer.X
	}
	literal, ok := expr.(*ast.CompositeLit)
	if !ok {
		return nil, fmt.Errorf("the options are no literal")
	}
	fields := map[string]string{}
	for _, element := range literal.Elts {
		field, ok := element.(*ast.KeyValueExpr)
		if !ok {
			return nil, fmt.Errorf("the options do not name their fields")
		}
		switch name := field.Key.(*ast.Ident).Name; name {
		case "Name", "Subsystem", "Help":
			text, err := c.text(field.Value)
			if err != nil {
				return nil, err
			}
			fields[name] = text
		}
	}
	return fields, nil
}

// text is the value of a constant expression of texts.
func (c constants) text(expr ast.Expr) (string, error) {
	switch e := expr.(type) {
	case *ast.BasicLit:
		return strconv.Unquote(e.Value)
	case *ast.Ident:
		if value := c[e.Name]; value != nil {
			return c.text(value)
		}
	case *ast.BinaryExpr:
		left, err := c.text(e.X)
		if err != nil {
			return "", err
		}
		right, err := c.text(e.Y)
		return left + right, err
	}
	return "", fmt.Errorf("a text is not constant: %T", expr)
}
