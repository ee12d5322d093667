package descheduler

import "errors"

var errNothingEvicted = errors.New("every attempted eviction failed or was refused; see the log for each pod")

// ExitCode of an error that Run returned: 0 if everything was done that there was to do, 2 if pods were to be evicted
// and every attempted eviction failed or was refused, and 1 for a mistake in the configuration, or if something could
// not be read or decided.
func ExitCode(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errNothingEvicted):
		return 2
	default:
		return 1
	}
}
