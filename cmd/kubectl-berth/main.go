// Command kubectl-berth is a plugin of kubectl: with it on the PATH, "kubectl berth" shows where the pods of a workload are and why.
package main

import (
	"fmt"
	"os"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/berth-project/berth/pkg/cli"
	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/plugins/descheduling"
)

func main() {
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	if err := cli.NewCommand(streams, descheduling.Register).Execute(); err != nil {
		fmt.Fprintln(streams.ErrOut, "kubectl berth:", console.Advise(err))
		os.Exit(1)
	}
}
