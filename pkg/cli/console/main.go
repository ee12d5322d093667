package console

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

// errorPrefix begins a line on standard error.
const errorPrefix = "kubectl berth: "

// ExitError ends a command with an exit code, when everything about it is said already.
type ExitError struct{ Code int }

func (e *ExitError) Error() string { return fmt.Sprintf("exit code %d", e.Code) }

// Main runs the command that the program's arguments name. It returns the exit code, and says on standard error what
// went wrong.
func Main(root *cobra.Command) int {
	err := root.Execute()
	if err == nil {
		return 0
	}
	var exit *ExitError
	if errors.As(err, &exit) {
		return exit.Code
	}
	fmt.Fprintln(root.ErrOrStderr(), errorPrefix+Advise(err))
	return 1
}
