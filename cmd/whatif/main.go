// Command berth-whatif is the part of "kubectl berth" that contains kube-scheduler's filters. kubectl-berth starts it.
package main

import (
	"os"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/whatif"
)

func main() {
	os.Exit(console.Main(whatif.NewCommand(genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr})))
}
