package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestLinesAreThoseOfTheProduct: internal/version lists them too. It says to users which line they need, and belongs to another module.
func TestLinesAreThoseOfTheProduct(t *testing.T) {
	root := filepath.Join("..", "..", "..")
	source, err := os.ReadFile(filepath.Join(root, "internal", "version", "version.go"))
	if err != nil {
		t.Fatal(err)
	}
	list := regexp.MustCompile(`(?m)^var Lines = \[\]string\{(.*)\}$`).FindSubmatch(source)
	if list == nil {
		t.Fatal("internal/version has no Lines")
	}
	want := strings.Split(strings.ReplaceAll(string(list[1]), `"`, ""), ", ")
	if got := slices.Sorted(maps.Keys(lines)); !slices.Equal(got, want) {
		t.Errorf("releases have the lines %v, internal/version has %v", got, want)
	}
	for name, l := range lines {
		minor, err := strconv.Atoi(strings.TrimPrefix(name, "1."))
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf(">= 1.%d.0-0 < 1.%d.0-0", minor, minor+2); l.kubernetes != want {
			t.Errorf("line %s is for API servers %q, want %q", name, l.kubernetes, want)
		}
		if name == defaultLine {
			continue
		}
		flags := []string{"-modfile=hack/lines/" + name + "/go.mod", "-tags=kubernetes_" + strings.ReplaceAll(name, ".", "_")}
		if l.suffix != "-k8s"+name || !slices.Equal(l.flags, flags) {
			t.Errorf("line %s has the suffix %s and the flags %v", name, l.suffix, l.flags)
		}
		if _, err := os.Stat(filepath.Join(root, "hack", "lines", name, "go.mod")); err != nil {
			t.Error(err)
		}
	}
}
