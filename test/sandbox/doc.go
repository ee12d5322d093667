// Package sandbox tests internal/sandbox with real binaries, which `make tools` builds into bin.
package sandbox
