// Command derive writes the module files of a Kubernetes line, so that nobody keeps a second copy of the product's
// requirements by hand:
//
//	go run ./hack/lines/derive 1.37
//
// With -check it writes nothing, and fails if a file is not what it would write.
//
// hack/lines/1.37/pins.mod says what differs. From it and from the product's go.mod comes hack/lines/1.37/go.mod, and
// from it and hack/tools/go.mod comes hack/lines/1.37/tools.mod. Every module that Kubernetes itself requires gets the
// version that Kubernetes is built with, also if another module asks for a later one. So the product and the control
// plane of a line share their compiled packages.
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// platforms are those that binaries are built for. A module that only one of them needs must be in the go.sum as well.
var platforms = []string{"linux", "darwin"}

const kubernetes = "k8s.io/kubernetes"

// module is a module and its version, as `go mod edit -json` writes it. Version is empty for a directory.
type module struct {
	Path, Version string
	Indirect      bool `json:",omitempty"`
}

// modules is a go.mod, as far as a line needs it.
type modules struct {
	Module  struct{ Path string }
	Go      string
	Godebug []struct{ Key, Value string }
	Require []module
	Replace []struct{ Old, New module }
	Exclude []module
}

func main() {
	check := flag.Bool("check", false, "write nothing, and fail if a file is not what would be written")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: go run ./hack/lines/derive [-check] LINE, where hack/lines/LINE/pins.mod exists")
		os.Exit(2)
	}
	line := flag.Arg(0)
	for _, of := range []struct{ dir, file string }{{".", "go.mod"}, {"hack/tools", "tools.mod"}} {
		if err := update(line, of.dir, of.file, *check); err != nil {
			fmt.Fprintf(os.Stderr, "deriving hack/lines/%s/%s: %v\n", line, of.file, err)
			os.Exit(1)
		}
	}
}

// update derives a module file and its sums in a directory of its own, and then writes or checks those of the line.
func update(line, dir, file string, check bool) error {
	work, err := os.MkdirTemp("", "line")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	derived, current := filepath.Join(work, file), filepath.Join("hack/lines", line, file)
	if check { // with the sums that are known, so that nobody is asked for them
		if err := copyFile(sums(current), sums(derived)); err != nil {
			return err
		}
	}
	if err := derive(line, dir, derived); err != nil {
		return err
	}
	if !check {
		return cmp.Or(copyFile(derived, current), copyFile(sums(derived), sums(current)))
	}
	want, err := os.ReadFile(derived)
	if err != nil {
		return err
	}
	if got, err := os.ReadFile(current); err != nil || !bytes.Equal(got, want) {
		return errors.New("the file is not what pins.mod and the module's go.mod say: run `make lines`")
	}
	return nil
}

// sums is the go.sum of a module file.
func sums(file string) string { return strings.TrimSuffix(file, ".mod") + ".sum" }

func copyFile(from, to string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o644)
}

// derive writes the module file of a line for the module in the directory.
func derive(line, dir, target string) error {
	pins, err := read(filepath.Join("hack/lines", line, "pins.mod"))
	if err != nil {
		return err
	}
	base, err := read(filepath.Join(dir, "go.mod"))
	if err != nil {
		return err
	}
	upstream, err := readKubernetes(pins)
	if err != nil {
		return err
	}
	// The file is written twice. What Go selects from the first one shows what has to be replaced in the second.
	required := requirements(base, pins, upstream)
	later := replacedBefore(base, upstream)
	for _, last := range []bool{false, true} {
		if last {
			if later, err = selectedLater(dir, target, upstream); err != nil {
				return err
			}
		}
		if err := os.WriteFile(target, format(base, pins, required, append(staging(upstream), later...)), 0o644); err != nil {
			return err
		}
		for _, platform := range platforms {
			list := []string{"list", "-mod=mod", "-modfile=" + target, "-tags=kubernetes_" + strings.ReplaceAll(line, ".", "_"), "-deps", "-test", "./..."}
			if _, err := run(dir, platform, list...); err != nil {
				return err
			}
		}
	}
	return nil
}

