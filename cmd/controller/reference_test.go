package main

import (
	"flag"
	"testing"

	"github.com/spf13/pflag"

	"github.com/berth-project/berth/test/reference"
)

func TestFlagsAreOnTheirPage(t *testing.T) {
	var f flags
	set, all := flag.NewFlagSet("", flag.PanicOnError), pflag.NewFlagSet("", pflag.PanicOnError)
	f.addTo(set)
	all.AddGoFlagSet(set)
	reference.Expect(t, "berth-controller", "How Berth sets them: `manifests/controller/deployment.yaml`.", reference.Section{Flags: all})
}
