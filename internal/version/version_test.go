package version

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	kubernetes "k8s.io/component-base/version"
)

func TestLineFor(t *testing.T) {
	for server, want := range map[string]string{
		"v1.34.17-eks-123": "",
		"v1.35.0":          "1.35",
		"v1.35.4-gke.100":  "1.35",
		"v1.36.0-rc.1+abc": "1.35",
		"v1.37.1":          "1.37",
		"v1.38.0-alpha.1":  "1.37",
		"v1.39.0":          "",
		"v2.35.0":          "",
	} {
		if got, err := LineFor(server); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", server, got, err, want)
		}
	}
	if _, err := LineFor("unknown"); err == nil {
		t.Error("a server without a version is taken")
	}
}

func TestLinesAreThoseThatAreBuilt(t *testing.T) {
	want := []string{kubernetes.DefaultKubeBinaryVersion}
	dirs, err := filepath.Glob(filepath.Join("..", "..", "hack", "lines", "*", "pins.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		want = append(want, filepath.Base(filepath.Dir(dir)))
	}
	if !cmp.Equal(Lines, want) {
		t.Errorf("go.mod and hack/lines have the lines %q, this package has %q", want, Lines)
	}
}

func TestOfTag(t *testing.T) {
	for text, want := range map[string][2]string{
		"v0.2.0":                             {"v0.2.0", "1.35"},
		"v0.2.0-k8s1.37":                     {"v0.2.0", "1.37"},
		"v0.2.0-rc.1-k8s1.37":                {"v0.2.0-rc.1", "1.37"},
		"v0.0.0-20261124120000-0123456789ab": {},
		"v1":                                 {},
		"devel":                              {},
	} {
		release, line := OfTag(text)
		if got := [2]string{release, line}; got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
