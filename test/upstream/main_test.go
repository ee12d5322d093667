package main

import (
	"os/exec"
	"testing"
)

// TestTheModuleCanBeChanged: the texts that are edited are there, and go.sum has all that the suites need. Compiling the result takes minutes, and running it an hour: make test-upstream.
func TestTheModuleCanBeChanged(t *testing.T) {
	module, err := kubernetes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := edited(module); err != nil {
		t.Error(err)
	}
	if out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-tags=packages", "packages.go").CombinedOutput(); err != nil {
		t.Errorf("listing the packages of the suites: %v\n%s", err, out)
	}
}
