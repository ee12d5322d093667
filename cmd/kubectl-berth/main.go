// Command kubectl-berth is a plugin of kubectl: with it on the PATH, "kubectl berth" shows where the pods of a workload
// are and why. For some commands it starts berth-whatif.
package main

import (
	"os"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/berth-project/berth/pkg/cli"
	"github.com/berth-project/berth/pkg/cli/console"
)

func main() {
	os.Exit(console.Main(cli.NewCommand(genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr})))
}
