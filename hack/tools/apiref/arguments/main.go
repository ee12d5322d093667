// Command arguments writes docs/api/arguments.md, the reference of the arguments of Berth's scheduler and descheduler plugins, from their Args types.
package main

import (
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

const module = "github.com/berth-project/berth/"

// plugins in the order of the document, by directory and name of their Args type.
var plugins = []struct{ name, dir, args string }{
	{"WorkloadSpread", "pkg/plugins/scheduling/workloadspread", "Args"},
	{"EvictUnschedulableSubsetPods", "pkg/plugins/descheduling", "EvictUnschedulableSubsetPodsArgs"},
	{"EnforceSubsetMaxReplicas", "pkg/plugins/descheduling", "EnforceSubsetMaxReplicasArgs"},
	{"RebalanceToPreferredSubset", "pkg/plugins/descheduling", "RebalanceToPreferredSubsetArgs"},
	{"SubsetEvictor", "pkg/plugins/descheduling", "SubsetEvictorArgs"},
}

// words are types as users write them.
var words = map[string]string{
	"string":               "string",
	"bool":                 "boolean",
	"int32":                "integer",
	"metav1.Duration":      "duration",
	"intstr.IntOrString":   "count or percentage",
	"metav1.LabelSelector": "label selector",
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: arguments REPOSITORY > docs/api/arguments.md")
		os.Exit(2)
	}
	text, err := write(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "arguments:", err)
		os.Exit(1)
	}
	fmt.Print(text)
}

func write(root string) (string, error) {
	d := &document{root: root, packages: map[string]*source{}}
	d.line("# Arguments of the plugins")
	d.line("")
	d.line("`make generate` writes this page from the types. The arguments of WorkloadSpread are in the scheduler's configuration (`manifests/scheduler/scheduler-config.yaml`), the others in")
	d.line("the descheduler's policy (`manifests/descheduler/base/policy.yaml`). Both have them under `pluginConfig`. You may leave out every field; *nil* and *empty* mean a field that is left out.")
	for _, plugin := range plugins {
		where := "descheduler"
		if strings.Contains(plugin.dir, "/scheduling/") {
			where = "scheduler"
		}
		if err := d.section(plugin.name+" ("+where+")", plugin.dir, plugin.args); err != nil {
			return "", fmt.Errorf("%s: %w", plugin.name, err)
		}
	}
	for i := 0; i < len(d.later); i++ { // grows during the loop
		if err := d.section(d.later[i].name, d.later[i].dir, d.later[i].name); err != nil {
			return "", err
		}
	}
	return d.text.String(), nil
}

// document is what has been written so far, and the types to explain after it.
type document struct {
	root     string
	text     strings.Builder
	packages map[string]*source
	later    []named
}

type named struct{ dir, name string }

// source is a package: its types and the imports of its files, by name.
type source struct {
	types   map[string]*ast.TypeSpec
	docs    map[string]string
	imports map[string]string
}

func (d *document) line(text string) { d.text.WriteString(text + "\n") }

// section explains the fields of a struct.
func (d *document) section(title, dir, name string) error {
	from, err := d.read(dir)
	if err != nil {
		return err
	}
	d.line("\n## " + title + "\n")
	if doc := from.docs[name]; !strings.HasPrefix(doc, "Args") {
		d.line(doc + "\n")
	}
	d.line("| field | type | |\n|---|---|---|")
	return d.fields(dir, name)
}

func (d *document) fields(dir, name string) error {
	from, err := d.read(dir)
	if err != nil {
		return err
	}
	spec := from.types[name]
	if spec == nil {
		return fmt.Errorf("%s has no type %s", dir, name)
	}
	structure, ok := spec.Type.(*ast.StructType)
	if !ok {
		return fmt.Errorf("%s.%s is no struct", dir, name)
	}
	for _, field := range structure.Fields.List {
		if len(field.Names) == 0 {
			if err := d.embedded(dir, from, field.Type); err != nil {
				return err
			}
			continue
		}
		tag := ""
		if field.Tag != nil {
			unquoted, err := strconv.Unquote(field.Tag.Value)
			if err != nil {
				return err
			}
			tag, _, _ = strings.Cut(reflect.StructTag(unquoted).Get("json"), ",")
		}
		if tag == "" {
			return fmt.Errorf("field %s of %s.%s has no name in JSON", field.Names[0], dir, name)
		}
		word, err := d.word(dir, from, field.Type)
		if err != nil {
			return err
		}
		d.line(fmt.Sprintf("| `%s` | %s | %s |", tag, word, strings.ReplaceAll(oneLine(field.Doc), "|", `\|`)))
	}
	return nil
}

