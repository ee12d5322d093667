package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestNoticesAreThoseOfAllModules: what is in a program is there once, and what has no licence gets into no release.
func TestNoticesAreThoseOfAllModules(t *testing.T) {
	file := func(dir, name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a, b, none := t.TempDir(), t.TempDir(), t.TempDir()
	file(a, "LICENSE", "common\r\nterms\r\n")
	file(a, "third_party/forked/COPYING", "terms of a fork")
	file(a, "vendor/example.com/c/LICENSE", "terms of a module that is not compiled")
	file(a, "license.go", "package license")
	file(b, "LICENSE.md", "common\nterms\n")
	file(b, "NOTICE", "made by somebody")
	got, err := noticesOf(map[string]string{"example.com/a v1.0.0": a, "example.com/b v2.0.0": b})
	const line = "================================================================================"
	want := "\n" + line + "\nexample.com/a v1.0.0: LICENSE\nexample.com/b v2.0.0: LICENSE.md\n\ncommon\nterms\n" +
		"\n" + line + "\nexample.com/a v1.0.0: third_party/forked/COPYING\n\nterms of a fork\n" +
		"\n" + line + "\nexample.com/b v2.0.0: NOTICE\n\nmade by somebody\n"
	if _, notices, _ := strings.Cut(string(got), "\n"); err != nil || notices != want {
		t.Errorf("%v, got\n%s\nwant\n%s", err, notices, want)
	}
	file(none, "README.md", "no terms")
	if _, err := noticesOf(map[string]string{"example.com/none v1.0.0": none}); err == nil || !strings.Contains(err.Error(), "example.com/none v1.0.0 has no licence") {
		t.Errorf("a module without a licence: %v", err)
	}
}

// TestNoticesOfAProgram reads which modules are in it: those of this test have their licences in the cache of the machine.
func TestNoticesOfAProgram(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	here := platform{"linux", "amd64"}
	r := release{root: filepath.Join("..", "..", ".."), out: t.TempDir(), nodes: []platform{here}}
	if err := r.writeNotices(t.Context(), []program{{"scheduler", here, self}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\nGo: LICENSE\n", "\ngolang.org/x/mod v", "\ngithub.com/google/go-containerregistry v"} {
		if !strings.Contains(string(r.notices.content), want) {
			t.Errorf("the notices do not have %q", want)
		}
	}
}
