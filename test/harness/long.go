package harness

import "testing"

// Long leaves a test out of `make test`, which runs with -short. It is for tests that take more than a few seconds and that no fault of
// docs/robustness.md needs. `make test-all` and CI run them.
func Long(tb testing.TB) {
	tb.Helper()
	if testing.Short() {
		tb.Skip("a long test: make test-all runs it")
	}
}
