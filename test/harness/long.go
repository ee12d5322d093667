package harness

import "testing"

// Long leaves a test out of `make test`, which runs with -short. It is for tests that take more than a few seconds and that no fault of
// docs/robustness.md needs. `make test-all` and CI run them.
func Long(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("a long test: make test-all runs it")
	}
}
