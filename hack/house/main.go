// Command house counts what a newcomer has to learn: packages and exported names below pkg, and words of the documents.
// With -unused it names the exported names that no other package uses. It takes names in front of a dot for packages,
// so it finds some uses too many, and none too few.
//
//	go run ./hack/house
package main

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const module = "github.com/berth-project/berth/"

func main() {
	unused := flag.Bool("unused", false, "name the exported names that no other package uses")
	flag.Parse()
	if err := run(*unused); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(unused bool) error {
	packages, used := map[string][]string{}, map[string]bool{}
	words := 0
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (name == "bin" || name == ".git" || entry.Name() == "testdata"):
			return filepath.SkipDir
		case strings.HasSuffix(name, ".go"):
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
			if err != nil {
				return err
			}
			use(file, used)
			if dir := path.Dir(name); strings.HasPrefix(name, "pkg/") && !strings.HasSuffix(name, "_test.go") {
				packages[dir] = append(packages[dir], exported(file)...)
			}
		case strings.HasPrefix(name, "docs/") && strings.HasSuffix(name, ".md") && !strings.HasPrefix(name, "docs/api/") && !strings.HasPrefix(name, "docs/decisions/"):
			text, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			words += len(strings.Fields(string(text)))
		}
		return nil
	})
	if err != nil {
		return err
	}
	names := 0
	for dir, all := range packages {
		names += len(all)
		slices.Sort(all)
		for _, name := range all {
			if unused && !used[dir+"."+name] {
				fmt.Printf("%s.%s\n", dir, name)
			}
		}
	}
	fmt.Printf("packages below pkg: %d\nexported names below pkg, without methods and fields: %d\nwords of docs, without docs/api and docs/decisions: %d\n",
		len(packages), names, words)
	return nil
}

// use adds the names of Berth's packages that a file uses.
func use(file *ast.File, used map[string]bool) {
	dirs := map[string]string{}
	for _, spec := range file.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if dir, ours := strings.CutPrefix(imported, module); err == nil && ours {
			name := path.Base(dir)
			if spec.Name != nil {
				name = spec.Name.Name
			}
			dirs[name] = dir
		}
	}
	ast.Inspect(file, func(node ast.Node) bool {
		if selector, is := node.(*ast.SelectorExpr); is {
			if of, is := selector.X.(*ast.Ident); is && dirs[of.Name] != "" {
				used[dirs[of.Name]+"."+selector.Sel.Name] = true
			}
		}
		return true
	})
}

// exported are the names that a file declares for other packages.
func exported(file *ast.File) (names []string) {
	add := func(id *ast.Ident) {
		if id.IsExported() {
			names = append(names, id.Name)
		}
	}
	for _, declaration := range file.Decls {
		switch d := declaration.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				add(d.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					add(s.Name)
				case *ast.ValueSpec:
					for _, id := range s.Names {
						add(id)
					}
				}
			}
		}
	}
	return names
}
