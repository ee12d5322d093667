package main

import (
	"archive/zip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestArchivesOfAllPlatforms: Krew unpacks them, and finds the program by the name that it has on the platform.
func TestArchivesOfAllPlatforms(t *testing.T) {
	platforms, err := parsePlatforms(pluginPlatforms)
	if err != nil {
		t.Fatal(err)
	}
	r := release{root: filepath.Join("..", "..", ".."), out: t.TempDir(), version: "v1.2.3", plugins: platforms, notices: entry{name: noticesFile}}
	file := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(file, []byte("a program"), 0o600); err != nil {
		t.Fatal(err)
	}
	var programs []program
	for _, on := range platforms {
		for _, command := range plugin {
			programs = append(programs, program{command, on, file})
		}
	}
	if err := r.writeArchives(programs); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(r.out, "krew", "berth.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var manifest krewPlugin
	if err := yaml.UnmarshalStrict(content, &manifest); err != nil {
		t.Fatal(err)
	}
	var bins []string
	for _, p := range manifest.Spec.Platforms {
		bins = append(bins, filepath.Base(p.URI)+" "+p.Bin)
	}
	want := []string{"kubectl-berth-v1.2.3-linux-amd64.tar.gz kubectl-berth", "kubectl-berth-v1.2.3-linux-arm64.tar.gz kubectl-berth", "kubectl-berth-v1.2.3-darwin-amd64.tar.gz kubectl-berth",
		"kubectl-berth-v1.2.3-darwin-arm64.tar.gz kubectl-berth", "kubectl-berth-v1.2.3-windows-amd64.zip kubectl-berth.exe"}
	if !slices.Equal(bins, want) {
		t.Errorf("the manifest has\n%s\nwant\n%s", strings.Join(bins, "\n"), strings.Join(want, "\n"))
	}
	windows, err := zip.OpenReader(filepath.Join(r.out, "kubectl", "kubectl-berth-v1.2.3-windows-amd64.zip"))
	if err != nil {
		t.Fatal(err)
	}
	defer windows.Close()
	var names []string
	for _, f := range windows.File {
		names = append(names, f.Name)
	}
	if want := []string{"kubectl-berth.exe", "berth-whatif.exe", "LICENSE", noticesFile}; !slices.Equal(names, want) {
		t.Errorf("the archive for Windows has %v, want %v", names, want)
	}
}
