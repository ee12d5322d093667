//go:build !kubernetes_1_37

// The page shows the flags of the line of go.mod.

package main

import (
	"testing"

	"github.com/berth-project/berth/pkg/descheduler"
	"github.com/berth-project/berth/pkg/plugins/descheduling"
	"github.com/berth-project/berth/test/reference"
)

func TestFlagsAreOnTheirPage(t *testing.T) {
	options, err := descheduler.NewOptions(descheduling.Register)
	if err != nil {
		t.Fatal(err)
	}
	command, err := newCommand(options)
	if err != nil {
		t.Fatal(err)
	}
	reference.Expect(t, "berth-descheduler", "They are those of kubernetes-sigs/descheduler and Berth's own. What can be said to the strategies is in the [policy](arguments.md).",
		reference.Section{Flags: command.Flags()})
}