// readKubernetes reads the go.mod of the version of Kubernetes that is pinned. Modules from Kubernetes's own tree get
// that version.
func readKubernetes(pins *modules) (*modules, error) {
	at := slices.IndexFunc(pins.Require, func(m module) bool { return m.Path == kubernetes })
	if at < 0 {
		return nil, fmt.Errorf("pins.mod does not require %s", kubernetes)
	}
	output, err := run(".", "", "mod", "download", "-json", kubernetes+"@"+pins.Require[at].Version)
	if err != nil {
		return nil, err
	}
	var downloaded struct{ GoMod string }
	if err := json.Unmarshal(output, &downloaded); err != nil {
		return nil, err
	}
	upstream, err := read(downloaded.GoMod)
	if err != nil {
		return nil, err
	}
	version := "v0." + strings.TrimPrefix(pins.Require[at].Version, "v1.")
	for _, own := range upstream.Replace {
		upstream.Require = slices.DeleteFunc(upstream.Require, func(m module) bool { return m.Path == own.Old.Path })
		upstream.Require = append(upstream.Require, module{Path: own.Old.Path, Version: version})
	}
	return upstream, nil
}

// staging are the modules in Kubernetes's own tree.
func staging(upstream *modules) (own []module) {
	for _, replaced := range upstream.Replace {
		own = append(own, module{Path: replaced.Old.Path, Version: version(upstream.Require, replaced.Old.Path)})
	}
	return own
}

// requirements are what the module itself requires, in the versions of the line. Go finds the indirect ones.
func requirements(base, pins, upstream *modules) (required []module) {
	for _, m := range base.Require {
		left := slices.ContainsFunc(pins.Exclude, func(e module) bool { return e.Path == m.Path })
		if m.Indirect || left {
			continue
		}
		m.Version = cmp.Or(version(pins.Require, m.Path), version(upstream.Require, m.Path), m.Version)
		required = append(required, m)
	}
	return required
}

// replacedBefore are the modules that the base replaces, in the version of Kubernetes. The version that Go would select
// may not exist.
func replacedBefore(base, upstream *modules) (replaced []module) {
	own := staging(upstream)
	for _, r := range base.Replace {
		m := module{Path: r.Old.Path, Version: version(upstream.Require, r.Old.Path)}
		if m.Version != "" && !slices.Contains(own, m) {
			replaced = append(replaced, m)
		}
	}
	return replaced
}

// selectedLater are modules of which Go selects a later version than Kubernetes is built with. They have the version of
// Kubernetes.
func selectedLater(dir, target string, upstream *modules) (later []module, err error) {
	selected, err := read(target)
	if err != nil {
		return nil, err
	}
	for _, m := range selected.Require {
		if want := version(upstream.Require, m.Path); want != "" && want != m.Version && !slices.Contains(staging(upstream), module{Path: m.Path, Version: want}) {
			later = append(later, module{Path: m.Path, Version: want})
		}
	}
	return later, nil
}

// version is empty if the module is not in the list.
func version(in []module, path string) string {
	for _, m := range in {
		if m.Path == path {
			return m.Version
		}
	}
	return ""
}

func format(base, pins *modules, required, replaced []module) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "// `make lines` derives this file from pins.mod and the go.mod of the module. Do not edit it.\n")
	fmt.Fprintf(&b, "module %s\n\ngo %s\n\n", base.Module.Path, pins.Go)
	for _, setting := range base.Godebug {
		fmt.Fprintf(&b, "godebug %s=%s\n\n", setting.Key, setting.Value)
	}
	b.WriteString("require (\n")
	for _, m := range required {
		fmt.Fprintf(&b, "\t%s %s\n", m.Path, m.Version)
	}
	b.WriteString(")\n\nreplace (\n")
	slices.SortFunc(replaced, func(a, b module) int { return cmp.Compare(a.Path, b.Path) })
	for _, m := range replaced {
		fmt.Fprintf(&b, "\t%s => %s %s\n", m.Path, m.Path, m.Version)
	}
	b.WriteString(")\n")
	return b.Bytes()
}

func read(file string) (*modules, error) {
	output, err := run(".", "", "mod", "edit", "-json", file)
	if err != nil {
		return nil, err
	}
	var m modules
	return &m, json.Unmarshal(output, &m)
}

// run runs go in a directory, for an operating system. An empty one is that of this machine.
func run(dir, platform string, args ...string) ([]byte, error) {
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	cmd.Env = append(os.Environ(), "GOFLAGS=") // not those of a line
	if platform != "" {
		cmd.Env = append(cmd.Env, "GOOS="+platform)
	}
	output, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	return output, nil
}