// embedded adds the fields of an embedded struct of this repository. It skips structs of other modules, whose fields every object has.
func (d *document) embedded(dir string, from *source, expr ast.Expr) error {
	to, name, ours := d.resolve(dir, from, expr)
	if !ours {
		return nil
	}
	return d.fields(to, name)
}

// resolve finds the declaration of a type, if it is in this repository.
func (d *document) resolve(dir string, from *source, expr ast.Expr) (in, name string, ours bool) {
	switch e := expr.(type) {
	case *ast.StarExpr:
		return d.resolve(dir, from, e.X)
	case *ast.Ident:
		return dir, e.Name, from.types[e.Name] != nil
	case *ast.SelectorExpr:
		of, ok := e.X.(*ast.Ident)
		if !ok {
			return "", "", false
		}
		to, ours := strings.CutPrefix(from.imports[of.Name], module)
		return to, e.Sel.Name, ours
	default:
		return "", "", false
	}
}

// word is a type as users write it. A struct of this repository is explained later.
func (d *document) word(dir string, from *source, expr ast.Expr) (string, error) {
	switch e := expr.(type) {
	case *ast.StarExpr:
		return d.word(dir, from, e.X)
	case *ast.ArrayType:
		word, err := d.word(dir, from, e.Elt)
		return "list of " + word + "s", err
	}
	var b strings.Builder
	if err := format.Node(&b, token.NewFileSet(), expr); err != nil {
		return "", err
	}
	if word, known := words[b.String()]; known {
		return word, nil
	}
	to, name, ours := d.resolve(dir, from, expr)
	if !ours {
		return "", fmt.Errorf("no word for type %s", b.String())
	}
	if next := (named{to, name}); !slices.Contains(d.later, next) {
		d.later = append(d.later, next)
	}
	return fmt.Sprintf("[%s](#%s)", name, strings.ToLower(name)), nil
}

// read parses a package once.
func (d *document) read(dir string) (*source, error) {
	if from := d.packages[dir]; from != nil {
		return from, nil
	}
	entries, err := os.ReadDir(filepath.Join(d.root, dir))
	if err != nil {
		return nil, err
	}
	from := &source{types: map[string]*ast.TypeSpec{}, docs: map[string]string{}, imports: map[string]string{}}
	for _, entry := range entries {
		if !isSource(entry) {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(d.root, dir, entry.Name()), nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		from.add(file)
	}
	d.packages[dir] = from
	return from, nil
}

func isSource(entry fs.DirEntry) bool {
	return strings.HasSuffix(entry.Name(), ".go") && !strings.HasSuffix(entry.Name(), "_test.go")
}

func (s *source) add(file *ast.File) {
	for _, imported := range file.Imports {
		path, err := strconv.Unquote(imported.Path.Value)
		if err != nil {
			continue // the parser guarantees that it is a string
		}
		name := path[strings.LastIndex(path, "/")+1:]
		if imported.Name != nil {
			name = imported.Name.Name
		}
		s.imports[name] = path
	}
	for _, declaration := range file.Decls {
		general, ok := declaration.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, one := range general.Specs {
			if spec, ok := one.(*ast.TypeSpec); ok {
				s.types[spec.Name.Name] = spec
				s.docs[spec.Name.Name] = oneLine(general.Doc)
			}
		}
	}
}

// oneLine is a comment without its markers and line breaks.
func oneLine(comment *ast.CommentGroup) string {
	var lines []string
	for _, line := range strings.Split(comment.Text(), "\n") {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "+") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, " ")
}
