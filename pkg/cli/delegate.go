package cli

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/berth-project/berth/pkg/cli/console"
)

// delegate is a command that berth-whatif runs, with everything that was typed. Its help and completion come from there
// too.
func delegate(command console.Summary, streams genericiooptions.IOStreams) *cobra.Command {
	cmd := &cobra.Command{
		Use:                command.Use,
		Short:              command.Short,
		DisableFlagParsing: true,
		Args:               cobra.ArbitraryArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return console.RunWhatIf(cmd.Context(), streams, append([]string{cmd.Name()}, args...)...)
	}
	cmd.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		if err := console.RunWhatIf(cmd.Root().Context(), streams, cmd.Name(), "--help"); err != nil {
			fmt.Fprintln(streams.ErrOut, err)
		}
	})
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, toComplete string) ([]cobra.Completion, cobra.ShellCompDirective) {
		var out bytes.Buffer
		typed := append(append([]string{cobra.ShellCompRequestCmd, cmd.Name()}, args...), toComplete)
		if err := console.RunWhatIf(cmd.Context(), genericiooptions.IOStreams{In: streams.In, Out: &out, ErrOut: streams.ErrOut}, typed...); err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return completions(out.String())
	}
	return cmd
}

// completions reads what a program prints that completes its command line: a completion a line, and then a directive.
func completions(printed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	lines := strings.Split(strings.TrimSpace(printed), "\n")
	last := len(lines) - 1
	directive, err := strconv.Atoi(strings.TrimPrefix(lines[last], ":"))
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return lines[:last], cobra.ShellCompDirective(directive)
}
