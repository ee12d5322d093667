package descheduler

import "errors"

// Exit codes of the command.
const (
	// ExitDone: everything was done that there was to do.
	ExitDone = 0
	// ExitBroken: a mistake in the configuration, or something could not be read or decided.
	ExitBroken = 1
	// ExitNothingEvicted: pods were to be evicted, and every attempted eviction failed or was refused; see the log for
	// each pod.
	ExitNothingEvicted = 2
)

var errNothingEvicted = errors.New("every attempted eviction failed or was refused; see the log for each pod")

// ExitCode of an error that Run returned.
func ExitCode(err error) int {
	switch {
	case err == nil:
		return ExitDone
	case errors.Is(err, errNothingEvicted):
		return ExitNothingEvicted
	default:
		return ExitBroken
	}
}
