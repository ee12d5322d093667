package main

import (
	"testing"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/berth-project/berth/pkg/cli"
	"github.com/berth-project/berth/pkg/whatif"
	"github.com/berth-project/berth/test/reference"
)

// The commands that berth-whatif runs are commands of kubectl berth for its users, so their flags are on the same page.
func TestFlagsAreOnTheirPage(t *testing.T) {
	root, other := cli.NewCommand(genericiooptions.NewTestIOStreamsDiscard()), whatif.NewCommand(genericiooptions.NewTestIOStreamsDiscard())
	runs := map[string]*cobra.Command{}
	for _, command := range other.Commands() {
		runs[command.Name()] = command
	}
	for _, command := range root.Commands() {
		if command.DisableFlagParsing {
			root.RemoveCommand(command)
			root.AddCommand(runs[command.Name()]) // fails if berth-whatif has no such command
			delete(runs, command.Name())
		}
	}
	for name := range runs {
		t.Errorf("kubectl-berth does not start berth-whatif for %s", name)
	}
	reference.Expect(t, "kubectl-berth", "What the commands are for: [kubectl berth](../kubectl-berth.md).", reference.Commands(root)...)
}
