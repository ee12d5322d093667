// Package sandbox tests pkg/sandbox with real binaries, which `make tools` builds into bin.
package sandbox
