//go:build !kubernetes_1_37

// The page shows the flags of the line of go.mod.

package main

import (
	"testing"

	"github.com/berth-project/berth/pkg/plugins/scheduling/workloadspread"
	"github.com/berth-project/berth/test/reference"
)

func TestFlagsAreOnTheirPage(t *testing.T) {
	reference.Expect(t, "berth-scheduler", "They are those of kube-scheduler. What can be said to Berth's plugins is in the [configuration](arguments.md).",
		reference.Section{Flags: newCommand(&workloadspread.Family{}).Flags()})
}
