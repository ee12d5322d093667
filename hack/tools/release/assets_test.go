package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// lineRelease writes a small release of a line, with the names that make release gives.
func lineRelease(t *testing.T, line string) string {
	t.Helper()
	platforms, err := parsePlatforms(pluginPlatforms)
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join("..", "..", "..")
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	small := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(small, []byte("a program"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := release{root: root, out: t.TempDir(), version: "v1.2.3", registry: shippedRegistry, line: lines[line], nodes: platforms[:2], plugins: platforms, notices: entry{name: noticesFile, mode: 0o644}}
	var programs []program
	for _, on := range platforms {
		for _, command := range slices.Concat(components, plugin) {
			programs = append(programs, program{command, on, small})
		}
	}
	for _, err := range []error{
		r.writeImages(programs), r.writeInstall(), r.writeArchives(programs), r.write([]byte("{}"), "sbom", "berth-scheduler-linux-amd64.cdx.json"),
		r.write([]byte("# Notes"), "release-notes.md"), r.writeProvenance([]program{{path: executable}}), writeSums(r.out),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return r.out
}

// TestAssetsOfAllLines: one release on GitHub has the files of all lines, without directories, and the sums fit them.
func TestAssetsOfAllLines(t *testing.T) {
	of, line := lineRelease(t, defaultLine), lineRelease(t, "1.37")
	assets := filepath.Join(t.TempDir(), "assets")
	if err := run(t.Context(), []string{"assets", "-to", assets, of, line}); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(assets)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, file := range files {
		got = append(got, file.Name())
	}
	want := []string{"SHA256SUMS"}
	for _, suffix := range []string{"", "-k8s1.37"} {
		want = append(want, "berth-1.2.3"+suffix+".tgz", "berth"+suffix+".yaml", "images-v1.2.3"+suffix+".tar", "install"+suffix+".yaml", "provenance"+suffix+".json", "sbom-v1.2.3"+suffix+".tar.gz")
		for _, on := range []string{"darwin-amd64.tar.gz", "darwin-arm64.tar.gz", "linux-amd64.tar.gz", "linux-arm64.tar.gz", "windows-amd64.zip"} {
			want = append(want, "kubectl-berth-v1.2.3"+suffix+"-"+on)
		}
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the assets are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	krew, err := os.ReadFile(filepath.Join(assets, "berth-k8s1.37.yaml"))
	if download := "/releases/download/v1.2.3/kubectl-berth-v1.2.3-k8s1.37-linux-amd64.tar.gz\n"; err != nil || !bytes.Contains(krew, []byte(download)) {
		t.Errorf("the manifest for Krew names another download than %s: %v\n%s", download, err, krew)
	}

	// The command of docs/releases.md, for those who have downloaded some of the files.
	const check = "sha256sum --check --ignore-missing SHA256SUMS"
	if page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "releases.md")); err != nil || !bytes.Contains(page, []byte("`"+check+"`")) {
		t.Errorf("docs/releases.md does not have %q: %v", check, err)
	}
	checked := func() (string, error) {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", check)
		cmd.Dir = assets
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := checked(); err != nil || strings.Count(out, ": OK\n") != len(want)-1 {
		t.Errorf("all files: %v\n%s", err, out)
	}
	for _, name := range want {
		if name != "SHA256SUMS" && name != "install.yaml" {
			if err := os.Remove(filepath.Join(assets, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if out, err := checked(); err != nil || out != "install.yaml: OK\n" {
		t.Errorf("one file: %v\n%s", err, out)
	}
	if err := os.WriteFile(filepath.Join(assets, "install.yaml"), []byte("something else"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := checked(); err == nil {
		t.Errorf("a changed file: %s", out)
	}
}

// TestTheSameReleaseGivesTheSameAssets, whenever and wherever it was written.
func TestTheSameReleaseGivesTheSameAssets(t *testing.T) {
	var sums [][]byte
	for range 2 {
		assets := filepath.Join(t.TempDir(), "assets")
		if err := run(t.Context(), []string{"assets", "-to", assets, lineRelease(t, defaultLine)}); err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(filepath.Join(assets, "SHA256SUMS"))
		if err != nil {
			t.Fatal(err)
		}
		sums = append(sums, content)
		file, err := os.Open(filepath.Join(assets, "images-v1.2.3.tar"))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		for images := tar.NewReader(file); ; {
			header, err := images.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if !header.ModTime.Equal(fileTime) || header.Uid != 0 || header.Uname != "" {
				t.Errorf("%s has a time or an owner: %+v", header.Name, header)
			}
		}
	}
	if !bytes.Equal(sums[0], sums[1]) {
		t.Errorf("%s\nthe second time\n%s", sums[0], sums[1])
	}
}

// TestTwoReleasesOfOneLine would take each other's place.
func TestTwoReleasesOfOneLine(t *testing.T) {
	dir := lineRelease(t, defaultLine)
	assets := filepath.Join(t.TempDir(), "assets")
	if err := run(t.Context(), []string{"assets", "-to", assets, dir, dir}); !errors.Is(err, os.ErrExist) {
		t.Errorf("they are taken: %v", err)
	}
	if _, err := os.Stat(assets); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something is left: %v", err)
	}
}
