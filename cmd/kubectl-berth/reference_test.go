package main

import (
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/berth-project/berth/pkg/cli"
	"github.com/berth-project/berth/pkg/plugins/descheduling"
	"github.com/berth-project/berth/test/reference"
)

func TestFlagsAreOnTheirPage(t *testing.T) {
	t.Setenv("HOME", "~") // a default is below it
	reference.Expect(t, "kubectl-berth", "What the commands are for: [kubectl berth](../kubectl-berth.md).",
		reference.Commands(cli.NewCommand(genericiooptions.NewTestIOStreamsDiscard(), descheduling.Register))...)
}
